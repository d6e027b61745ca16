"""Every value has a JSON form that any reader accepts."""

import json
import math
import warnings
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import RootModel

from headrace.agents.json_form import MAX_DEPTH, JsonForm
from tests.agents.host_objects import (
    LIMIT,
    Model,
    Overridden,
    OverriddenList,
    WithAttrs,
    WithField,
    WithSlots,
    described,
    plain,
)


def test_other_keys_become_distinct_texts() -> None:
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
def test_plain_values_are_unchanged(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_a_very_large_integer_is_described_by_its_size() -> None:
    assert plain(1 << 100_000) == described("int", text="100001 bits")


def test_a_container_that_contains_itself_is_described() -> None:
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


def test_nesting_is_limited() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    found = plain(value)
    for _ in range(MAX_DEPTH):
        (found,) = found
    assert found == described("list", reason="depth")


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
def test_every_value_has_a_form_that_any_reader_accepts(value: Any) -> None:
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
def test_json_is_unchanged(value: Any) -> None:
    form = JsonForm(LIMIT)
    assert json.loads(form.text(value)) == value
    assert not form.altered
