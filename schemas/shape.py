"""Derives the shapes of pydantic models: the only code that interprets field annotations.

Other representations of a model's fields are derived from its :class:`ModelShape`: msgspec structs
(``streams/structs.py``), the tables of the extension module (``streams/native/shapes.py``) and the SDK's encoding of
fields (``agents/encoding.py``). The models remain the only schema.

    shape_of(ToolCalled).fields[0]     ModelField("call_id", Text(512), nullable=False, …)
"""

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import inf
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.schemas.arrays import ArrayType
from headrace.schemas.bounds import MaxLength, Within


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    most: float = inf
    """Largest length, in characters."""


@dataclass(frozen=True, slots=True)
class Number:
    """An integer or a float within bounds."""

    whole: bool
    """Whether it is an integer."""
    least: float = -inf
    """Smallest value; an ``int`` for a bounded integer."""
    above_least: bool = False
    """Whether ``least`` itself is excluded."""
    most: float = inf
    """Largest value; an ``int`` for a bounded integer."""


@dataclass(frozen=True, slots=True)
class Flag:
    """``true`` or ``false``."""


@dataclass(frozen=True, slots=True)
class AnyJson:
    """Any JSON."""


@dataclass(frozen=True, slots=True)
class Null:
    """Only ``null``."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of an enum's values."""

    enum: type[Enum]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token array."""

    array: ArrayType


@dataclass(frozen=True, slots=True)
class PartOf:
    """An object described by another model."""

    model: type[BaseModel]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    item: "FieldType"


@dataclass(frozen=True, slots=True)
class MapOf:
    """An object with arbitrary names and values of one type."""

    name: "FieldType"
    value: "FieldType"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value of one of several types."""

    options: "tuple[FieldType, ...]"


@dataclass(frozen=True, slots=True)
class Other:
    """A type that this module does not represent. Users of shapes have the model handle such a field."""

    why: str
    """The annotation, for messages."""


FieldType: TypeAlias = (
    Text | Number | Flag | AnyJson | Null | Choice | Tokens | PartOf | ListOf | MapOf | OneOf | Other
)  # fmt: skip
"""Type of a field's value, apart from null."""

OBJECT = MapOf(Text(), AnyJson())
"""Any JSON object."""


@dataclass(frozen=True, slots=True)
class ModelField:
    """A field of a model."""

    name: str
    """Name."""
    type: FieldType
    """Type of its value."""
    nullable: bool
    """Whether it may be null."""
    info: FieldInfo
    """Default and other information from pydantic."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The fields of a model, in order, and its validators."""

    model: type[BaseModel]
    """The model."""
    fields: tuple[ModelField, ...]
    """Fields."""
    validators: tuple[tuple[str, Callable[[Any], Any]], ...]
    """Names and functions of the model validators that run after the fields are read (mode ``after``)."""
    other_validators: bool
    """Whether it has validators of another kind: for single fields, or that run earlier."""


@cache
def shape_of(model: type[BaseModel]) -> ModelShape:
    """Return the shape of ``model``."""
    decorators = model.__pydantic_decorators__
    after = {name: each for name, each in decorators.model_validators.items() if each.info.mode == "after"}
    return ModelShape(
        model,
        tuple(_field(name, info) for name, info in model.model_fields.items()),
        tuple((name, each.func) for name, each in after.items()),
        bool(decorators.field_validators or decorators.validators or decorators.root_validators)
        or len(after) < len(decorators.model_validators),
    )


def _field(name: str, info: FieldInfo) -> ModelField:
    found = _type(info.annotation, info.metadata)
    if not isinstance(found, OneOf) or Null() not in found.options:
        return ModelField(name, found, False, info)
    options = tuple(option for option in found.options if option != Null())
    return ModelField(name, options[0] if len(options) == 1 else OneOf(options), True, info)


def _type(annotation: Any, metadata: Sequence[Any]) -> FieldType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], [*arguments[1:], *metadata])
    for entry in metadata:
        if isinstance(entry, ArrayType):
            return Tokens(entry)
    if annotation in (int, float):
        return _number(annotation, metadata)
    if annotation is str and all(isinstance(entry, MaxLength) for entry in metadata):
        return Text(min((entry.limit for entry in metadata), default=inf))
    if origin in (Union, types.UnionType):
        # A bound on a union belongs to the option that is not null.
        return OneOf(tuple(Null() if each is types.NoneType else _type(each, metadata) for each in arguments))
    if metadata:
        return Other(f"{annotation} with {list(metadata)}")
    if origin is list:
        return ListOf(_type(arguments[0], []))
    if origin is dict:
        return MapOf(_type(arguments[0], []), _type(arguments[1], []))
    if annotation is bool:
        return Flag()
    if annotation is Any:
        return AnyJson()
    if annotation is types.NoneType:
        return Null()
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Choice(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return PartOf(annotation)
    return Other(str(annotation))


def _number(annotation: Any, metadata: Sequence[Any]) -> FieldType:
    least, above, most = -inf, False, inf
    for entry in metadata:
        if isinstance(entry, Ge | Gt):
            bound: Any = entry.ge if isinstance(entry, Ge) else entry.gt
            if annotation(bound) >= least:
                least, above = annotation(bound), isinstance(entry, Gt)
        elif isinstance(entry, Le):
            bound = entry.le
            most = min(most, annotation(bound))
        elif isinstance(entry, Within):
            limit = annotation(entry.limit)
            if -limit > least:
                least, above = -limit, False
            most = min(most, limit)
        else:
            return Other(f"{annotation} with {entry}")
    return Number(annotation is int, least, above, most)
