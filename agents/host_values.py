"""Reads the content of a host's values without running any of the host's code.

Every function here reads the storage of a base class (``list.__getitem__``, ``object.__getattribute__``, slots), never
a method, property or iterator that the host's class may override. ``json_form`` writes what they return.
"""

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from datetime import time as time_of_day
from types import MemberDescriptorType
from typing import Any, Final, cast

from pydantic import BaseModel

SLICE = 1_024
"""Items of a list that are read in one step. The GIL may be released between slices, so the host's threads can run."""

MAX_CLASSES = 16
"""Number of base classes above which searching them counts towards the work limit."""

classes_of = cast(Callable[[type], tuple[type, ...]], type.__dict__["__mro__"].__get__)
"""Returns a class and its base classes, in method resolution order."""

qualified_name = cast(Callable[[type], str], type.__dict__["__qualname__"].__get__)
"""Returns the qualified name of a class, whatever its metaclass defines."""

exception_arguments = cast(Callable[[BaseException], tuple[Any, ...]], BaseException.__dict__["args"].__get__)
"""Returns the arguments of an exception."""

_namespace = cast(Callable[[type], dict[str, Any]], type.__dict__["__dict__"].__get__)
_MISSING: Final = object()


def enum_value(value: Any) -> Any:
    """Return the value of an enum member."""
    return object.__getattribute__(value, "_value_")


# Containers: functions that return the length, and that yield the items in slices. A slice, and the list of items of a
# container that cannot be sliced, is read in one step of the interpreter, so that the host may change the container
# meanwhile.


def _sliced(base: Any) -> tuple[Callable[[Any], int], Callable[[Any], Iterator[list[Any]]]]:
    def slices(value: Any) -> Iterator[list[Any]]:
        start = 0
        while items := list(base.__getitem__(value, slice(start, start + SLICE))):
            yield items
            start += SLICE

    return base.__len__, slices


def _whole(base: Any) -> tuple[Callable[[Any], int], Callable[[Any], Iterator[list[Any]]]]:
    def slices(value: Any) -> Iterator[list[Any]]:
        items = list(base.__iter__(value))
        for start in range(0, len(items), SLICE):
            yield items[start : start + SLICE]

    return base.__len__, slices


_UNORDERED: tuple[type, ...] = (set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
SEQUENCES = {base: _sliced(base) for base in (list, tuple, array)} | {
    base: _whole(base)
    for base in (*_UNORDERED, deque)
}  # fmt: skip
"""Length and slices of each kind of sequence, by its builtin class."""

MAPPINGS = frozenset({dict})
"""Builtin classes of mappings."""


def array_size(value: Any, kind: type) -> int | None:
    """Return how many numbers ``value`` holds if it is an object of numpy's or torch's own classes in main memory;
    otherwise ``None``."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return int(value.size)
    torch: Any = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        return int(value.numel())
    return None


# Dates and times.

_CLOCK = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
_MOMENTS: dict[type, tuple[str, ...]] = {datetime: ("year", "month", "day", *_CLOCK), time_of_day: _CLOCK}
_ZONE_LIBRARIES = frozenset({"builtins", "datetime", "zoneinfo", "pytz", "dateutil", "pendulum"})


def moment(value: Any, kind: type) -> tuple[Any, bool]:
    """Return a ``datetime`` or ``time`` of the standard library that equals ``value``, and whether its time zone is
    that of ``value``.

    The offset of a time zone can only be computed by the zone itself, which may be the host's code. So the zone of a
    class that is not from a known library is left out.
    """
    base = datetime if issubclass(kind, datetime) else time_of_day
    parts = {name: getattr(base, name).__get__(value) for name in _MOMENTS[base]}
    complete = parts["tzinfo"] is None or _is_library_zone(type(parts["tzinfo"]))
    return base(**(parts if complete else {**parts, "tzinfo": None})), complete


def _is_library_zone(kind: type) -> bool:
    """Return whether all of a zone's classes come from libraries whose zones compute an offset and nothing else."""
    return all(
        str(_namespace(each).get("__module__", "builtins")).split(".")[0] in _ZONE_LIBRARIES
        for each in classes_of(kind)
    )


# Objects with fields.


class OwnSerialiser:
    """Replaces the value of a field that its model writes by a function of its own, which may hide part of it."""

    def __init__(self, content: Any) -> None:
        self.content = content


def fields_of(value: Any, kind: type, spend: Callable[[int], None]) -> list[tuple[Any, Any]] | None:
    """Return names and values of a dataclass, an attrs class or a pydantic model; ``None`` if ``kind`` is none of them.

    ``spend`` is called with the number of steps that the work takes.
    """
    if issubclass(kind, BaseModel):
        return _model_fields(value, kind, spend)
    names: list[str] | None = None
    if (described := _of_class(kind, "__dataclass_fields__")) is not _MISSING:
        names = list(described)
    elif (described := _of_class(kind, "__attrs_attrs__")) is not _MISSING:
        names = [attribute.name for attribute in described]
    if names is None:
        return None
    spend(len(names) * max(1, len(classes_of(kind)) - MAX_CLASSES))
    return [(name, content) for name in names if (content := _stored(value, kind, name)) is not _MISSING]


def _model_fields(value: Any, kind: type[BaseModel], spend: Callable[[int], None]) -> list[tuple[Any, Any]]:
    """Return the fields of a model as stored; no serialiser of the host runs.

    Fields that the model excludes (``exclude``) are omitted. A field with a serialiser of its own becomes an
    :class:`OwnSerialiser`.
    """
    functions = kind.__pydantic_decorators__
    stored = object.__getattribute__(value, "__dict__")
    spend(len(functions.field_serializers) + len(stored))
    own = {name for each in functions.field_serializers.values() for name in each.info.fields}
    everything = bool(functions.model_serializers) or "*" in own
    extra = object.__getattribute__(value, "__pydantic_extra__") or {}
    pairs: list[tuple[Any, Any]] = []
    for name, content in (*stored.items(), *extra.items()):
        field = kind.__pydantic_fields__.get(name)
        if field is None and name not in extra:
            continue  # a cached property
        if field is not None and field.exclude:
            continue
        pairs.append((name, OwnSerialiser(content) if everything or name in own else content))
    return pairs


def _of_class(kind: type, name: str) -> Any:
    return next((_namespace(each)[name] for each in classes_of(kind) if name in _namespace(each)), _MISSING)


def _stored(value: Any, kind: type, name: str) -> Any:
    """Return what ``value`` stores as ``name``, in its dictionary or a slot; a property is returned instead of run."""
    if any("__dict__" in _namespace(each) for each in classes_of(kind)):
        held = object.__getattribute__(value, "__dict__")
        if name in held:
            return held[name]
    found = _of_class(kind, name)
    if type(found) is not MemberDescriptorType:
        return found
    try:
        return found.__get__(value)
    except AttributeError:
        return _MISSING
