"""Descriptions of the fields of a payload, including nested parts: path, type and documentation.

sampling.top_k         integer      Number of likeliest tokens to keep; 0 or −1 keeps every token.
version_spans[].end    integer ≥ 0  One past the last token of the span.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.schemas.model import Record

MAX_VALUES_INLINE = 4
"""Largest enum whose values are listed in the type's text; a larger one appears by name, and :func:`enums` lists its
values."""

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """Description of a field of a payload."""

    path: str
    """Names joined by dots, with ``[]`` for the items of a list and ``{}`` for the values of a map."""
    type: str
    """Type and bounds in words."""
    required: bool
    """Whether every record has it."""
    about: str
    """Its documentation, on one line."""


def fields(model: type[Record]) -> list[FieldDescription]:
    """Return every field of ``model`` in the order of the class, the fields of each part after the field that holds
    it."""
    schema = model.model_json_schema(mode="serialization")
    return list(_fields(schema, schema.get("$defs", {}), ""))


def enums(model: type[Record]) -> dict[str, list[str]]:
    """Return the values of those enums of ``model`` that are too long for a line, by enum name."""
    definitions = model.model_json_schema(mode="serialization").get("$defs", {})
    return {
        name: shape["enum"] for name, shape in definitions.items() if len(shape.get("enum", ())) > MAX_VALUES_INLINE
    }


def _fields(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[FieldDescription]:
    required = set(schema.get("required", ()))
    for name, shape in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield FieldDescription(path, _type(shape, definitions), name in required, _about(shape, definitions))
        for part, suffix in _parts(shape):
            yield from _fields(definitions[part], definitions, f"{path}{suffix}.")


def _about(shape: dict[str, Any], definitions: dict[str, Any]) -> str:
    # Pydantic omits a field's description if it equals that of its type.
    text = shape.get("description") or (definitions[_name(shape)]["description"] if "$ref" in shape else "")
    return " ".join(text.replace("``None``", "null").replace("``", "").split())


def _parts(shape: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of the parts in ``shape``, each with the suffix (``[]``, ``{}``) of the path that leads to
    it."""
    if "$ref" in shape:
        yield _name(shape), ""
    for option in shape.get("anyOf", ()):
        yield from _parts(option)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(shape.get(key), dict):
            for part, suffix in _parts(shape[key]):
                yield part, mark + suffix


def _type(shape: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "anyOf" in shape:
        return " or ".join(_type(option, definitions) for option in shape["anyOf"])
    if "$ref" in shape:
        values = definitions[_name(shape)].get("enum", ())
        return " | ".join(values) if 0 < len(values) <= MAX_VALUES_INLINE else _name(shape)
    if "contentEncoding" in shape:
        return str(shape["description"]).partition(" (")[0]
    if "prefixItems" in shape:
        return f"[{', '.join(_type(item, definitions) for item in shape['prefixItems'])}]"
    if shape.get("type") == "array":
        return f"list of {_type(shape['items'], definitions)}"
    if isinstance(shape.get("additionalProperties"), dict):
        return f"map to {_type(shape['additionalProperties'], definitions)}"
    bounds = [f"{sign} {shape[key]}" for key, sign in _BOUNDS.items() if key in shape]
    return " ".join([str(shape.get("type", "any JSON")), *bounds])


def _name(shape: dict[str, Any]) -> str:
    return str(shape["$ref"]).rsplit("/", 1)[-1]
