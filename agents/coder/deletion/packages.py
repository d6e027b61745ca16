"""Pinned packages whose source distributions carry their tests: what deletion tasks are made of beside the standard
library.

    fetch(PACKAGES["jsonpointer"], folder)                       →  folder/jsonpointer-3.0.0.tar.gz, by pip
    installations(PACKAGES["jsonpointer"], file.read_bytes())    →  [Installation("jsonpointer==3.0.0", …)]

No source of them is part of headrace. A distribution is used only if its SHA-256 is the pinned one, and its members are
read into memory, never unpacked. The packages are pure Python under permissive licences, and their tests need nothing
but ``unittest``.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.agents.coder.deletion.installation import (
    Installation,
    Interpreter,
    module_of,
    package_interpreter,
)

MOST_BYTES = 8 << 20
"""Most bytes of the files that are read from a distribution."""
FETCH_S = 300.0
"""Longest time for pip."""


class PackageUnusable(ValueError):
    """The distribution could not be fetched, or is not the pinned one; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Package:
    """A source distribution, and what of it is used."""

    name: str
    version: str
    sha256: str
    """Of the source distribution."""
    licence: str
    imports: tuple[str, ...]
    """Names of its top level, which a sandbox must not find elsewhere."""
    folders: tuple[str, ...]
    """Folders whose Python files an attempt gets."""
    tested: Mapping[str, str]
    """File with code → the file with its tests."""

    @property
    def origin(self) -> str:
        """``jsonpointer==3.0.0``."""
        return f"{self.name}=={self.version}"

    @property
    def file_name(self) -> str:
        """Name of the source distribution."""
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"


_EVERY = (
    Package(
        name="jsonpointer",
        version="3.0.0",
        sha256="2b2d729f2091522d61c3b31f82e11870f60b68f43fbc705cb76bf4b832af59ef",
        licence="BSD-3-Clause",
        imports=("jsonpointer",),
        folders=(),
        tested={"jsonpointer.py": "tests.py"},
    ),
    Package(
        name="more-itertools",
        version="10.8.0",
        sha256="f638ddf8a1a0d134181275fb5d58b086ead7c6a72429ad725c67503f13ba30bd",
        licence="MIT",
        imports=("more_itertools",),
        folders=("more_itertools",),
        # The tests of recipes.py compute for 25 s on a busy machine, near the limit of a suite.
        tested={"more_itertools/more.py": "tests/test_more.py"},
    ),
)

PACKAGES: Mapping[str, Package] = {package.name: package for package in _EVERY}
"""By name."""


def package_of(origin: str) -> Package:
    """Return the package of ``jsonpointer==3.0.0``. Raises :class:`PackageUnusable` for one that is not pinned here."""
    for package in _EVERY:
        if package.origin == origin:
            return package
    raise PackageUnusable(f"{origin!r} is none of {', '.join(each.origin for each in _EVERY)}: generate the tasks anew")


def fetch(package: Package, folder: Path) -> Path:
    """Download the source distribution into ``folder`` by pip, unless it is there; return its file.

    pip runs the package's build backend to learn its metadata, after it has compared the hash. Raises
    :class:`PackageUnusable`.
    """
    file = folder / package.file_name
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        pinned = folder / f"{package.name}.txt"
        pinned.write_text(f"{package.origin} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
        command += ["--no-binary", package.name, "--require-hashes", "-r", str(pinned), "--dest", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise PackageUnusable(f"pip did not download {package.origin} within {FETCH_S:g} s: try again") from error
        finally:
            pinned.unlink()
        if done.returncode != 0 or not file.is_file():
            said = done.stderr.strip()[-500:] or "no file came of it"
            raise PackageUnusable(f"pip could not download {package.origin}: {said}")
    return file


def installations(package: Package, distribution: bytes, interpreter: Interpreter | None = None) -> list[Installation]:
    """Return the modules of ``package`` with their tests. ``distribution``: the bytes of the source distribution.

    ``interpreter``: unless the one that :func:`package_interpreter` finds. Raises :class:`PackageUnusable` if the
    bytes are not those that are pinned, and ``NoSuchModule`` without an interpreter.
    """
    digest = hashlib.sha256(distribution).hexdigest()
    if digest != package.sha256:
        raise PackageUnusable(
            f"the source distribution of {package.origin} has the SHA-256 {digest}, pinned is {package.sha256}: "
            "remove the file, so that it is fetched again"
        )
    files = _files(package, distribution)
    found = []
    for path, tests_path in package.tested.items():
        others = {
            name: content
            for name, content in files.items()
            if name not in (path, tests_path) and name not in package.tested.values()
        }
        found.append(
            Installation(
                interpreter or package_interpreter(package.imports, files[path]),
                package.origin,
                module_of(path),
                path,
                files[path],
                tests_path,
                files[tests_path],
                others,
            )
        )
    return found


def _files(package: Package, distribution: bytes) -> dict[str, str]:
    """Python files of the distribution that are needed, by path without the first folder."""
    wanted = {*package.tested, *package.tested.values()}
    folders = (*(f"{each}/" for each in package.folders), *(each.rpartition("/")[0] + "/" for each in wanted))
    files: dict[str, str] = {}
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(distribution), mode="r:gz") as archive:
            for member in archive:
                name = member.name.partition("/")[2]
                is_code = name.endswith(".py") and name.startswith(tuple(each for each in folders if each != "/"))
                if not member.isfile() or not (name in wanted or is_code):
                    continue
                size += member.size
                if size > MOST_BYTES:
                    raise PackageUnusable(f"{package.origin} has more than {MOST_BYTES} bytes of code")
                read = archive.extractfile(member)
                assert read is not None, "a regular file"
                files[name] = read.read().decode()
    except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise PackageUnusable(f"{package.origin} is no source distribution that can be read: {error}") from error
    if missing := wanted - files.keys():
        raise PackageUnusable(f"{package.origin} has no {', '.join(sorted(missing))}")
    return files
