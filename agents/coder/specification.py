"""What a function of the grammar shall compute, as words, as a value, and as Python.

words     x times rate             larger of x and size            (rate = 7, size = 2)
Python    return x * 7             return max ( x , 2 )
value     f(3) = 21                f(3) = 3
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Operation(StrEnum):
    """What is done with x and a constant."""

    TIMES = "times"
    PLUS = "plus"
    MINUS = "minus"
    LARGER = "larger"
    """The larger of the two."""
    SMALLER = "smaller"


SYMBOLS = {Operation.TIMES: "*", Operation.PLUS: "+", Operation.MINUS: "-"}
CALLS = {Operation.LARGER: "max", Operation.SMALLER: "min"}
NUMBERS = tuple(range(2, 10))
"""Values of constants."""


@dataclass(frozen=True, slots=True)
class Specification:
    """An operation on x and a constant."""

    operation: Operation
    constant: str
    """Its name; the number is in the file of constants."""

    @property
    def words(self) -> tuple[str, ...]:
        """The comment that states it: ``larger of x and rate``."""
        if self.operation in CALLS:
            return (str(self.operation), "of", "x", "and", self.constant)
        return ("x", str(self.operation), self.constant)

    @property
    def is_held_out(self) -> bool:
        """Whether only held-out tasks may ask for it: one operation of each constant, chosen by a hash of its name."""
        return tuple(Operation)[hashlib.sha256(self.constant.encode()).digest()[0] % len(Operation)] is self.operation


def value(spec: Specification, x: int, constants: Mapping[str, int]) -> int:
    """Return what ``spec`` asks for at ``x``."""
    number = constants[spec.constant]
    match spec.operation:
        case Operation.TIMES:
            return x * number
        case Operation.PLUS:
            return x + number
        case Operation.MINUS:
            return x - number
        case Operation.LARGER:
            return max(x, number)
        case Operation.SMALLER:
            return min(x, number)


def body(operation: Operation, number: int) -> tuple[str, ...]:
    """Return the Python words of a function that computes ``operation`` of x and ``number``: ``return x * 7``."""
    if operation in CALLS:
        return ("return", CALLS[operation], "(", "x", ",", str(number), ")")
    return ("return", "x", SYMBOLS[operation], str(number))


def draw(rng: Random, constants: tuple[str, ...]) -> Specification:
    """Return a random specification over ``constants``, of which there must be at least one."""
    return Specification(rng.choice(tuple(Operation)), rng.choice(constants))


def mutant(operation: Operation, number: int, rng: Random) -> tuple[str, ...]:
    """Return the body of ``operation`` and ``number`` with one mistake: in the operation, or in the number.

    It may be equivalent to the original on few inputs; the caller compares values.
    """
    if rng.random() < 0.5:
        return body(operation, rng.choice([other for other in NUMBERS if other != number]))
    return body(rng.choice([other for other in Operation if other is not operation]), number)
