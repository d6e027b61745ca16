"""msgspec structs generated from the pydantic models: the models remain the only schema, the structs are faster.

    reader = StructReader(ToolCalled)
    reader.read(b'{"call_id": "c1", "tool": "search"}')      a struct with ToolCalled's fields and methods
    reader.read(b'{"call_id": "c1", "tool": 5}')             raises Doubt

A reader accepts only payloads that the model certainly accepts with the same values. For anything else it raises
:class:`Doubt`, and the model decides: lax forms that pydantic accepts (``"5"`` for 5), numbers that the two would write
differently, broken JSON. ``tests/streams/test_structs.py`` checks this.
"""

import functools
import inspect
import operator
from array import array
from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Generic, TypeVar, assert_never, cast

import msgspec
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.schemas.arrays import encode_array
from headrace.schemas.model import Record
from headrace.schemas.shape import (
    AnyJson,
    Choice,
    FieldType,
    Flag,
    ListOf,
    MapOf,
    ModelShape,
    Null,
    Number,
    OneOf,
    Other,
    PartOf,
    Text,
    Tokens,
    shape_of,
)

M = TypeVar("M", bound=BaseModel)

PLAIN_FLOAT = 1e10
"""Bound of the floats that a reader accepts: pydantic writes exponents as ``1e+16`` and msgspec as ``1e16``. The bound
is low enough that a sum over a trajectory stays below 1e16 too."""


class Doubt(ValueError):
    """The payload may be valid, but only the model can decide."""


class StructReader(Generic[M]):
    """Decodes payloads of one type into a struct that can be used like the model."""

    def __init__(self, model: type[M]) -> None:
        self._known: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_reading(model, True), float_hook=_plain)
        self._other = _reading(model, False)

    def read(self, value: bytes) -> M:
        """Returns the payload in ``value``. Raises :class:`Doubt`."""
        try:
            struct: M = self._known.decode(value)
        except (ValueError, RecursionError) as doubt:
            raise Doubt(str(doubt)) from doubt
        return struct

    def read_beside_unknown_fields(self, value: bytes) -> M:
        """As :meth:`read`, but allows fields that the model does not know; they are left out. Unknown fields of a part
        whose model sets ``UNKNOWN_FIELDS_MATTER`` raise :class:`Doubt`.
        """
        try:
            return cast(M, msgspec.convert(_ANY.decode(value), self._other))
        except (ValueError, RecursionError) as doubt:
            raise Doubt(str(doubt)) from doubt


def _plain(text: str) -> float:
    """Parse a float in a field of type ``Any``."""
    value = float(text)
    if abs(value) >= PLAIN_FLOAT:
        raise Doubt(f"{text} would be written differently")
    return value


_ANY = msgspec.json.Decoder(float_hook=_plain)


def writing(model: type[M]) -> type[M]:
    """Returns a struct with ``model``'s fields in order, for encoding values that are already valid. It has the
    ``TYPE`` of a record.
    """
    return cast(type[M], _writing(model))


@functools.cache
def _writing(model: type[BaseModel]) -> Any:
    fields = [(name, Any, *_default(info, _writing)) for name, info in model.model_fields.items()]
    constants = {"TYPE": model.TYPE} if issubclass(model, Record) else {}
    return msgspec.defstruct(model.__name__, fields, namespace=constants, kw_only=True, gc=False)


_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: _write(value))


def encode_struct(struct: object) -> bytes:
    """Returns ``struct`` as the JSON that its model would write."""
    return _ENCODER.encode(struct)


def _write(value: object) -> object:
    if isinstance(value, array):
        return encode_array(value)
    if isinstance(value, BaseModel):
        return msgspec.Raw(value.model_dump_json().encode())
    raise TypeError(f"no JSON form for {type(value).__name__}")


@functools.cache
def _reading(model: type[BaseModel], strict: bool) -> type[Any]:
    """Returns the struct for decoding: the model's types, bounds, checks and properties."""

    def nested(part: type[BaseModel]) -> type[Any]:
        return _reading(part, strict)

    shape = shape_of(model)
    if shape.other_validators:
        raise TypeError(f"{model.__name__}: field validators and before-validators are not supported by structs")
    fields = []
    for field in shape.fields:
        kind = _type(field.type, nested)
        fields.append((field.name, kind | None if field.nullable else kind, *_default(field.info, nested)))
    namespace: dict[str, Any] = {
        name: thing
        for name, thing in vars(model).items()
        if isinstance(thing, property) or (inspect.isfunction(thing) and not name.startswith("_"))
    }
    namespace["TYPE"] = getattr(model, "TYPE", None)
    check = _checks(shape)
    if check is not None:
        namespace["__post_init__"] = check
    known_only = strict or getattr(model, "UNKNOWN_FIELDS_MATTER", False)
    return msgspec.defstruct(
        model.__name__, fields, kw_only=True, forbid_unknown_fields=known_only, namespace=namespace
    )


def _type(kind: FieldType, nested: Callable[[type[BaseModel]], type[Any]]) -> Any:
    """Returns ``kind`` as a type for msgspec. Raises ``TypeError`` if there is none."""
    match kind:
        case Text():
            return str if kind.most == inf else Annotated[str, msgspec.Meta(max_length=int(kind.most))]
        case Number():
            return _number(kind)
        case Flag():
            return bool
        case AnyJson():
            return Any
        case Null():
            return None
        case Choice():
            return kind.enum
        case Tokens():
            return str  # _checks decodes the array
        case PartOf():
            return nested(kind.model)
        case ListOf():
            return list[_type(kind.item, nested)]  # type: ignore[misc]
        case MapOf():
            return dict[_type(kind.name, nested), _type(kind.value, nested)]  # type: ignore[misc]
        case OneOf():
            return functools.reduce(operator.or_, (_type(option, nested) for option in kind.options))
        case Other():
            raise TypeError(f"{kind.why}: not supported by structs")
        case _:
            assert_never(kind)


def _number(kind: Number) -> Any:
    plain: Any = int if kind.whole else float
    bounds: dict[str, Any] = {"gt" if kind.above_least else "ge": kind.least, "le": kind.most}
    bounds = {name: plain(bound) for name, bound in bounds.items() if abs(bound) < inf}
    if not kind.whole:
        bounds = {name: bound for name, bound in bounds.items() if abs(bound) < PLAIN_FLOAT}
        bounds |= {} if "le" in bounds else {"lt": PLAIN_FLOAT}
        bounds |= {} if bounds.keys() & {"ge", "gt"} else {"gt": -PLAIN_FLOAT}
    return Annotated[plain, msgspec.Meta(**bounds)] if bounds else plain


def _default(info: FieldInfo, nested: Callable[[Any], type[Any]]) -> tuple[Any, ...]:
    """Returns nothing for a required field; else its default, as a factory if it is mutable."""
    if info.default_factory is not None:
        return (msgspec.field(default_factory=cast(Callable[[], Any], info.default_factory)),)
    if info.default is PydanticUndefined:
        return ()
    if isinstance(info.default, BaseModel):
        if info.default != type(info.default)():
            raise TypeError(f"{info.default!r}: a model default with non-default fields is not supported by structs")
        return (msgspec.field(default_factory=nested(type(info.default))),)
    if isinstance(info.default, list | dict):
        if info.default:
            raise TypeError(f"{info.default!r}: a non-empty default is not supported by structs")
        return (msgspec.field(default_factory=type(info.default)),)
    return (info.default,)


def _checks(shape: ModelShape) -> Callable[[Any], None] | None:
    """Returns the checks after decoding: they unpack arrays and run the model's validators."""
    arrays = [(field.name, field.type.array) for field in shape.fields if isinstance(field.type, Tokens)]
    validators = [function for _, function in shape.validators]
    if not arrays and not validators:
        return None

    def check(struct: Any) -> None:
        for name, kind in arrays:
            text = getattr(struct, name)
            if text is not None:
                setattr(struct, name, kind.read(text))
        for validator in validators:
            validator(struct)

    return check
