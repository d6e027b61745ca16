"""The work on a value is bounded: by the limit of its text, and by a multiple of it for work without text."""

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pytest

from headrace.agents.json_form import JsonForm, TooLarge
from tests.agents.host_objects import LIMIT

LARGE: dict[str, Callable[[], Any]] = {
    "text": lambda: "x" * 5_000_000,
    "text deep inside": lambda: {"a": [{"b": "x" * 5_000_000}]},
    "integers": lambda: list(range(800_000)),
    "a dict": lambda: dict.fromkeys(range(800_000)),
    "a set": lambda: set(range(800_000)),
    "bytes": lambda: b"x" * 5_000_000,
    "numpy": lambda: np.zeros((1_000, 1_000)),
    "an array": lambda: array("d", bytes(8_000_000)),
    "a key": lambda: {"x" * 5_000_000: 1},
    "the same thing over and over": lambda: billion_laughs(),
}


def billion_laughs() -> list[Any]:
    value: list[Any] = ["ha"]
    for _ in range(30):
        value = [value] * 10
    return value


@pytest.mark.parametrize("kind", LARGE)
def test_the_text_of_a_large_value_stops_at_the_limit(kind: str) -> None:
    """The text stays within the limit, whatever the value."""
    value = LARGE[kind]()
    form = JsonForm(10_000)
    with pytest.raises(TooLarge):
        form.text(value)
    assert sum(map(len, form._parts)) <= 10_000


@dataclass(frozen=True)
class Cell:
    row: int


class Wide:
    """A class with many fields that have no value."""

    __slots__ = tuple(f"f{number}" for number in range(2_000))
    __dataclass_fields__ = dict.fromkeys(__slots__)


def steps(value: Any) -> int:
    """Count the lines of Python and calls of C for a text, up to its end or to :class:`TooLarge`."""
    count = 0

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    form = JsonForm(LIMIT)
    sys.settrace(line)
    sys.setprofile(call)
    try:
        form.text(value)
    except TooLarge:
        pass
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return count


KEYS: dict[str, Callable[[int], Any]] = {
    "text": str,
    "an integer": lambda number: number,
    "a large integer": lambda number: 10**30 + number,
    "a number": lambda number: number + 0.5,
    "not a number": lambda number: float("nan"),
    "a complex number": lambda number: complex(number, 1),
    "bytes": lambda number: str(number).encode(),
    "bytes that are no text": lambda number: b"\xff" + str(number).encode(),
    "a tuple": lambda number: (number, number),
    "a frozenset": lambda number: frozenset([number]),
    "a dataclass": Cell,
    "an object": lambda number: object(),
    "an exception": lambda number: ValueError(number),
    "a date": lambda number: date.fromordinal(number + 1),
    "numpy": lambda number: np.int64(number),
    "text that looks like a number that was given": lambda number: "<tuple>" if not number else f"<tuple> ({number})",
}


@pytest.mark.parametrize("kind", KEYS)
def test_work_is_linear_in_the_number_of_keys(kind: str) -> None:
    few, many = (steps({KEYS[kind](number): 1 for number in range(size)} | {(1, 1): 2}) for size in (200, 800))
    assert many < 5 * few, (few, many)


def test_the_content_of_a_key_is_not_read() -> None:
    big = tuple(range(100_000))
    assert steps({(number, big): 1 for number in range(20)}) < 1.5 * steps({(number, (1,)): 1 for number in range(20)})


THROWN_AWAY: dict[str, Callable[[], Any]] = {
    "bytes that are no text": lambda: [b"x" * 500_000 + b"\xff"] * 20_000,
    "keys of bytes that are no text": lambda: [{b"x" * 500_000 + b"\xff": 1}] * 20_000,
    "fields without a value": lambda: [Wide()] * 200_000,
}


@pytest.mark.parametrize("kind", THROWN_AWAY)
def test_work_without_text_is_limited(kind: str) -> None:
    with pytest.raises(TooLarge):
        JsonForm(LIMIT // 8).text(THROWN_AWAY[kind]())
