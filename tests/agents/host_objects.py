"""Objects of a host with plain content, and their JSON form."""

import json
from dataclasses import dataclass, field
from typing import Any

import attrs
from pydantic import BaseModel

from headrace.agents.json_form import JsonForm

LIMIT = 1_000_000


def plain(value: Any) -> Any:
    return json.loads(JsonForm(LIMIT).text(value))


def described(kind: str, **more: Any) -> dict[str, Any]:
    return {"unserialisable": kind, **more}


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
