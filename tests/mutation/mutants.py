"""Mutants: one small change of a line each, by Cosmic Ray's operators, drawn by a seed.

tests/…/kimi.py:21   mask = log_ratio > low   →   mask = log_ratio >= low
"""

import ast
import difflib
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.beside import installed

REQUIREMENTS = Path(__file__).parent / "cosmic_ray.txt"

_LEFT_OUT = re.compile(
    r"VariableReplacer|VariableInserter"  # want arguments
    r"|ExceptionReplacer"  # fails on an exception with a dot in its name
    r"|RemoveDecorator|_Bit|Shift|_Is"  # detected by any import or any number: they inflate the share
)
"""Operators that are not used."""


@dataclass(frozen=True, slots=True)
class Place:
    """A possible change of a file."""

    path: str
    """The file, from the root of the tree."""
    line: int
    """Line of the change."""
    operator: str
    """Cosmic Ray's name of the change."""
    occurrence: int
    """Number of the place among those of this operator in the file."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one change."""

    place: Place
    """The change."""
    code: str
    """The whole file, changed."""
    diff: str
    """The lines that differ."""


def places_in(root: Path, path: str) -> list[Place]:
    """Every place of a file where an operator can change it."""
    operators = _operators()
    from cosmic_ray.ast import get_ast

    nodes = list(_walk(get_ast((root / path).read_text())))
    found = []
    for name, operator in operators.items():
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        found += [Place(path, line, name, occurrence) for occurrence, (line, _) in enumerate(starts)]
    return found


def draw(root: Path, places: list[Place], number: int, seed: int) -> list[Mutant]:
    """``number`` mutants, no two of one line, deterministic by seed. Changes of an annotation or a docstring alone do
    not count.
    """
    chance = random.Random(seed)
    by_line: dict[tuple[str, int], list[Place]] = {}
    for place in places:
        by_line.setdefault((place.path, place.line), []).append(place)
    lines = sorted(by_line)
    chance.shuffle(lines)
    drawn: list[Mutant] = []
    for line in lines:
        if len(drawn) == number:
            break
        mutant = _mutant(root, chance.choice(by_line[line]))
        if mutant is not None:
            drawn.append(mutant)
    return sorted(drawn, key=lambda mutant: (mutant.place.path, mutant.place.line))


def _walk(node: Any) -> Iterator[Any]:
    """``node`` and all below it, in the order in which Cosmic Ray counts occurrences."""
    yield node
    for child in getattr(node, "children", ()):
        yield from _walk(child)


@cache
def _operators() -> dict[str, Any]:
    sys.path.append(str(installed(REQUIREMENTS)))
    from cosmic_ray.plugins import get_operator, operator_names

    return {name: get_operator(name)() for name in operator_names() if not _LEFT_OUT.search(name)}


def _mutant(root: Path, place: Place) -> Mutant | None:
    """The mutant of ``place``; ``None`` where it means what the original means, or is no Python."""
    from cosmic_ray.mutating import mutate_code

    original = (root / place.path).read_text()
    code: str | None = mutate_code(original, _operators()[place.operator], place.occurrence)
    if code is None or _meaning(code) in (None, _meaning(original)):
        return None
    return Mutant(place, code, _diff(original, code))


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def _meaning(code: str) -> str | None:
    """The code's tree without annotations and bare constants; ``None`` where it is no Python."""
    try:
        return ast.dump(_WithoutAnnotations().visit(ast.parse(code)))
    except SyntaxError:
        return None


def _diff(original: str, code: str) -> str:
    lines = difflib.unified_diff(original.splitlines(), code.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
