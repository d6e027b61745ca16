"""The host's values stay the host's: what has side effects is described, what is large is not read, nothing raises."""

import asyncio
import io
import itertools
import json
import math
import random
import sys
import time
import warnings
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, field_serializer

from headrace.agents.json_form import MAX_DEPTH, JsonForm, TooLarge

LIMIT = 1_000_000


def plain(value: Any) -> Any:
    return json.loads(JsonForm(LIMIT).text(value))


def described(kind: str, **more: Any) -> dict[str, Any]:
    return {"unserialisable": kind, **more}


@contextmanager
def managed() -> Iterator[int]:
    yield 1


class Watched:
    """Notes every use that is made of it."""

    def __init__(self) -> None:
        object.__setattr__(self, "uses", [])

    def _used(self, *arguments: Any) -> Any:
        object.__getattribute__(self, "uses").append(arguments)
        raise AssertionError("the host's code ran")

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "_used")(name)

    __iter__ = __len__ = __repr__ = __str__ = __bool__ = __getitem__ = __index__ = __float__ = __next__ = _used
    __eq__ = __enter__ = __fspath__ = _used  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Lazy:
    """Claims to be something else, as Django's lazy objects do: asking for its class would evaluate it."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AssertionError("evaluated")


class Overridden(dict[str, int]):
    """A dict whose methods have side effects."""

    def items(self) -> Any:
        raise AssertionError("the host's code ran")

    __iter__ = __len__ = __getitem__ = keys = values = items


class OverriddenList(list[int]):
    """A list whose methods have side effects."""

    def __iter__(self) -> Any:
        raise AssertionError("the host's code ran")

    __len__ = __getitem__ = __iter__


async def nothing() -> None: ...


async def stream() -> Any:
    yield 1


SIDE_EFFECTS: dict[str, Callable[[], Any]] = {
    "generator": lambda: (n for n in [1, 2]),
    "list_iterator": lambda: iter([1, 2]),
    "map": lambda: map(str, [1, 2]),
    "filter": lambda: filter(None, [1, 2]),
    "zip": lambda: zip([1], [2], strict=True),
    "enumerate": lambda: enumerate([1]),
    "count": itertools.count,
    "cycle": lambda: itertools.cycle([1]),
    "repeat": lambda: itertools.repeat(1),
    "StringIO": lambda: io.StringIO("a\nb"),
    "_GeneratorContextManager": managed,
    "async_generator": stream,
    "Watched": Watched,
    "Lazy": Lazy,
    "object": object,
    "function": lambda: managed,
    "mappingproxy": lambda: type.__dict__["__dict__"].__get__(Watched),
}


@pytest.mark.parametrize("kind", SIDE_EFFECTS)
@pytest.mark.parametrize(
    "place",
    [
        lambda value: value,
        lambda value: [1, value, "a"],
        lambda value: {"a": {"b": (value,)}},
        lambda value: {"a": deque([value])},
        lambda value: WithField(value),
        lambda value: WithSlots(value),
        lambda value: WithAttrs(value),
        lambda value: Model(content=value),
        lambda value: Model.model_construct(content=1, extra=value),
        lambda value: np.array([value, None], dtype=object) if type(value) not in (Watched, Lazy) else [value],
        lambda value: ValueError("no", value),
    ],
)  # fmt: skip
def test_what_has_side_effects_is_described_wherever_it_stands(kind: str, place: Callable[[Any], Any]) -> None:
    value = SIDE_EFFECTS[kind]()
    form = JsonForm(LIMIT)
    text = form.text(place(value))
    assert f'{{"unserialisable":"{kind}"}}' in text
    assert form.altered["unserialisable"] == 1 + text.startswith('{"unserialisable":"ValueError"')
    if kind == "Watched":
        assert object.__getattribute__(value, "uses") == []
    if kind in ("generator", "list_iterator", "map", "filter", "StringIO"):
        assert len(list(value)) == 2, "the host can still read all of it"


@dataclass
class WithField:
    content: Any
    more: list[int] = field(default_factory=list)


@dataclass(slots=True)
class WithSlots:
    content: Any


@attrs.define
class WithAttrs:
    content: Any


class Model(BaseModel, arbitrary_types_allowed=True, extra="allow"):
    content: Any


def test_a_coroutine_is_not_awaited_and_a_file_is_not_read(tmp_path: Path) -> None:
    coroutine = nothing()
    assert plain([coroutine]) == [described("coroutine")]
    asyncio.run(coroutine)
    (tmp_path / "a").write_text("line")
    with (tmp_path / "a").open() as file:
        assert plain({"f": file}) == {"f": described("TextIOWrapper")}
        assert file.read() == "line"


def test_keys_that_are_no_text_become_text_and_none_is_lost() -> None:
    keys = {1: "a", "1": "b", None: "c", 2.5: "e", (1, 2): "f", (3, 4): "g", Color.RED: "h"}
    assert plain(keys) == {
        "1": "a", "1 (2)": "b", "None": "c", "2.5": "e", "<tuple>": "f", "<tuple> (2)": "g", "red": "h"
    }  # fmt: skip
    assert plain({True: 0, frozenset(): 1, UUID(int=1): 2, 2**70: 3, date(2026, 1, 1): 4}) == {
        "true": 0, "<frozenset>": 1, str(UUID(int=1)): 2, str(2**70): 3, "2026-01-01": 4
    }  # fmt: skip


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, -1, 2**63 - 1, -(2**63)], [1, -1, 2**63 - 1, -(2**63)]),
        (2**63, described("int", text=str(2**63))),
        ([1, 2**70], [1, described("int", text=str(2**70))]),
        ([0.5, 1e22, -0.0], [0.5, 1e22, -0.0]),
        (math.inf, described("float", text="inf")),
        ([0.5, -math.inf], [0.5, described("float", text="-inf")]),
        (3 + 1j, described("complex", text="(3+1j)")),
        (range(10**18), described("range", text=f"range(0, {10**18})")),
        (int, described("type", text="int")),
        (b"text", "text"),
        (b"\xff\xfe", described("bytes", length=2)),
        (bytearray(b"ab"), "ab"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=7), str(UUID(int=7))),
        (Path("/a/b"), "/a/b"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(seconds=90), "PT1M30S"),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        ([True, None, ""], [True, None, ""]),
        ((1, "a"), [1, "a"]),
        (Point(1, 2), [1, 2]),
        ({3}, [3]),
        (deque([1, 2]), [1, 2]),
        ({"a": 1}.values(), [1]),
        (Counter("aa"), {"a": 2}),
        (defaultdict(int, a=1), {"a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (array("i", [1, 2]), [1, 2]),
        (np.arange(6).reshape(2, 3), [[0, 1, 2], [3, 4, 5]]),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array(3), 3),
        (np.longdouble(1), described("longdouble")),
        (WithField({"a": 1}, [2]), {"content": {"a": 1}, "more": [2]}),
        (WithSlots((1,)), {"content": [1]}),
        (WithAttrs(1), {"content": 1}),
        (Model(content={1}, more="b"), {"content": [1], "more": "b"}),
        (RootModel[list[int]]([1]), [1]),
        (Overridden(a=1), {"a": 1}),
        (OverriddenList([1, 2]), [1, 2]),
        (ValueError("no", 3), described("ValueError", arguments=["no", 3])),
        ([], []),
        ({}, {}),
    ],
)  # fmt: skip
def test_what_is_plain_is_sent_as_it_is(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_an_integer_that_takes_long_to_write_out_is_not_written_out() -> None:
    assert plain(1 << 100_000) == described("int", text="100001 bits")


def test_a_model_keeps_its_secrets() -> None:
    class Secretive(BaseModel):
        name: str
        password: str = Field(exclude=True)
        card: str

        @field_serializer("card")
        def _masked(self, card: str) -> str:
            return "****"

    assert plain(Secretive(name="ada", password="p", card="4111")) == {
        "name": "ada",
        "card": described("str", reason="own serialiser"),
    }


def test_a_property_is_not_run() -> None:
    @dataclass(init=False)
    class Odd:
        content: int

        @property
        def content(self) -> int:  # type: ignore[no-redef]
            raise AssertionError("the host's code ran")

    assert plain(Odd()) == {"content": described("property")}


def test_a_container_that_holds_itself_ends_at_itself() -> None:
    loop: list[Any] = [1]
    loop.append({"again": loop})
    assert plain(loop) == [1, {"again": described("list", reason="cycle")}]
    same = [1]
    assert plain([same, same]) == [[1], [1]], "twice is no cycle"
    holder = WithField(None)
    holder.content = holder
    assert plain(holder)["content"] == described("WithField", reason="cycle")
    error = ValueError()
    error.args = (error,)
    assert plain(error)["unserialisable"] == "ValueError"


def test_nesting_ends_at_a_depth() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    found = plain(value)
    for _ in range(MAX_DEPTH):
        (found,) = found
    assert found == described("list", reason="depth")


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
def test_what_has_no_room_is_left_alone_at_the_price_of_its_room(kind: str) -> None:
    """The work is bounded by the room, whatever the value: a hundredth of the room costs at most a fraction."""
    value = LARGE[kind]()
    form = JsonForm(10_000)
    with pytest.raises(TooLarge):
        form.text(value)
    assert sum(map(len, form._parts)) <= 10_000


@dataclass(frozen=True)
class Cell:
    row: int


class Wide:
    """A class with more fields than any text of it shows."""

    __slots__ = tuple(f"f{number}" for number in range(2_000))
    __dataclass_fields__ = dict.fromkeys(__slots__)


def steps(value: Any) -> int:
    """Lines of Python and calls of C that a text takes, up to the end or to :class:`TooLarge`."""
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
def test_twice_as_many_keys_are_twice_the_work(kind: str) -> None:
    few, many = (steps({KEYS[kind](number): 1 for number in range(size)} | {(1, 1): 2}) for size in (200, 800))
    assert many < 5 * few, (few, many)


def test_what_a_key_holds_is_not_looked_into() -> None:
    big = tuple(range(100_000))
    assert steps({(number, big): 1 for number in range(20)}) < 1.5 * steps({(number, (1,)): 1 for number in range(20)})


THROWN_AWAY: dict[str, Callable[[], Any]] = {
    "bytes that are no text": lambda: [b"x" * 500_000 + b"\xff"] * 20_000,
    "keys of bytes that are no text": lambda: [{b"x" * 500_000 + b"\xff": 1}] * 20_000,
    "fields without a value": lambda: [Wide()] * 200_000,
}


@pytest.mark.parametrize("kind", THROWN_AWAY)
def test_what_is_read_and_not_sent_is_bounded_as_well(kind: str) -> None:
    with pytest.raises(TooLarge):
        JsonForm(LIMIT).text(THROWN_AWAY[kind]())


class HostsZone(tzinfo):
    def utcoffset(self, _: Any) -> timedelta:
        raise AssertionError("the host's code ran")

    dst = tzname = utcoffset  # type: ignore[assignment]


def test_a_time_zone_of_the_host_s_own_is_not_asked() -> None:
    assert plain(datetime(2026, 1, 2, 3, tzinfo=HostsZone())) == described(
        "datetime", text="2026-01-02T03:00:00", reason="time zone"
    )
    assert plain(datetime(2026, 1, 2, 3, tzinfo=HostsZone()).timetz()) == described(
        "time", text="03:00:00", reason="time zone"
    )
    assert plain(datetime(2026, 7, 2, tzinfo=ZoneInfo("Europe/Berlin"))) == "2026-07-02T00:00:00+02:00"


def test_a_host_that_changes_its_value_meanwhile_does_no_harm() -> None:
    value: dict[str, Any] = {"list": list(range(10_000)), "dict": {str(n): n for n in range(1_000)}}
    pauses = iter(range(10**9))

    def change(_: float) -> None:
        chance = random.Random(next(pauses))
        value["dict"][str(chance.random())] = 1
        del value["list"][chance.randrange(len(value["list"]) - 1) :]
        value["list"] += [None] * chance.randrange(5_000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", change)
        for _ in range(20):
            assert set(plain(value)) == {"list", "dict"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.decimals(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.binary(), inner)
        | st.builds(WithSlots, inner)
        | st.builds(iter, st.lists(inner))
    ),
    max_leaves=30,
)


@given(values)
def test_every_value_has_a_form_that_any_reader_takes(value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = JsonForm(LIMIT).text(value)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def int64(digits: str) -> int:
        assert -(2**63) <= int(digits) < 2**63
        return int(digits)

    json.loads(text, parse_constant=refuse, parse_int=int64)


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=50,
))  # fmt: skip
def test_json_is_itself(value: Any) -> None:
    form = JsonForm(LIMIT)
    assert json.loads(form.text(value)) == value
    assert not form.altered
