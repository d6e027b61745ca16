"""Builds the tables by which the extension module decodes payloads, and determines where it lags behind the models.

table_of(ToolCalled, None)    [("call_id", "text", False, None, …), ("tool", "text", False, None, …),
                               ("arguments", "object", False, "{}", …)]

The module must not skip what it does not know, because a rule in Python may depend on it. A field that it was not built
for is in its table as ``unknown``, and a payload with that field is left to Python. An event type that it was not built
for, or with a field that it was built for but cannot read any more, has no table at all.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, assert_never

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.schemas.model import Record
from headrace.schemas.shape import (
    OBJECT,
    AnyJson,
    Choice,
    FieldType,
    Flag,
    ListOf,
    MapOf,
    Null,
    Number,
    OneOf,
    Other,
    PartOf,
    Text,
    Tokens,
    shape_of,
)

_CHECKED_THERE = {"ModelCalled": {"_arrays_agree"}}
"""Validators that the extension module also implements."""

ANY_FIELD = "*"
"""Stands for a type's fields if the module passes its payload on unchanged, so that every readable field is known."""

UNKNOWN = "unknown"
"""Kind of a field that the extension module leaves to Python."""


class TableField(NamedTuple):
    """Description of a field for the extension module."""

    name: str
    kind: str
    nullable: bool
    default: str | None
    """JSON; ``None`` if the field is required."""
    least: float
    above_least: bool
    """Whether ``least`` itself is out of bounds."""
    most: float
    """For a text: length in raw bytes, escapes included. A character has at least one byte: no longer text passes."""
    choices: tuple[str, ...]
    part: "list[TableField] | None"


@dataclass(frozen=True, slots=True)
class NativeLag:
    """What the extension module lacks compared with the models."""

    types: frozenset[str] = frozenset()
    """Event types that it leaves to Python."""
    fields: frozenset[tuple[str, str]] = frozenset()
    """Event type and field (``sampling.temperature`` for a field of a part); an event with the field is left to Python.
    """
    records: str = ""
    """Why it cannot write any trajectory; empty if it can."""

    def __bool__(self) -> bool:
        return bool(self.types or self.fields or self.records)

    def holds_back(self, type_name: str, value: bytes) -> bool:
        """Whether this event makes the module leave its trajectory to Python. A field is searched by its name anywhere
        in the payload."""
        if self.records or type_name in self.types:
            return True
        return any(
            name == type_name and b'"%s"' % path.rpartition(".")[2].encode() in value for name, path in self.fields
        )

    def warning(self, effect: str) -> str:
        """Returns the text of a log warning; ``effect`` says what the lag costs."""
        return (
            f"headrace.streams.native lags behind the models or tables, so {effect}: {self}. Run `make native`; if the "
            "warning remains, the C++ code does not support this yet."
        )

    def __str__(self) -> str:
        """Returns a clause for each event type or field that the module does not know."""
        clauses = [f"it does not know the event type {name}" for name in sorted(self.types)]
        clauses += [f"it does not know the field {path} of {name}" for name, path in sorted(self.fields)]
        return "; ".join([*clauses, *([self.records] if self.records else [])])


def tables_of(
    models: Sequence[type[Record]], known: Mapping[str, str]
) -> tuple[dict[str, list[TableField]], NativeLag]:
    """Returns a table for each of ``models`` that the extension module can read, by type, and what the module lacks.

    ``known``: for each event type that the module was built for, the names of its fields, separated by spaces.
    """
    tables: dict[str, list[TableField]] = {}
    unknown: set[tuple[str, str]] = set()
    for model in models:
        names = known.get(model.TYPE)
        if names is None or not _is_checked_there(model):
            continue
        table = table_of(model, None if names == ANY_FIELD else frozenset(names.split()))
        missing = set(unknown_fields(table))
        if missing and (names == ANY_FIELD or missing & set(names.split())):
            continue
        tables[model.TYPE] = table
        unknown |= {(model.TYPE, path) for path in missing}
    return tables, NativeLag(frozenset({model.TYPE for model in models} - set(tables)), frozenset(unknown))


def table_of(model: type[BaseModel], known: Set[str] | None, path: str = "") -> list[TableField]:
    """Returns the fields of ``model`` in order. ``known``: those that the module was built for; ``None`` means all."""
    return [
        _table_field(field.name, field.type, field.nullable, field.info, known, path)
        for field in shape_of(model).fields
    ]


def unknown_fields(table: Sequence[TableField], path: str = "") -> list[str]:
    """Returns the fields in ``table`` that the extension module does not know; those of parts as ``part.field``."""
    found = []
    for field in table:
        if field.kind == UNKNOWN:
            found.append(path + field.name)
        found += unknown_fields(field.part or (), f"{path}{field.name}.")
    return found


def _is_checked_there(model: type[BaseModel]) -> bool:
    shape = shape_of(model)
    there = _CHECKED_THERE.get(model.__name__, set())
    parts = [field.type for field in shape.fields]
    items = [kind.item if isinstance(kind, ListOf) else kind for kind in parts]
    return (
        not shape.other_validators
        and {name for name, _ in shape.validators} <= there
        and all(_is_checked_there(kind.model) for kind in items if isinstance(kind, PartOf))
    )


def _table_field(
    name: str, kind: FieldType, nullable: bool, info: FieldInfo, known: Set[str] | None, path: str
) -> TableField:
    required = info.is_required()
    kind_name = _kind(kind) if known is None or path + name in known else UNKNOWN
    if kind_name == UNKNOWN:
        return TableField(name, UNKNOWN, False, None if required else "null", -inf, False, inf, (), None)
    least, above, most = -inf, False, inf
    choices: tuple[str, ...] = ()
    part = None
    if isinstance(kind, Number):
        least, above, most = float(kind.least), kind.above_least, float(kind.most)
    elif isinstance(kind, Text):
        most = float(kind.most)
    elif isinstance(kind, Choice):
        choices = tuple(option.value for option in kind.enum)
    inner = kind.item if isinstance(kind, ListOf) else kind
    if isinstance(inner, PartOf):
        part = table_of(inner.model, known, f"{path}{name}.")
    default = None if required else _json(info.get_default(call_default_factory=True), part)
    return TableField(name, kind_name, nullable, default, least, above, most, choices, part)


def _kind(kind: FieldType) -> str:
    """Returns the extension module's name for a type; ``UNKNOWN`` if it has none."""
    match kind:
        case Text():
            return "text"
        case Number():
            return "integer" if kind.whole else "float"
        case Flag():
            return "flag"
        case AnyJson():
            return "any"
        case Choice():
            return "choice" if all(isinstance(option.value, str) for option in kind.enum) else UNKNOWN
        case Tokens():
            return "tokens"
        case PartOf():
            return "known_part" if getattr(kind.model, "UNKNOWN_FIELDS_MATTER", False) else "part"
        case MapOf():
            return "object" if kind == OBJECT else UNKNOWN
        case ListOf(item=item):
            return {OBJECT: "objects", Text(): "texts"}.get(item, "parts" if isinstance(item, PartOf) else UNKNOWN)
        case Null() | OneOf() | Other():
            return UNKNOWN
        case _:
            assert_never(kind)


def _json(default: Any, part: list[TableField] | None) -> str:
    if isinstance(default, BaseModel):
        return default.model_dump_json(include={field.name for field in part or () if field.kind != UNKNOWN})
    return json.dumps(default, separators=(",", ":"))
