"""Functions and methods of a module that can be deleted from its source.

features("class A:\n    def f(self): …")  →  [Feature("A.f", 2, 2)]
without(source, feature)                  →  the source without those lines, and without its line in ``__all__``
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
    """Return ``source`` without the lines of ``feature``, and without the line of ``__all__`` that has only its name:
    a package that imports the module's names by ``*`` could not be loaded otherwise."""
    gone = {*range(feature.start, feature.end + 1), *_exports(source, feature.name)}
    return "".join(line for number, line in enumerate(source.splitlines(keepends=True), 1) if number not in gone)


def _exports(source: str, name: str) -> set[int]:
    """Lines of ``__all__`` that hold nothing but ``name``."""
    lines = source.splitlines()
    found = set[int]()
    if "." in name or not {f"'{name}'", f'"{name}"'} & {line.strip().rstrip(",") for line in lines}:
        return found
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names) | ast.Tuple(elts=names)):
                found |= {
                    each.lineno
                    for each in names
                    if isinstance(each, ast.Constant)
                    and each.value == name
                    and lines[each.lineno - 1].strip().rstrip(",") == ast.get_source_segment(source, each)
                }
            case _:
                pass
    return found
