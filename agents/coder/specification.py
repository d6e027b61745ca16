"""What a function of the grammar shall compute, as words, as a value, and as Python.

    words     x times rate plus size            (rate = 7, size = 2)
    Python    return x * 7 + 2
    value     f(3) = 23

Steps apply from left to right, whatever Python's precedence: "x plus size times rate" is ``( x + 2 ) * 7``.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

HELD_OUT_SHARE = 4
"""One specification in this many is held out."""

OPERATORS = {"times": "*", "plus": "+", "minus": "-"}


class Start(StrEnum):
    """Where a function starts."""

    X = "x"
    CALL = "of"
    """Another function of x: ``fee of x``."""
    LARGER = "larger"
    """The larger of x and a constant."""
    SMALLER = "smaller"


@dataclass(frozen=True, slots=True)
class Specification:
    """A start and one or two steps."""

    start: Start
    operand: str
    """The constant or the function of the start; empty for ``Start.X``."""
    steps: tuple[tuple[str, str], ...]
    """(operator word, constant) from left to right."""

    @property
    def words(self) -> tuple[str, ...]:
        """The comment that states it: ``larger of x and rate plus size``."""
        match self.start:
            case Start.X:
                first: tuple[str, ...] = ("x",)
            case Start.CALL:
                first = (self.operand, "of", "x")
            case Start.LARGER | Start.SMALLER:
                first = (str(self.start), "of", "x", "and", self.operand)
        return (*first, *(word for step in self.steps for word in step))

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the constants whose values it needs, in order."""
        bound = (self.operand,) if self.start in (Start.LARGER, Start.SMALLER) else ()
        return (*bound, *(constant for _, constant in self.steps))

    @property
    def is_held_out(self) -> bool:
        """Whether only held-out tasks may ask for it; decided by a hash of its words, without the callee's name."""
        shape = replace(self, operand="" if self.start is Start.CALL else self.operand)
        return hashlib.sha256(" ".join(shape.words).encode()).digest()[0] % HELD_OUT_SHARE == 0


def value(spec: Specification, x: int, constants: Mapping[str, int], call: Callable[[str, int], int]) -> int:
    """Return what ``spec`` asks for at ``x``. ``call``: value of another function by its name."""
    match spec.start:
        case Start.X:
            result = x
        case Start.CALL:
            result = call(spec.operand, x)
        case Start.LARGER:
            result = max(x, constants[spec.operand])
        case Start.SMALLER:
            result = min(x, constants[spec.operand])
    for operator, constant in spec.steps:
        operand = constants[constant]
        result = {"times": result * operand, "plus": result + operand, "minus": result - operand}[operator]
    return result


def body(spec: Specification, constants: Mapping[str, int]) -> tuple[str, ...]:
    """Return the Python words of a function that computes ``spec``: ``return ( x + 2 ) * 7``."""
    match spec.start:
        case Start.X:
            words: tuple[str, ...] = ("x",)
        case Start.CALL:
            words = (spec.operand, "(", "x", ")")
        case Start.LARGER:
            words = ("max", "(", "x", ",", str(constants[spec.operand]), ")")
        case Start.SMALLER:
            words = ("min", "(", "x", ",", str(constants[spec.operand]), ")")
    for position, (operator, constant) in enumerate(spec.steps):
        if operator == "times" and position and spec.steps[position - 1][0] != "times":
            words = ("(", *words, ")")
        words = (*words, OPERATORS[operator], str(constants[constant]))
    return ("return", *words)


def draw(rng: Random, constants: tuple[str, ...], callees: tuple[str, ...]) -> Specification:
    """Return a random specification over ``constants`` that may call one of ``callees``."""
    starts = (Start.X, Start.X, Start.LARGER, Start.SMALLER, *((Start.CALL,) if callees else ()))
    start = rng.choice(starts)
    operand = rng.choice(callees) if start is Start.CALL else rng.choice(constants) if start is not Start.X else ""
    count = 2 if start is Start.X else 1
    return Specification(
        start, operand, tuple((rng.choice(tuple(OPERATORS)), rng.choice(constants)) for _ in range(count))
    )


def mutant(spec: Specification, constants: Mapping[str, int], rng: Random) -> tuple[str, ...]:
    """Return the body of ``spec`` with one mistake: an operator, a number, ``max`` for ``min``, or a missing step.

    It may be equivalent to the original; the caller compares values.
    """
    words = list(body(spec, constants))
    places = [place for place, word in enumerate(words) if word in "*+-" or word in ("max", "min") or word.isdigit()]
    if spec.start is not Start.X and rng.random() < 0.2:
        return tuple(body(replace(spec, start=Start.X, operand=""), constants))
    place = rng.choice(places)
    word = words[place]
    if word.isdigit():
        words[place] = str(rng.choice([number for number in range(2, 10) if number != int(word)]))
    elif word in ("max", "min"):
        words[place] = "min" if word == "max" else "max"
    else:
        words[place] = rng.choice([operator for operator in "*+-" if operator != word])
    return tuple(words)
