"""What a sandbox can see of the host's Python code: libraries of other Pythons, and copies of functions under any name.

    libraries()                        →  (Path("/usr/lib/python3.11"), Path("/usr/lib/other-product/lib/python3.12"))
    holders(source_of_shlex)           →  ("/usr/lib/python3/dist-packages/argcomplete/my_shlex.py", …)

Products bring along Pythons of their own and copy modules under other names, so everything that the sandbox binds is
searched, once for each module and process. The time is bounded.
"""

import ast
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from time import monotonic

from headrace.agents.coder.deletion.features import features
from headrace.agents.sandbox.confined import SYSTEM_LINKS, default_view

SEARCH_S = 120.0
"""Longest time of a search, in seconds."""
SAME_SHARE = 0.5
"""Share of a function's lines which another file with a function of that name must have to count as a copy: copies are
edited, and versions differ."""
LEAST_SAME = 3
"""Least number of these lines."""
MOST_BYTES = 4 << 20
"""Larger files are copies without a comparison of their lines."""

_BYTECODE = ("__pycache__/{}.*.pyc", "{}.pyc")


class SearchFailed(ValueError):
    """What a sandbox can see could not be searched; the message says what to do."""


def roots() -> tuple[Path, ...]:
    """Return the folders of the host that a sandbox can see."""
    places = ["/usr", *default_view().folders, *(f"/{name}" for name in SYSTEM_LINKS if not os.path.islink(f"/{name}"))]
    return tuple(Path(place) for place in places if os.path.isdir(place))


def walk(folders: Iterable[Path]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what ``os.walk`` yields of each of ``folders``. Raises :class:`SearchFailed` if it takes too long."""
    end = monotonic() + SEARCH_S
    for folder in folders:
        for step in os.walk(folder):
            if monotonic() > end:
                raise SearchFailed(f"{folder} was not searched within {SEARCH_S:g} s: try again, or make it smaller")
            yield step


@lru_cache(maxsize=1)
def libraries() -> tuple[Path, ...]:
    """Return the standard libraries below :func:`roots`: the folders with an ``os.py`` and a ``types.py``. Raises
    :class:`SearchFailed`."""
    return tuple(Path(folder) for folder, _, files in walk(roots()) if {"os.py", "types.py"} <= {*files})


@lru_cache(maxsize=64)
def holders(source: str, folders: tuple[Path, ...] | None = None) -> tuple[str, ...]:
    """Return the Python files below ``folders`` (unless given, :func:`roots`) that have a copy of a function of
    ``source``, which is its name and at least half of its lines, and their bytecode. Raises :class:`SearchFailed`, and
    ``SyntaxError`` for a source that cannot be parsed."""
    wanted = _lines_of_functions(source)
    if not wanted:
        return ()
    names = "|".join(sorted(map(re.escape, wanted)))
    places = [str(each) for each in (roots() if folders is None else folders)]
    command = ["grep", "-rlsE", "--include=*.py", "-e", rf"def ({names})[[:space:]]*\(", "--", *places]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SEARCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SearchFailed(f"{', '.join(places)} could not be searched for copies by grep: {error}") from error
    if done.returncode < 0:  # 2 says that a file could not be read, which is then none that a sandbox could read
        raise SearchFailed(
            f"grep was ended by signal {-done.returncode} while it searched {', '.join(places)}: try again"
        )
    found = [path for path in map(Path, map(os.fsdecode, done.stdout.splitlines())) if _has_copy(path, wanted)]
    bytecode = [each for path in found for pattern in _BYTECODE for each in path.parent.glob(pattern.format(path.stem))]
    return tuple(sorted(map(str, [*found, *bytecode])))


def _lines_of_functions(source: str) -> dict[str, list[set[str]]]:
    """Name of a function, without those of its classes → the lines of each function of that name, see
    :func:`_lines`."""
    lines = source.splitlines()
    found: dict[str, list[set[str]]] = {}
    for feature in features(source):
        own = _lines(lines[feature.start - 1 : feature.end])
        if len(own) >= LEAST_SAME:
            found.setdefault(feature.name.rpartition(".")[2], []).append(own)
    return found


def _lines(lines: list[str]) -> set[str]:
    """Lines of code without indentation, comments and docstrings, as far as one line shows it."""
    text = "\n".join(lines)
    try:
        tree = ast.parse("if True:\n" + text if text[:1].isspace() else text)
    except SyntaxError:
        return {line.strip() for line in lines} - {""}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    docs = {
        line.strip()
        for node in nodes
        if (doc := ast.get_docstring(node, clean=False)) is not None
        for line in f'"""{doc}"""'.splitlines()
    }
    code = {line.strip() for line in lines}
    return {line for line in code - docs if len(line) > 4 and not line.startswith(("#", "def ", "async def ", "@"))}


def _has_copy(path: Path, wanted: dict[str, list[set[str]]]) -> bool:
    """Whether the file has a copy of one of the functions."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return True
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return False  # not readable, so not by a sandbox, which has fewer rights
    there = {line.strip() for line in text.splitlines()}
    return any(
        len(own & there) >= max(LEAST_SAME, SAME_SHARE * len(own))
        for name, each in wanted.items()
        if f"def {name}" in text
        for own in each
    )
