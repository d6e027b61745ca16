"""Builds the tables by which the extension module decodes payloads, and determines where it lags behind the models.

table_of(ToolCalled, KnownType(None, {}))    [("call_id", "text", False, None, …), ("tool", "text", False, None, …),
                                              ("arguments", "object", False, "{}", …)]

The module must not skip what it does not know, because a rule in Python may depend on it. A field that it was not built
for is in its table as ``unknown``, and a payload with that field is left to Python; so is a payload with a value of an
enum that it was not built for, which its table leaves out. An event type that it was not built for, or with a field
that it was built for but cannot read any more, has no table at all.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
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

_CHECKED_THERE = {"ModelCalled": {"_arrays_agree"}, "Segment": {"_axes_agree"}}
"""Validators that the extension module also implements."""

ANY_FIELD = "*"
"""Stands for a type's fields if the module passes its payload on unchanged, so that every readable field is known;
``part.*`` stands for those of a part."""

UNKNOWN = "unknown"
"""Kind of a field that the extension module leaves to Python."""


@dataclass(frozen=True, slots=True)
class KnownType:
    """What the extension module was built for, of one event type."""

    fields: Set[str] | None
    """Fields, those of parts as ``part.field``; ``None``: all."""
    choices: Mapping[str, Set[str]]
    """Values by field, for fields with an enum."""

    @classmethod
    def parse(cls, text: str) -> "KnownType":
        """Returns what ``text`` says, an entry of ``EVENT_FIELDS``: ``call_id status=ok|error``, or ``* role=a|b``."""
        names = [entry.partition("=") for entry in text.split()]
        fields = frozenset(name for name, _, _ in names)
        choices = {name: frozenset(values.split("|")) for name, _, values in names if values}
        return cls(None if ANY_FIELD in fields else fields, choices)

    def has(self, path: str, name: str) -> bool:
        """Whether the module was built for the field ``name`` of the part ``path``."""
        return self.fields is None or path + name in self.fields or path + ANY_FIELD in self.fields


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
    """For a text, and for the names of a map of parts: length in raw bytes, escapes included. A character has at least
    one byte: no longer text passes."""
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
    values: frozenset[tuple[str, str, str]] = frozenset()
    """Event type, field and value of its enum; an event with the value is left to Python."""
    records: str = ""
    """Why it cannot write any trajectory; empty if it can."""

    def __bool__(self) -> bool:
        return bool(self.types or self.fields or self.values or self.records)

    def holds_back(self, type_name: str, value: bytes) -> bool:
        """Whether this event makes the module leave its trajectory to Python. A field is searched by its name anywhere
        in the payload, and so is a value."""
        if self.records or type_name in self.types:
            return True
        fields = ((name, path.rpartition(".")[2]) for name, path in self.fields)
        values = ((name, text) for name, _, text in self.values)
        return any(name == type_name and b'"%s"' % text.encode() in value for name, text in (*fields, *values))

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
        clauses += [f"it does not know {value!r} as the {path} of {name}" for name, path, value in sorted(self.values)]
        return "; ".join([*clauses, *([self.records] if self.records else [])])


def tables_of(
    models: Sequence[type[Record]], known: Mapping[str, str]
) -> tuple[dict[str, list[TableField]], NativeLag]:
    """Returns a table for each of ``models`` that the extension module can read, by type, and what the module lacks.

    ``known``: for each event type that the module was built for, the names of its fields, separated by spaces, each
    with the values of its enum if it has one (:meth:`KnownType.parse`).
    """
    tables: dict[str, list[TableField]] = {}
    unknown: set[tuple[str, str]] = set()
    values: set[tuple[str, str, str]] = set()
    for model in models:
        text = known.get(model.TYPE)
        if text is None or not _is_checked_there(model):
            continue
        built_for = KnownType.parse(text)
        table = table_of(model, built_for)
        missing = set(unknown_fields(table))
        if missing and (built_for.fields is None or missing & built_for.fields):
            continue
        new = list(_unknown_values(model, built_for))
        if any(is_default for _, _, is_default in new):  # payloads without the field have the value, too
            continue
        tables[model.TYPE] = table
        unknown |= {(model.TYPE, path) for path in missing}
        values |= {(model.TYPE, path, value) for path, value, _ in new}
    lacks = NativeLag(frozenset({model.TYPE for model in models} - set(tables)), frozenset(unknown), frozenset(values))
    return tables, lacks


def table_of(model: type[BaseModel], known: KnownType, path: str = "") -> list[TableField]:
    """Returns the fields of ``model`` in order. ``known``: what the module was built for."""
    return [
        _table_field(field.name, field.type, field.nullable, field.info, known, path)
        for field in shape_of(model).fields
    ]


def _unknown_values(model: type[BaseModel], known: KnownType, path: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield the values of enums that the module was not built for, in fields that it was built for: the field's path,
    the value, and whether it is the field's default."""
    for each in shape_of(model).fields:
        name = path + each.name
        if not known.has(path, each.name):
            continue
        inner = _inner(each.type)
        if isinstance(inner, Choice):
            default = None if each.info.is_required() else each.info.get_default(call_default_factory=True)
            for option in inner.enum:
                if option.value not in known.choices.get(name, frozenset()):
                    yield name, str(option.value), option is default
        if isinstance(inner, PartOf):
            yield from _unknown_values(inner.model, known, f"{name}.")


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
    inner = [_inner(field.type) for field in shape.fields]
    return (
        not shape.other_validators
        and {name for name, _ in shape.validators} <= there
        and all(_is_checked_there(kind.model) for kind in inner if isinstance(kind, PartOf))
    )


def _inner(kind: FieldType) -> FieldType:
    """Returns the type of a list's items or of a map's values; else the type itself."""
    return kind.item if isinstance(kind, ListOf) else kind.value if isinstance(kind, MapOf) else kind


def _table_field(
    name: str, kind: FieldType, nullable: bool, info: FieldInfo, known: KnownType, path: str
) -> TableField:
    required = info.is_required()
    kind_name = _kind(kind) if known.has(path, name) else UNKNOWN
    if kind_name == UNKNOWN:
        return TableField(name, UNKNOWN, False, None if required else "null", -inf, False, inf, (), None)
    least, above, most = -inf, False, inf
    choices: tuple[str, ...] = ()
    part = None
    inner = _inner(kind)
    if isinstance(inner, Number):
        least, above, most = float(inner.least), inner.above_least, float(inner.most)
    elif isinstance(inner, Choice):
        there = known.choices.get(path + name, frozenset())
        choices = tuple(option.value for option in inner.enum if option.value in there)
    elif isinstance(inner, PartOf):
        part = table_of(inner.model, known, f"{path}{name}.")
    if isinstance(named := kind.name if isinstance(kind, MapOf) and part else kind, Text):
        most = float(named.most)
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
            return "choice" if _is_of_texts(kind) else UNKNOWN
        case Tokens():
            return "tokens"
        case PartOf():
            return "known_part" if getattr(kind.model, "UNKNOWN_FIELDS_MATTER", False) else "part"
        case MapOf():
            return "object" if kind == OBJECT else _kind_of_map(kind)
        case ListOf(item=item):
            return "objects" if item == OBJECT else "texts" if item == Text() else _kind_of_list(item)
        case Null() | OneOf() | Other():
            return UNKNOWN
        case _:
            assert_never(kind)


def _kind_of_list(item: FieldType) -> str:
    match item:
        case PartOf():
            return "parts"
        case Number(whole=True):
            return "integers"
        case Choice():
            return "choices" if _is_of_texts(item) else UNKNOWN
        case _:
            return UNKNOWN


def _kind_of_map(kind: MapOf) -> str:
    match kind:
        case MapOf(name=Text(), value=PartOf()):
            return "part_map"
        case MapOf(name=Text(most=most), value=Number(whole=True)) if most == inf:
            return "integer_map"
        case _:
            return UNKNOWN


def _is_of_texts(kind: Choice) -> bool:
    return all(isinstance(option.value, str) for option in kind.enum)


def _json(default: Any, part: list[TableField] | None) -> str:
    if isinstance(default, BaseModel):
        return default.model_dump_json(include={field.name for field in part or () if field.kind != UNKNOWN})
    return json.dumps(default, separators=(",", ":"))
