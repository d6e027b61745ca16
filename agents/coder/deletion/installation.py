"""A module of the standard library with its tests, and the interpreter that runs them in a sandbox.

    installation("graphlib")     Installation(python="/usr/bin/python3", module="graphlib", source="…", masked=(…))

Source and tests are those of the interpreter that runs headrace. Where a sandbox's user cannot read that interpreter
(pyenv in a private home folder), the system's of the same minor version runs them.
"""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

MODULES = (
    *("graphlib", "colorsys", "bisect", "statistics", "shlex", "calendar", "fractions"),
    *("ipaddress", "configparser", "getopt", "sched", "optparse", "csv", "plistlib"),
)
"""Modules of one file whose tests need only the standard library, and that the test framework itself does not load: it
could not start with the original masked (``textwrap``, ``heapq``)."""

SYSTEM_PYTHON = "/usr/bin/python3"
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


class NoSuchModule(ValueError):
    """The interpreter has no such module of one file, or no tests of it; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A module with its tests."""

    python: str
    """The interpreter that runs them in a sandbox."""
    prefix: str
    """Folder of that interpreter, which the sandbox must show."""
    module: str
    source: str
    tests: str
    masked: tuple[str, ...]
    """Files that the sandbox must not show: the module, its tests, and their bytecode."""


def installation(module: str) -> Installation:
    """Return ``module`` of the standard library. Raises ``NoSuchModule``."""
    library = Path(sysconfig.get_path("stdlib"))
    source, tests = library / f"{module}.py", library / "test" / f"test_{module}.py"
    if not module.isidentifier() or not source.is_file():
        raise NoSuchModule(f"the standard library has no file {module}.py: choose from {', '.join(MODULES)}")
    if not tests.is_file():
        raise NoSuchModule(f"there is no {tests}: install CPython's tests (Debian: libpython3-testsuite), or use pyenv")
    python, prefix, visible = _interpreter(library)
    masked = originals(visible, module)
    return Installation(python, prefix, module, source.read_text(), tests.read_text(), masked)


def originals(library: Path, module: str) -> tuple[str, ...]:
    """Return the files of ``module``, of its tests and of their bytecode that are in ``library``."""
    patterns = (
        f"{module}.py",
        f"__pycache__/{module}.*",
        f"test/test_{module}.py",
        f"test/__pycache__/test_{module}.*",
    )
    return tuple(sorted(str(path) for pattern in patterns for path in library.glob(pattern)))


def _interpreter(library: Path) -> tuple[str, str, Path]:
    """Return an interpreter that any user can run, its prefix and its library."""
    if all(folder.stat().st_mode & 0o005 == 0o005 for folder in (library, *library.parents)):
        return f"{sys.base_prefix}/bin/python{_VERSION}", sys.base_prefix, library
    query = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('stdlib'))"
    if os.access(SYSTEM_PYTHON, os.X_OK):
        command = [SYSTEM_PYTHON, "-I", "-S", "-c", query]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        version, _, found = answer.stdout.strip().partition(" ")
        if version == _VERSION:
            return SYSTEM_PYTHON, "/usr", Path(found)
    raise NoSuchModule(
        f"a sandbox cannot read {library}, and there is no {SYSTEM_PYTHON} of version {_VERSION}: install Python where "
        "every user can read it, or run headrace with the system's"
    )
