"""A host's value as JSON text: bounded in size, and without running any of the host's code.

    {"rows": [1, 2], "stream": <generator>}  →  {"rows":[1,2],"stream":{"unserialisable":"generator"}}

The host goes on using what it handed over. So only what is known to be plain is read: scalars, the builtin containers,
numpy arrays and tensors in main memory, named tuples, dataclasses, attrs classes and pydantic models, and subclasses of
these through the storage of their base, never through methods that a subclass may override. Everything else is
*described* and left alone: iterators, generators, files, cursors, query sets, coroutines, context managers, objects of
unknown classes. Their ``__iter__``, ``__len__``, ``__repr__`` and properties are not called.

A description is ``{"unserialisable": TYPE}``, with ``"text"`` where a few characters hold the value (a number that JSON
or 64 bits have no room for, a class, a range), ``"length"`` for bytes that are no text, ``"arguments"`` for an
exception, and ``"reason"`` (``cycle``, ``depth``) for a container that is not followed any further.

The text grows up to a limit: what is longer raises :class:`TooLarge` before the rest is looked at. What is read and
does not become text (bytes that are no text, fields without a value) is bounded too, by ``WASTE`` times the limit.
"""

import math
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from json import loads
from json.encoder import encode_basestring
from pathlib import PurePath
from types import MemberDescriptorType, NoneType
from typing import Any, Final, cast
from uuid import UUID

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

LABEL: Final = "unserialisable"
"""Key of a description: the name of the type that was not read. Also what such values are counted as."""

MAX_DEPTH = 64
"""Nesting past which a container is described rather than followed."""

MAX_TEXT = 1_000
"""Characters of the text in a description."""

MAX_BITS = 3_000
"""Bits of an integer that a description writes out: the time for that grows with their square."""

WASTE = 8
"""Steps of work without a text, for each character of the limit."""

MAX_CLASSES = 16
"""Base classes of a value beyond which looking through them counts as work."""

SLICE = 1_024
"""Items of a list that are read at once. After each slice the GIL is offered to the host, which waits no longer."""

_mro = cast(Callable[[type], tuple[type, ...]], type.__dict__["__mro__"].__get__)
_namespace = cast(Callable[[type], dict[str, Any]], type.__dict__["__dict__"].__get__)
_qualified_name = cast(Callable[[type], str], type.__dict__["__qualname__"].__get__)
_exception_arguments = cast(Callable[[BaseException], tuple[Any, ...]], BaseException.__dict__["args"].__get__)
_MISSING: Final = object()


class TooLarge(ValueError):
    """The JSON text would be longer than its limit."""


def is_int64(value: int) -> bool:
    """Whether ``value`` fits 64 bits with a sign, which is what readers in other languages have."""
    return -(2**63) <= value < 2**63


class JsonForm:
    """Texts of several values that share a limit of characters."""

    def __init__(self, limit: int) -> None:
        """``limit``: characters that all texts together may have."""
        self.altered: Counter[str] = Counter()
        """Values that are described instead of sent."""
        self.described = ""
        """Type of the first of them."""
        self._room = limit
        self._spare = WASTE * limit
        self._since_pause = 0
        self._parts: list[str] = []

    def text(self, value: Any) -> str:
        """``value`` as JSON. Raises :class:`TooLarge`, and nothing else whatever ``value`` is."""
        self._parts = []
        self._write(value, ())
        return "".join(self._parts)

    def reserve(self, characters: int) -> None:
        """Take ``characters`` off the limit; raises :class:`TooLarge` where they are more than is left."""
        if characters > self._room:
            raise TooLarge
        self._room -= characters

    def _spend(self, steps: int) -> None:
        """Account for work that leaves no text; raises :class:`TooLarge` where it is more than a value may cost."""
        if steps > self._spare:
            raise TooLarge
        self._spare -= steps

    def _put(self, text: str) -> None:
        self.reserve(len(text))
        self._parts.append(text)

    def _pause(self, nodes: int) -> None:
        self._since_pause += nodes
        if self._since_pause >= SLICE:
            self._since_pause = 0
            time.sleep(0)

    def _write(self, value: Any, above: tuple[int, ...]) -> None:
        """``above``: ids of the containers around ``value``."""
        kind = type(value)
        if kind is str:
            self._room_for(len(value))
            self._put(encode_basestring(value))
        elif kind is bool or kind is NoneType:
            self._put("null" if value is None else "true" if value else "false")
        elif kind is int:
            self._integer(value, kind)
        elif kind is float:
            self._float(value, kind)
        else:
            self._pause(1)
            length = len(self._parts)
            try:
                self._other(value, kind, above)
            except TooLarge:
                raise
            except Exception:  # noqa: BLE001 - a library's object that is half built or freed may fail anyhow
                del self._parts[length:]
                self._describe(kind)

    def _room_for(self, characters: int) -> None:
        """Raises :class:`TooLarge` where there is no room: asked before work that grows with ``characters``."""
        if characters > self._room:
            raise TooLarge

    def _integer(self, value: int, kind: type) -> None:
        if is_int64(value):
            self._put(int.__repr__(value))
        else:
            bits = value.bit_length()
            self._describe(kind, text=int.__repr__(value) if bits <= MAX_BITS else f"{bits} bits")

    def _float(self, value: float, kind: type) -> None:
        if math.isfinite(value):
            self._put(float.__repr__(value))
        else:
            self._describe(kind, text=float.__repr__(value))

    def _other(self, value: Any, kind: type, above: tuple[int, ...]) -> None:
        if issubclass(kind, Enum):  # before its base: a member of an IntEnum is an int, too
            self._write(object.__getattribute__(value, "_value_"), above)
            return
        classes = _mro(kind)
        if len(classes) > MAX_CLASSES:
            self._spend(len(classes))
        for base in classes:
            scalar = _SCALARS.get(base)
            if scalar is not None:
                scalar(self, value, kind)
                return
            if base in _SEQUENCES or base in _MAPPINGS:
                self._container(value, kind, base, above)
                return
        if issubclass(kind, BaseException):
            self._describe(kind, arguments=_exception_arguments(value), above=above)
        elif issubclass(kind, type):
            self._describe(kind, text=_qualified_name(value))
        elif kind is _OwnSerialiser:
            self._describe(type(value.content), reason="own serialiser")
        elif (size := array_size(value, kind)) is not None:
            self._array(size, value, kind, above)
        else:
            pairs = _fields(self, value, kind)
            if pairs is None:
                self._describe(kind)
            elif self._is_followed(value, kind, above):
                inside = (*above, id(value))
                if issubclass(kind, RootModel):
                    self._write(pairs[0][1], inside)
                else:
                    self._object(pairs, inside)

    def _container(self, value: Any, kind: type, base: type, above: tuple[int, ...]) -> None:
        if not self._is_followed(value, kind, above):
            return
        inside = (*above, id(value))
        if base in _MAPPINGS:
            self._room_for(5 * dict.__len__(value))  # "":0,
            self._object(list(dict.items(value)), inside)
        else:
            length, slices = _SEQUENCES[base]
            self._room_for(2 * length(value) + 1)
            self._list(slices(value), inside)

    def _is_followed(self, value: Any, kind: type, above: tuple[int, ...]) -> bool:
        if id(value) in above:
            self._describe(kind, reason="cycle")
        elif len(above) >= MAX_DEPTH:
            self._describe(kind, reason="depth")
        else:
            return True
        return False

    def _object(self, pairs: list[tuple[Any, Any]], inside: tuple[int, ...]) -> None:
        taken: dict[str, int] | None = None if all(type(key) is str for key, _ in pairs) else {}
        opening = "{"
        for key, item in pairs:
            self._pause(1)
            name = key if type(key) is str else self._key(key)
            if taken is not None:  # 1 and "1" are two keys here and one in JSON
                name = _free(name, taken)
            self._room_for(len(name))
            self._put(f"{opening}{encode_basestring(name)}:")
            self._write(item, inside)
            opening = ","
        self._put("{}" if opening == "{" else "}")

    def _list(self, slices: Iterable[list[Any]], inside: tuple[int, ...]) -> None:
        opening = "["
        for items in slices:
            self._pause(len(items))
            kinds = set(map(type, items))
            if kinds == {int} and is_int64(min(items)) and is_int64(max(items)):
                self._put(opening + ",".join(map(int.__repr__, items)))
            elif kinds == {float} and all(map(math.isfinite, items)):
                self._put(opening + ",".join(map(float.__repr__, items)))
            else:
                for item in items:
                    self._put(opening)
                    self._write(item, inside)
                    opening = ","
            opening = ","
        self._put("[]" if opening == "[" else "]")

    def _array(self, size: int, value: Any, kind: type, above: tuple[int, ...]) -> None:
        """``value`` is a numpy array, a tensor in main memory or a numpy scalar, of ``size`` numbers."""
        if value.ndim == 0:
            item = value.item()
            if type(item) is kind:  # of a precision that Python has no number for
                self._describe(kind)
            else:
                self._write(item, above)
        elif self._is_followed(value, kind, above):
            self._room_for(2 * size + 1)
            inside = (*above, id(value))
            if value.ndim == 1:
                starts = range(0, len(value), SLICE)
                self._list((value[start : start + SLICE].tolist() for start in starts), inside)
            else:
                self._list(([row] for row in value), inside)

    def _key(self, key: Any) -> str:
        """A key that is no exact ``str`` as text, as far as it has one; else its type in angle brackets."""
        kind = type(key)
        try:
            text = self._scalar_key(key, kind)
        except TooLarge:
            raise
        except Exception:  # noqa: BLE001 - as with values
            text = None
        if text is None:  # a container is not looked into: its type is all that a key shows of it
            self.altered[LABEL] += 1
            return f"<{_name(kind)}>"
        return text

    def _scalar_key(self, key: Any, kind: type) -> str | None:
        """``None`` where ``key`` is no scalar, or one that is described."""
        if issubclass(kind, Enum):
            key = object.__getattribute__(key, "_value_")
            kind = type(key)
            if issubclass(kind, Enum):
                return None
        elif array_size(key, kind) == 1 and key.ndim == 0 and key.dtype.itemsize <= MAX_TEXT:
            key = key.item()
            kind = type(key)
        if key is None or kind is bool:
            return str(key) if key is None else "true" if key else "false"
        classes = _mro(kind)
        self._spend(len(classes))
        base = next((each for each in classes if each in _SCALARS), None)
        if base is None:
            return None
        if base is str:
            self._room_for(str.__len__(key))
            return str.__str__(key)
        if base is int:
            number = int.__int__(key)
            return int.__repr__(number) if number.bit_length() <= MAX_BITS else None
        form = JsonForm(self._room)
        form._spare = self._spare
        _SCALARS[base](form, key, kind)
        self._spare = form._spare
        written = "".join(form._parts)
        if form.altered:
            return None
        return str(loads(written)) if written[0] == '"' else written

    def _describe(
        self,
        kind: type,
        *,
        text: str | None = None,
        length: int | None = None,
        reason: str | None = None,
        arguments: tuple[Any, ...] | None = None,
        above: tuple[int, ...] = (),
    ) -> None:
        self.altered[LABEL] += 1
        self.described = self.described or _name(kind)
        more = {"text": text and text[:MAX_TEXT], "length": length, "reason": reason}
        shown = {LABEL: _name(kind)} | {name: value for name, value in more.items() if value is not None}
        if arguments is None or len(above) >= MAX_DEPTH:
            self._object(list(shown.items()), ())
        else:
            self._object([*shown.items(), ("arguments", arguments)], (*above, -1))


def _name(kind: type) -> str:
    return _qualified_name(kind)[:MAX_TEXT].rpartition(".<locals>.")[2]


def _free(name: str, taken: dict[str, int]) -> str:
    """``name``, or ``name (2)`` and so on. ``taken``: names in use, and the number that each goes on with, so that many
    equal names cost no more than as many different ones."""
    if name not in taken:
        taken[name] = 2
        return name
    number = taken[name]
    while (found := f"{name} ({number})") in taken:
        number += 1
    taken[name], taken[found] = number + 1, 2
    return found


# Scalars. Each reads the storage of the base that it stands for, so that a subclass cannot interfere.


def _text(form: JsonForm, value: Any, kind: type) -> None:
    form._room_for(str.__len__(value))
    form._put(encode_basestring(str.__str__(value)))


def _bytes(form: JsonForm, value: Any, kind: type) -> None:
    base = bytes if issubclass(kind, bytes) else bytearray
    length = base.__len__(value)
    form._room_for(length)
    try:
        form._put(encode_basestring(base.decode(value)))
    except UnicodeDecodeError:
        form._spend(length)
        form._describe(kind, length=length)


def _moment(form: JsonForm, value: Any, kind: type) -> None:
    """A ``datetime`` or a ``time``: what its zone's offset is, its zone must be asked, which may be the host's code."""
    base = datetime if issubclass(kind, datetime) else time_of_day
    parts = {name: getattr(base, name).__get__(value) for name in _MOMENTS[base]}
    if parts["tzinfo"] is None or _is_library_zone(type(parts["tzinfo"])):
        _known_to_pydantic(form, base(**parts), kind)
    else:
        form._describe(kind, text=base(**{**parts, "tzinfo": None}).isoformat(), reason="time zone")


_CLOCK = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
_MOMENTS: dict[type, tuple[str, ...]] = {datetime: ("year", "month", "day", *_CLOCK), time_of_day: _CLOCK}
_ZONE_LIBRARIES = frozenset({"builtins", "datetime", "zoneinfo", "pytz", "dateutil", "pendulum"})


def _is_library_zone(kind: type) -> bool:
    """Whether all of a zone's classes come from libraries that are known to compute an offset and nothing else."""
    return all(
        str(_namespace(each).get("__module__", "builtins")).split(".")[0] in _ZONE_LIBRARIES for each in _mro(kind)
    )


def _known_to_pydantic(form: JsonForm, value: Any, kind: type) -> None:
    form._put(encode_basestring(str(to_jsonable_python(value))))


_SCALARS: dict[type, Callable[[JsonForm, Any, type], None]] = {
    str: _text,
    bool: lambda form, value, kind: form._put("true" if value else "false"),
    int: lambda form, value, kind: form._integer(int.__int__(value), kind),
    float: lambda form, value, kind: form._float(float.__float__(value), kind),
    complex: lambda form, value, kind: form._describe(kind, text=complex.__repr__(value)),
    range: lambda form, value, kind: form._describe(kind, text=range.__repr__(value)),
    bytes: _bytes,
    bytearray: _bytes,
    datetime: _moment,
    date: _known_to_pydantic,
    time_of_day: _moment,
    timedelta: _known_to_pydantic,
    Decimal: lambda form, value, kind: form._put(encode_basestring(Decimal.__str__(value))),
    UUID: lambda form, value, kind: form._put(encode_basestring(UUID.__str__(value))),
    PurePath: lambda form, value, kind: form._put(encode_basestring(PurePath.__str__(value))),
}


# Containers: how long each is, and its items in slices. A slice, and the list of what cannot be sliced, is taken in one
# step of the interpreter, so that a host that changes the container meanwhile does no harm.


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
_SEQUENCES = {base: _sliced(base) for base in (list, tuple, array)} | {
    base: _whole(base)
    for base in (*_UNORDERED, deque)
}  # fmt: skip
_MAPPINGS = frozenset({dict})


# Objects with fields.


def _fields(form: JsonForm, value: Any, kind: type) -> list[tuple[Any, Any]] | None:
    """Names and values of a dataclass, an attrs class or a pydantic model; ``None`` where ``kind`` is none of them."""
    if issubclass(kind, BaseModel):
        return _model_fields(form, value, kind)
    names: list[str] | None = None
    if (described := _of_class(kind, "__dataclass_fields__")) is not _MISSING:
        names = list(described)
    elif (described := _of_class(kind, "__attrs_attrs__")) is not _MISSING:
        names = [attribute.name for attribute in described]
    if names is None:
        return None
    form._spend(len(names) * max(1, len(_mro(kind)) - MAX_CLASSES))
    return [(name, content) for name in names if (content := _stored(value, kind, name)) is not _MISSING]


def _model_fields(form: JsonForm, value: Any, kind: type[BaseModel]) -> list[tuple[Any, Any]]:
    """Fields of a model as they are stored: no serialiser of the host's runs.

    Left out is what the model leaves out (``exclude``). What it writes by a function of its own is described: the
    function may hide something.
    """
    functions = kind.__pydantic_decorators__
    form._spend(len(functions.field_serializers) + len(object.__getattribute__(value, "__dict__")))
    own = {name for each in functions.field_serializers.values() for name in each.info.fields}
    everything = bool(functions.model_serializers) or "*" in own
    extra = object.__getattribute__(value, "__pydantic_extra__") or {}
    pairs: list[tuple[Any, Any]] = []
    for name, content in (*object.__getattribute__(value, "__dict__").items(), *extra.items()):
        field = kind.__pydantic_fields__.get(name)
        if field is None and name not in extra:
            continue  # a cached property
        if field is not None and field.exclude:
            continue
        pairs.append((name, _OwnSerialiser(content) if everything or name in own else content))
    return pairs


class _OwnSerialiser:
    """In the place of a field that its model writes by a function of its own."""

    def __init__(self, content: Any) -> None:
        self.content = content


def _of_class(kind: type, name: str) -> Any:
    return next((_namespace(each)[name] for each in _mro(kind) if name in _namespace(each)), _MISSING)


def _stored(value: Any, kind: type, name: str) -> Any:
    """What ``value`` holds as ``name``, in its dictionary or a slot; a property is not run but given back itself."""
    if any("__dict__" in _namespace(each) for each in _mro(kind)):
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


def array_size(value: Any, kind: type) -> int | None:
    """How many numbers ``value`` holds, where it is of numpy's or torch's own classes, and in main memory."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return int(value.size)
    torch: Any = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        return int(value.numel())
    return None
