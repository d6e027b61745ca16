"""Writes a host's value as JSON text of bounded size, without running any of the host's code.

    {"rows": [1, 2], "stream": <generator>}  →  {"rows":[1,2],"stream":{"unserialisable":"generator"}}

The host keeps using the values that it passed. So only values of known, plain types are read: scalars, the builtin
containers, numpy arrays and tensors in main memory, named tuples, dataclasses, attrs classes and pydantic models, and
subclasses of these through the storage of their base class (``host_values``), never through methods that a subclass may
override. All other values are *described* and left alone: iterators, generators, files, cursors, query sets,
coroutines, context managers, objects of unknown classes. Their ``__iter__``, ``__len__``, ``__repr__`` and properties
are not called.

A description is ``{"unserialisable": TYPE}``. It has ``"text"`` if a few characters represent the value (a number that
JSON or 64 bits cannot represent, a class, a range), ``"length"`` for bytes that are not text, ``"arguments"`` for an
exception, and ``"reason"`` (``cycle``, ``depth``) for a container that is not followed further.

The text has a limit: a longer one raises :class:`TooLarge` before the rest of the value is read. Work that produces no
text (bytes that are not text, fields without a value) is limited too, to ``WASTE`` times that limit.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum
from json import loads
from json.encoder import encode_basestring
from pathlib import PurePath
from types import NoneType
from typing import Any, Final
from uuid import UUID

from pydantic import RootModel
from pydantic_core import to_jsonable_python

from headrace.agents.host_values import (
    MAPPINGS,
    MAX_CLASSES,
    SEQUENCES,
    SLICE,
    OwnSerialiser,
    array_size,
    classes_of,
    enum_value,
    exception_arguments,
    fields_of,
    moment,
    qualified_name,
)
from headrace.agents.masking.masker import EventMask, is_large_number

LABEL: Final = "unserialisable"
"""Key of a description, whose value is the name of the described type. Also the kind under which it is counted."""

MAX_DEPTH = 64
"""Nesting depth beyond which a container is described instead of followed."""

MAX_TEXT = 1_000
"""Longest text in a description, in characters."""

MAX_BITS = 3_000
"""Largest integer, in bits, that a description writes as digits: the time for that is quadratic in the bits."""

WASTE = 8
"""Steps of work without a text that are allowed per character of the limit."""


class TooLarge(ValueError):
    """The JSON text would be longer than its limit."""


def is_int64(value: int) -> bool:
    """Return whether ``value`` fits a signed 64-bit integer, as readers in other languages require."""
    return -(2**63) <= value < 2**63


class JsonForm:
    """Writes several values as texts that share one limit."""

    def __init__(self, limit: int, mask: EventMask | None = None) -> None:
        """``limit``: largest total length of all texts, in characters. ``mask``: hides parts of texts, keys and large
        numbers."""
        self.altered: Counter[str] = Counter()
        """Number of described values, and of values altered otherwise, by kind."""
        self.described = ""
        """Type of the first described value."""
        self._room = limit
        self._spare = WASTE * limit
        self._since_pause = 0
        self._parts: list[str] = []
        self._mask = mask
        self._is_secret = False

    def text(self, value: Any) -> str:
        """Return ``value`` as JSON. Raises :class:`TooLarge` and no other exception, whatever ``value`` is."""
        self._parts = []
        self._write(value, ())
        return "".join(self._parts)

    def unmasked(self) -> "JsonForm":
        """Return a form without a mask for as much as is left of the limit, whose altered values count here."""
        form = JsonForm(self._room)
        form.altered, form._spare = self.altered, self._spare
        return form

    def reserve(self, characters: int) -> None:
        """Subtract ``characters`` from the limit; raise :class:`TooLarge` if fewer are left."""
        if characters > self._room:
            raise TooLarge
        self._room -= characters

    def _spend(self, steps: int) -> None:
        """Account for work that produces no text; raise :class:`TooLarge` if its limit is exceeded."""
        if steps > self._spare:
            raise TooLarge
        self._spare -= steps

    def _put(self, text: str) -> None:
        self.reserve(len(text))
        self._parts.append(text)

    def _put_string(self, text: str) -> None:
        """Write ``text`` as a string of JSON, masked."""
        if self._mask is not None:
            text = self._mask.secret() if self._is_secret and text else self._mask.text(text)
        self._put(encode_basestring(text))

    def _put_number(self, digits: str, is_large: bool) -> None:
        """Write a number; as a string if it is large and some of it must be hidden, like a card's."""
        if self._mask is not None and (is_large or self._is_secret):
            shown = self._mask.secret() if self._is_secret else self._mask.text(digits)
            if shown != digits:
                digits = encode_basestring(shown)
        self._put(digits)

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
            self._put_string(value)
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
            except Exception:  # noqa: BLE001 - an object of a library that is half initialised or freed may fail
                del self._parts[length:]
                self._describe(kind)

    def _room_for(self, characters: int) -> None:
        """Raise :class:`TooLarge` if ``characters`` exceed the limit; called before work that grows with them."""
        if characters > self._room:
            raise TooLarge

    def _integer(self, value: int, kind: type) -> None:
        if is_int64(value):
            self._put_number(int.__repr__(value), is_large_number(value))
        else:
            bits = value.bit_length()
            self._describe(kind, text=int.__repr__(value) if bits <= MAX_BITS else f"{bits} bits")

    def _float(self, value: float, kind: type) -> None:
        if math.isfinite(value):
            self._put_number(float.__repr__(value), is_large_number(value))
        else:
            self._describe(kind, text=float.__repr__(value))

    def _other(self, value: Any, kind: type, above: tuple[int, ...]) -> None:
        if issubclass(kind, Enum):  # checked first: a member of an IntEnum is also an int
            self._write(enum_value(value), above)
            return
        classes = classes_of(kind)
        if len(classes) > MAX_CLASSES:
            self._spend(len(classes))
        for base in classes:
            scalar = _SCALARS.get(base)
            if scalar is not None:
                scalar(self, value, kind)
                return
            if base in SEQUENCES or base in MAPPINGS:
                self._container(value, kind, base, above)
                return
        if issubclass(kind, BaseException):
            self._describe(kind, arguments=exception_arguments(value), above=above)
        elif issubclass(kind, type):
            self._describe(kind, text=qualified_name(value))
        elif kind is OwnSerialiser:
            self._describe(type(value.content), reason="own serialiser")
        elif (size := array_size(value, kind)) is not None:
            self._array(size, value, kind, above)
        else:
            pairs = fields_of(value, kind, self._spend)
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
        if base in MAPPINGS:
            self._room_for(5 * dict.__len__(value))  # "":0,
            self._object(list(dict.items(value)), inside)
        else:
            length, slices = SEQUENCES[base]
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
        is_plain = self._mask is None and all(type(key) is str for key, _ in pairs)
        taken: dict[str, int] | None = None if is_plain else {}
        opening = "{"
        for key, item in pairs:
            self._pause(1)
            name = key if type(key) is str else self._key(key)
            if self._mask is not None:
                self._room_for(len(name))
                name = self._mask.text(name)
            if taken is not None:  # 1 and "1" are different keys in Python and the same in JSON
                name = _free(name, taken)
            self._room_for(len(name))
            self._put(f"{opening}{encode_basestring(name)}:")
            if self._mask is None or self._is_secret or not self._mask.is_secret(name):
                self._write(item, inside)
            else:
                self._is_secret = True
                self._write(item, inside)
                self._is_secret = False
            opening = ","
        self._put("{}" if opening == "{" else "}")

    def _list(self, slices: Iterable[list[Any]], inside: tuple[int, ...]) -> None:
        opening = "["
        for items in slices:
            self._pause(len(items))
            kinds = set(map(type, items))
            is_masked = self._mask is not None and (self._is_secret or any(map(is_large_number, items)))
            if kinds == {int} and is_int64(min(items)) and is_int64(max(items)) and not is_masked:
                self._put(opening + ",".join(map(int.__repr__, items)))
            elif kinds == {float} and all(map(math.isfinite, items)) and not is_masked:
                self._put(opening + ",".join(map(float.__repr__, items)))
            else:
                for item in items:
                    self._put(opening)
                    self._write(item, inside)
                    opening = ","
            opening = ","
        self._put("[]" if opening == "[" else "]")

    def _array(self, size: int, value: Any, kind: type, above: tuple[int, ...]) -> None:
        """Write a numpy array, a tensor in main memory or a numpy scalar with ``size`` numbers."""
        if value.ndim == 0:
            item = value.item()
            if type(item) is kind:  # a precision that no number of Python has
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
        """Return the text of a key that is not exactly a ``str``; if it has none, its type in angle brackets."""
        kind = type(key)
        try:
            text = self._scalar_key(key, kind)
        except TooLarge:
            raise
        except Exception:  # noqa: BLE001 - see _write
            text = None
        if text is None:  # the content of a container is not read for a key
            self.altered[LABEL] += 1
            return f"<{_name(kind)}>"
        return text

    def _scalar_key(self, key: Any, kind: type) -> str | None:
        """Return the text of a scalar key; ``None`` if ``key`` is not a scalar or would be described."""
        if issubclass(kind, Enum):
            key = enum_value(key)
            kind = type(key)
            if issubclass(kind, Enum):
                return None
        elif array_size(key, kind) == 1 and key.ndim == 0 and key.dtype.itemsize <= MAX_TEXT:
            key = key.item()
            kind = type(key)
        if key is None or kind is bool:
            return str(key) if key is None else "true" if key else "false"
        classes = classes_of(kind)
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
        form = JsonForm(self._room)  # without the mask, which is applied to the key
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
    return qualified_name(kind)[:MAX_TEXT].rpartition(".<locals>.")[2]


def _free(name: str, taken: dict[str, int]) -> str:
    """Return ``name``, or ``name (2)`` and so on if it is taken. ``taken``: names in use, each with the number to try
    next, so that many equal names cost no more than different ones."""
    if name not in taken:
        taken[name] = 2
        return name
    number = taken[name]
    while (found := f"{name} ({number})") in taken:
        number += 1
    taken[name], taken[found] = number + 1, 2
    return found


# Scalars: each function reads the storage of the base class, so that a subclass cannot interfere.


def _text(form: JsonForm, value: Any, kind: type) -> None:
    form._room_for(str.__len__(value))
    form._put_string(str.__str__(value))


def _bytes(form: JsonForm, value: Any, kind: type) -> None:
    base = bytes if issubclass(kind, bytes) else bytearray
    length = base.__len__(value)
    form._room_for(length)
    try:
        form._put_string(base.decode(value))
    except UnicodeDecodeError:
        form._spend(length)
        form._describe(kind, length=length)


def _moment(form: JsonForm, value: Any, kind: type) -> None:
    """Write a ``datetime`` or a ``time``; one with a time zone of the host's own class is described."""
    plain, complete = moment(value, kind)
    if complete:
        _by_pydantic(form, plain, kind)
    else:
        form._describe(kind, text=plain.isoformat(), reason="time zone")


def _by_pydantic(form: JsonForm, value: Any, kind: type) -> None:
    form._put_string(str(to_jsonable_python(value)))


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
    date: _by_pydantic,
    time_of_day: _moment,
    timedelta: _by_pydantic,
    Decimal: lambda form, value, kind: form._put_string(Decimal.__str__(value)),
    UUID: lambda form, value, kind: form._put_string(UUID.__str__(value)),
    PurePath: lambda form, value, kind: form._put_string(PurePath.__str__(value)),
}
