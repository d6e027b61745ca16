"""Reading a host's values runs none of the host's code and changes none of its objects."""

import asyncio
import io
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pydantic import BaseModel, Field, field_serializer

from headrace.agents.json_form import JsonForm
from tests.agents.host_objects import (
    LIMIT,
    Model,
    WithAttrs,
    WithField,
    WithSlots,
    described,
    plain,
)


@contextmanager
def managed() -> Iterator[int]:
    yield 1


class Watched:
    """Records every use."""

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
    """Pretends to be something else, like Django's lazy objects: reading its ``__class__`` would evaluate it."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AssertionError("evaluated")


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
def test_values_with_side_effects_are_described_at_any_position(kind: str, place: Callable[[Any], Any]) -> None:
    value = SIDE_EFFECTS[kind]()
    form = JsonForm(LIMIT)
    text = form.text(place(value))
    assert f'{{"unserialisable":"{kind}"}}' in text
    assert form.altered["unserialisable"] == 1 + text.startswith('{"unserialisable":"ValueError"')
    if kind == "Watched":
        assert object.__getattribute__(value, "uses") == []
    if kind in ("generator", "list_iterator", "map", "filter", "StringIO"):
        assert len(list(value)) == 2, "the host can still read all of it"


def test_a_coroutine_is_not_awaited_and_a_file_is_not_read(tmp_path: Path) -> None:
    coroutine = nothing()
    assert plain([coroutine]) == [described("coroutine")]
    asyncio.run(coroutine)
    (tmp_path / "a").write_text("line")
    with (tmp_path / "a").open() as file:
        assert plain({"f": file}) == {"f": described("TextIOWrapper")}
        assert file.read() == "line"


def test_excluded_and_self_serialised_fields_of_a_model_are_not_read() -> None:
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


class HostsZone(tzinfo):
    def utcoffset(self, _: Any) -> timedelta:
        raise AssertionError("the host's code ran")

    dst = tzname = utcoffset  # type: ignore[assignment]


def test_a_time_zone_of_the_host_s_own_class_does_not_run() -> None:
    assert plain(datetime(2026, 1, 2, 3, tzinfo=HostsZone())) == described(
        "datetime", text="2026-01-02T03:00:00", reason="time zone"
    )
    assert plain(datetime(2026, 1, 2, 3, tzinfo=HostsZone()).timetz()) == described(
        "time", text="03:00:00", reason="time zone"
    )
    assert plain(datetime(2026, 7, 2, tzinfo=ZoneInfo("Europe/Berlin"))) == "2026-07-02T00:00:00+02:00"


def test_concurrent_changes_of_a_value_are_harmless() -> None:
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
