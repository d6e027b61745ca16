"""The fields of a payload as lines of text: path, type and the sentence under it, nested parts included.

sampling.temperature   number ≥ 0   0 is greedy.
version_spans[].end    integer ≥ 0  One past the last token of the span.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.schemas.model import Record

MAX_VALUES_INLINE = 4
"""Values of an enum that stand in the type's text; one with more is named, and listed by :func:`enums`."""

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a payload."""

    path: str
    """Where it stands: names joined by dots, ``[]`` for each item of a list, ``{}`` for each value of a map."""
    type: str
    """Type and bounds in words."""
    required: bool
    """Whether every record has it."""
    about: str
    """Its sentence."""


def fields(model: type[Record]) -> list[Field]:
    """Every field of ``model`` in the order of its class, each part's fields after the field that holds it."""
    schema = model.model_json_schema(mode="serialization")
    return list(_fields(schema, schema.get("$defs", {}), ""))


def enums(model: type[Record]) -> dict[str, list[str]]:
    """Enums of ``model`` that are too long for a line: their values by name."""
    definitions = model.model_json_schema(mode="serialization").get("$defs", {})
    return {
        name: shape["enum"] for name, shape in definitions.items() if len(shape.get("enum", ())) > MAX_VALUES_INLINE
    }


def _fields(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[Field]:
    required = set(schema.get("required", ()))
    for name, shape in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield Field(path, _type(shape, definitions), name in required, _about(shape, definitions))
        for part, suffix in _parts(shape):
            yield from _fields(definitions[part], definitions, f"{path}{suffix}.")


def _about(shape: dict[str, Any], definitions: dict[str, Any]) -> str:
    # Pydantic leaves out a field's sentence where it is its type's own.
    text = shape.get("description") or (definitions[_name(shape)]["description"] if "$ref" in shape else "")
    return " ".join(text.replace("``None``", "null").replace("``", "").split())


def _parts(shape: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of the parts in ``shape``, each with what its path gains on the way to it."""
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
