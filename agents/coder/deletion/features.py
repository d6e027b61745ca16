"""Functions and methods of a module that can be deleted from its source.

features("class A:\n    def f(self): …")  →  [Feature("A.f", 2, 2)]
without(source, feature)                  →  the source without those lines
"""

import ast
from dataclasses import dataclass

LEAST_LINES = 3
"""Shorter functions are not worth a task."""
MOST_LINES = 60


@dataclass(frozen=True, slots=True)
class Feature:
    """A function of a source file."""

    name: str
    """Name with those of the classes around it: ``TextWrapper._split``."""
    start: int
    """First line, from 1, with decorators."""
    end: int
    """Last line."""

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.end - self.start + 1


def features(source: str) -> list[Feature]:
    """Return the functions and methods of ``source`` of 3 to 60 lines, in order; none that are nested in functions.

    A method that is the only statement of its class is not among them: without it the file is no valid Python. Raises
    ``SyntaxError``.
    """
    found: list[Feature] = []

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if len(body) > 1:
                    start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    feature = Feature(f"{prefix}{node.name}", start, node.end_lineno or node.lineno)
                    if LEAST_LINES <= feature.lines <= MOST_LINES:
                        found.append(feature)
                case ast.ClassDef():
                    walk(node.body, f"{prefix}{node.name}.")
                case _:
                    pass

    walk(ast.parse(source).body, "")
    return found


def without(source: str, feature: Feature) -> str:
    """Return ``source`` without the lines of ``feature``."""
    lines = source.splitlines(keepends=True)
    return "".join([*lines[: feature.start - 1], *lines[feature.end :]])
