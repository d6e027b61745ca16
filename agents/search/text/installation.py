"""Documentation that any machine with Python has: the standard library's docstrings and the language reference.

    for name, source in sources(stdlib()): …      ("http.server", b'\"\"\"HTTP server classes.…')

Only text is read; nothing is imported but the module that holds the reference's topics. Licence: Python's own, the PSF
License Agreement; a corpus is made on the user's machine and is not a part of headrace.
"""

import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

LICENCE = "Python Software Foundation License Version 2 (docstrings and language reference of the installed Python)"
"""What the texts are under, recorded in every corpus."""

SKIPPED = frozenset(
    {
        *("__pycache__", "encodings", "ensurepip", "idlelib", "lib2to3", "msilib", "pydoc_data", "site-packages"),
        *("test", "tests", "turtledemo"),
    }
)
"""Folders with tests, bundled programs, other people's packages, or a hundred copies of one text (encodings)."""


def stdlib() -> Path:
    """Return the folder of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def sources(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and source of the public modules in ``folder``, by name."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        hidden = any(part.startswith("_") and part != "__init__" for part in parts)
        if not hidden and SKIPPED.isdisjoint(parts) and all(part.isidentifier() for part in parts):
            yield ".".join(parts), path.read_bytes()


def topics() -> Mapping[str, str]:
    """Return the articles of the language reference, by name; none if this Python was installed without them."""
    try:
        from pydoc_data.topics import topics as found
    except ModuleNotFoundError:
        return {}
    return found
