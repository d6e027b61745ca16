"""A module with its tests, and the interpreter that runs them in a sandbox.

    installation("graphlib")     Installation(origin="stdlib", module="graphlib", path="graphlib.py", source="…", …)

Source and tests of the standard library are those of the interpreter that runs headrace; those of a pinned package are
in :mod:`headrace.agents.coder.deletion.packages`. Where a sandbox's user cannot read that interpreter (pyenv in a
private home folder), the system's of the same minor version runs the tests.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from headrace.agents.coder.deletion.visible import SearchFailed, holders, libraries, roots, walk

MODULES = (
    *("graphlib", "colorsys", "bisect", "statistics", "shlex", "calendar", "fractions"),
    *("ipaddress", "configparser", "getopt", "sched", "optparse", "csv", "plistlib"),
)
"""Modules of one file whose tests need only the standard library, and that the test framework itself does not load: it
could not start with the original masked (``textwrap``, ``heapq``)."""

STANDARD_LIBRARY = "stdlib"
"""Origin of its modules."""

SYSTEM_PYTHON = "/usr/bin/python3"
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_ARCHIVES = (".whl", ".zip", ".egg")
_INSTALLED = ("site-packages", "dist-packages", "ensurepip")
"""Folders of a library with what was installed later, or is."""


class NoSuchModule(ValueError):
    """The interpreter has no such module of one file, or no tests of it; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What runs a module's tests in a sandbox."""

    python: str
    """The interpreter."""
    masked: tuple[str, ...] = ()
    """Files and folders that the sandbox must not show: the module, its tests, their bytecode and other copies."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A module with its tests."""

    interpreter: Interpreter
    origin: str
    """``stdlib``, or name and version of a package: ``jsonpointer==3.0.0``."""
    module: str
    """Name by which it is imported: ``graphlib``, ``more_itertools.more``."""
    path: str
    """Its file in the sandbox: ``more_itertools/more.py``."""
    source: str
    tests_path: str
    """The file of its tests in the sandbox: ``test_graphlib.py``."""
    tests: str
    others: Mapping[str, str] = field(default_factory=dict)
    """Other files that the tests need, as they are: path in the sandbox → content."""


def module_of(path: str) -> str:
    """Return the name by which the file ``path`` of a sandbox is imported: ``tests.test_more``."""
    return path.removesuffix(".py").replace("/", ".")


def installation(module: str) -> Installation:
    """Return ``module`` of the standard library. Raises ``NoSuchModule``."""
    library = Path(sysconfig.get_path("stdlib"))
    source, tests = library / f"{module}.py", library / "test" / f"test_{module}.py"
    if not module.isidentifier() or not source.is_file():
        raise NoSuchModule(f"the standard library has no file {module}.py: choose from {', '.join(MODULES)}")
    if not tests.is_file():
        raise NoSuchModule(f"there is no {tests}: install CPython's tests (Debian: libpython3-testsuite), or use pyenv")
    return Installation(
        library_interpreter(module),
        STANDARD_LIBRARY,
        module,
        source.name,
        source.read_text(),
        tests.name,
        tests.read_text(),
    )


@lru_cache(maxsize=64)
def library_interpreter(module: str) -> Interpreter:
    """Return the interpreter for the tests of ``module`` of the standard library, without the module in any Python
    that a sandbox can see, and without copies of its functions in other files. Raises ``NoSuchModule``."""
    python, own = _interpreter()
    source = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    if not source.is_file():
        raise NoSuchModule(f"the standard library has no file {module}.py: choose from {', '.join(MODULES)}")
    return Interpreter(python, _hidden(own, source.read_text(), module, {module, f"test_{module}"}))


def package_interpreter(names: Iterable[str], source: str) -> Interpreter:
    """Return the interpreter for the tests of a package whose importable names are ``names``, without the copies of
    them that a sandbox can see, and without those of the functions of ``source``. Raises ``NoSuchModule``."""
    python, own = _interpreter()
    return Interpreter(python, _hidden(own, source, None, names))


def _hidden(own: Path, source: str, module: str | None, names: Iterable[str]) -> tuple[str, ...]:
    """Return what must not be seen: ``module`` in every standard library, what has one of ``names``, and what has
    copies of the functions of ``source``; none inside another.

    Of ``own``, the library of the interpreter that runs the tests, only ``module`` is hidden, and the packages that are
    installed there, which it does not load: without the rest it could not start.
    """
    try:
        everywhere = (own, *roots())
        first = {path for library in {own, *libraries()} for path in originals(library, module)} if module else set()
        others = {*copies(everywhere, frozenset(names)), *holders(source, everywhere)}
    except SearchFailed as error:
        raise NoSuchModule(str(error)) from error
    needed = {path for path in others if (inner := _below(path, own)) and inner[0] not in _INSTALLED}
    found = {os.path.realpath(path) for path in first | (others - needed)}
    return tuple(sorted(path for path in found if found.isdisjoint(map(str, Path(path).parents))))


def _below(path: str, folder: Path) -> tuple[str, ...]:
    """Parts of ``path`` below ``folder``; none if it is elsewhere."""
    return Path(path).relative_to(folder).parts if Path(path).is_relative_to(folder) else ()


def originals(library: Path, module: str) -> tuple[str, ...]:
    """Return the files of ``module``, of its tests and of their bytecode that are in ``library``."""
    patterns = (
        f"{module}.py",
        f"__pycache__/{module}.*",
        f"test/test_{module}.py",
        f"test/__pycache__/test_{module}.*",
    )
    return tuple(sorted(str(path) for pattern in patterns for path in library.glob(pattern)))


@lru_cache(maxsize=64)
def copies(folders: tuple[Path, ...], names: frozenset[str]) -> tuple[str, ...]:
    """Return what below ``folders`` is a copy of a module or package of ``names``: files, bytecode, folders (vendored
    ones too), and archives with one in them. Raises ``SearchFailed``."""
    found: set[str] = set()
    for root, inner, files in walk(folders):
        for name in [each for each in inner if each in names]:
            found.add(os.path.join(root, name))
            inner.remove(name)
        for name in files:
            path = os.path.join(root, name)
            is_module = name.partition(".")[0] in names and name.endswith((".py", ".pyc", ".pyi"))
            is_copy = is_module or (name.endswith(_ARCHIVES) and names & _parts_of(path))
            if is_copy and os.path.exists(path):  # no dangling link
                found.add(path)
    return tuple(sorted(found))


def _parts_of(archive: str) -> set[str]:
    """Names of the files and folders in a wheel, zip or egg, without endings."""
    try:
        with zipfile.ZipFile(archive) as opened:
            return {part.partition(".")[0] for name in opened.namelist() for part in name.split("/")}
    except (OSError, zipfile.BadZipFile):
        return set()


@lru_cache(maxsize=1)
def _interpreter() -> tuple[str, Path]:
    """Return an interpreter that any user can run, and its library."""
    library = Path(sysconfig.get_path("stdlib"))
    if all(folder.stat().st_mode & 0o005 == 0o005 for folder in (library, *library.parents)):
        return f"{sys.base_prefix}/bin/python{_VERSION}", library
    query = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('stdlib'))"
    if os.access(SYSTEM_PYTHON, os.X_OK):
        command = [SYSTEM_PYTHON, "-I", "-S", "-c", query]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        version, _, found = answer.stdout.strip().partition(" ")
        if version == _VERSION:
            return SYSTEM_PYTHON, Path(found)
    raise NoSuchModule(
        f"a sandbox cannot read {library}, and there is no {SYSTEM_PYTHON} of version {_VERSION}: install Python where "
        "every user can read it, or run headrace with the system's"
    )
