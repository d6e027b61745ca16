"""A small Python repository as a value: source files of one-line functions, a file of constants, a file of tests.

    billing.py    # charge : x times rate          what charge shall compute
                  def charge ( x ) : return x * 7
    constants.txt rate 7

Functions contain numbers, so a repair needs the other file. Files are immutable; an edit returns another repository.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.agents.coder.vocabulary import NEWLINE, TESTS_FILE

Line = tuple[str, ...]
"""The words of a line."""

_BEFORE_NAMES = (("#",), ("def",))


@dataclass(frozen=True, slots=True)
class Repository:
    """Files by name, each a tuple of lines."""

    files: Mapping[str, tuple[Line, ...]]

    def text(self, path: str) -> bytes:
        """Return a file as Python source. Raises ``KeyError`` for an unknown path."""
        return "".join(" ".join(line) + "\n" for line in self.files[path]).encode()

    def texts(self) -> dict[str, bytes]:
        """Return every file as Python source."""
        return {path: self.text(path) for path in self.files}

    def words(self, path: str) -> tuple[str, ...]:
        """Return the words of a file, its lines separated by ``<nl>``."""
        words: list[str] = []
        for line in self.files[path]:
            words += (*((NEWLINE,) if words else ()), *line)
        return tuple(words)

    def lines_about(self, name: str) -> list[tuple[str, Line]]:
        """Return (path, line) of each line that defines ``name``: the comment and the code of a function, or a constant
        with its number. Tests define nothing."""
        return [
            (path, line)
            for path, lines in self.files.items()
            if path != TESTS_FILE
            for line in lines
            if line[:1] == (name,) or (line[:1] in _BEFORE_NAMES and line[1:2] == (name,))
        ]

    def edited(self, path: str, function: str, body: Line) -> "Repository":
        """Return the repository with ``function`` of the file ``path`` replaced; a missing one is added.

        It is added below the comment that specifies it, otherwise at the end. Raises ``KeyError`` for an unknown path.
        """
        line = (*signature(function), *body)
        kept: list[Line] = []
        place = None
        for old in self.files[path]:
            if old[: len(signature(function))] == signature(function):
                place = len(kept)
                continue
            kept.append(old)
            if place is None and old[:2] == ("#", function):
                place = len(kept)
        kept.insert(len(kept) if place is None else place, line)
        return replace(self, files={**self.files, path: tuple(kept)})

    def without(self, path: str, function: str) -> "Repository":
        """Return the repository without ``function`` in the file ``path``; its specification stays."""
        kept = tuple(line for line in self.files[path] if line[:2] != ("def", function))
        return replace(self, files={**self.files, path: kept})


def signature(function: str) -> Line:
    """Return the words before a function's body."""
    return ("def", function, "(", "x", ")", ":")
