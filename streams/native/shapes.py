"""Pydantic models → the shapes that the extension module reads payloads by: the models stay the one schema.

shape_of(ToolCalled)    [("call_id", "text", False, None, …), ("tool", "text", False, None, …),
                         ("arguments", "object", False, "{}", …)]
"""

import json
import types
import typing
from enum import Enum
from math import inf
from typing import Annotated, Any, NamedTuple, cast

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.schemas.arrays import ArrayType
from headrace.schemas.bounds import Short, Within

_CHECKED_THERE = {"ModelCalled": {"_arrays_agree"}}
"""Validators that the extension module has too."""


class Field(NamedTuple):
    """A field as the extension module takes it."""

    name: str
    kind: str
    nullable: bool
    default: str | None
    """JSON; ``None`` where the field is required."""
    least: float
    above_least: bool
    """Whether ``least`` itself is out of bounds."""
    most: float
    """Of a text: in bytes as it stands, escapes included. A character has one at least, so none too long is taken."""
    choices: tuple[str, ...]
    part: "list[Field] | None"


def shape_of(model: type[BaseModel]) -> list[Field]:
    """The fields of ``model`` in order; raises ``TypeError`` for what the extension module does not know."""
    decorators = model.__pydantic_decorators__
    if decorators.field_validators or decorators.validators or decorators.root_validators:
        raise TypeError(f"{model.__name__}: validators of single fields are not known here")
    if unknown := set(decorators.model_validators) - _CHECKED_THERE.get(model.__name__, set()):
        raise TypeError(f"{model.__name__}: the extension module has no {', '.join(sorted(unknown))}")
    return [_field(name, info) for name, info in model.model_fields.items()]


def _field(name: str, info: FieldInfo) -> Field:
    annotation, metadata, nullable = info.annotation, list(info.metadata), False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(annotation) if option is not type(None)]
        if len(options) != 1:
            raise TypeError(f"{name}: {annotation} is not known here")
        annotation, nullable = options[0], True
    if typing.get_origin(annotation) is Annotated:
        annotation, *inner = typing.get_args(annotation)
        metadata += inner
    kind, part = _kind(annotation, metadata)
    least, above, most = -inf, False, inf
    for bound in metadata:
        if isinstance(bound, Ge | Gt):
            limit: Any = bound.ge if isinstance(bound, Ge) else bound.gt
            least, above = float(limit), isinstance(bound, Gt)
        elif isinstance(bound, Le):
            limit = bound.le
            most = float(limit)
        elif isinstance(bound, Within):
            least, most = max(least, -float(bound.limit)), min(most, float(bound.limit))
        elif isinstance(bound, Short):
            most = min(most, float(bound.limit))
        elif not isinstance(bound, ArrayType):
            raise TypeError(f"{name}: {bound} is not known here")
    choices = tuple(option.value for option in cast(type[Enum], annotation)) if kind == "choice" else ()
    default = None if info.is_required() else _json(info.get_default(call_default_factory=True))
    return Field(name, kind, nullable, default, least, above, most, choices, part)


_PLAIN: dict[Any, str] = {
    str: "text", int: "integer", float: "float", bool: "flag", Any: "any", dict[str, Any]: "object",
    list[dict[str, Any]]: "objects", list[str]: "texts",
}  # fmt: skip


def _kind(annotation: Any, metadata: list[Any]) -> tuple[str, list[Field] | None]:
    if any(isinstance(entry, ArrayType) for entry in metadata):
        return "tokens", None
    if annotation in _PLAIN:
        return _PLAIN[annotation], None
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "choice", None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "known_part" if getattr(annotation, "UNKNOWN_FIELDS_MATTER", False) else "part", shape_of(annotation)
    if typing.get_origin(annotation) is list and issubclass(typing.get_args(annotation)[0], BaseModel):
        return "parts", shape_of(typing.get_args(annotation)[0])
    raise TypeError(f"{annotation} is not known here")


def _json(default: Any) -> str:
    if isinstance(default, BaseModel):
        return default.model_dump_json()
    return json.dumps(default, separators=(",", ":"))
