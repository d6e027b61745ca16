"""Checks the filters of `headrace tail` against the types of the topic: a filter that cannot match any record is an
error instead of an empty output."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from headrace.deploy.tail.filters import Condition, Filters
from headrace.deploy.tail.record import short_type
from headrace.schemas.model import Record
from headrace.schemas.side_topics import PREFIX
from headrace.schemas.topics import EVENTS, TOPICS

Schema = Mapping[str, Any]
Model = type[Record]

_NUMBERS = frozenset({"number", "integer", "null"})

MAX_NAMED = 40
"""Most names that an error message lists."""


def models_of(topic: str) -> tuple[Model, ...]:
    """Returns the types of ``topic``, a topic of headrace or of a replay; none for any other topic."""
    name = topic.removeprefix(PREFIX).partition(".")[2] if topic.startswith(PREFIX) else topic
    return next((each.models for each in TOPICS if each.name == name), ())


def check_filters(filters: Filters, topic: str, models: Sequence[Model]) -> None:
    """Raise ``ValueError`` if no record of ``topic``, whose types are ``models``, can match ``filters``.

    A topic whose types are not known (no ``models``) is not checked.
    """
    if not models:
        return
    chosen = [model for model in models if not filters.types or {model.TYPE, short_type(model.TYPE)} & {*filters.types}]
    names = {*(model.TYPE for model in models), *(short_type(model.TYPE) for model in models)}
    for name in filters.types:
        if name not in names:
            raise ValueError(f"No record of {topic} has the type {name!r}: {_suggest([*map(_short, models)], name)}")
    for label, wanted in (("run", filters.run), ("agent", filters.agent)):
        if wanted is not None and topic != EVENTS.name and not any(map(_labelled(label), chosen)):
            raise ValueError(f"Records of {topic} have no field {label}: no record would match --{label}.")
    for condition in filters.conditions:
        check_condition(condition, topic, chosen)


def check_condition(condition: Condition, topic: str, models: Sequence[Model]) -> None:
    """Raise ``ValueError`` if ``condition`` names a field that no type in ``models`` has, or a value that the field
    cannot have."""
    leaves = [leaf for model in models for leaf in _leaves_of(model, condition)]
    path = ".".join(condition.path)
    if not leaves:
        known = sorted(
            {name for model in models for name in model.model_json_schema(mode="serialization")["properties"]}
        )
        raise ValueError(f"No record of {topic} has a field {path}: {_suggest(known, condition.path[0])}")
    if condition.value == "null":
        return
    kinds = {kind for leaf in leaves for kind in _kinds(leaf)}
    if kinds <= _NUMBERS and not _is_number(condition.value):
        raise ValueError(f"{path} is a number, but {condition.value!r} is not.")
    values = [str(value) for leaf in leaves for value in leaf.get("enum", ())]
    closed = values and all("enum" in leaf or leaf.get("type") == "null" for leaf in leaves)
    if closed and condition.sign in ("=", "!=") and condition.value not in values:
        raise ValueError(f"{path} is never {condition.value!r}: {_suggest(values, condition.value)}")


def _leaves_of(model: Model, condition: Condition) -> Iterator[Schema]:
    schema = model.model_json_schema(mode="serialization")
    yield from _leaves(schema, condition.path, schema.get("$defs", {}), condition.value == "null")


def _leaves(schema: Any, path: tuple[str, ...], definitions: Mapping[str, Any], whole: bool) -> Iterator[Schema]:
    """Yield the schemas of the values that ``path`` may have; an empty schema allows any value."""
    if schema is True or not isinstance(schema, Mapping):
        yield {}
        return
    if "$ref" in schema:
        yield from _leaves(definitions[schema["$ref"].rpartition("/")[2]], path, definitions, whole)
        return
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    if choices:
        for choice in choices:
            yield from _leaves(choice, path, definitions, whole)
        return
    if "items" in schema:  # A path into a list means each of its items.
        yield from _leaves(schema["items"], path, definitions, whole)
        return
    if not path:
        # A nested record can only be compared with null: the misspelt `components.f_beta.vlue` must not match the
        # component f_beta itself.
        if whole or "properties" not in schema:
            yield schema
        return
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    if path[0] in properties:
        yield from _leaves(properties[path[0]], path[1:], definitions, whole)
    elif isinstance(others, Mapping):  # Names of tools and components are free and may contain dots.
        for length in range(1, len(path) + 1):
            yield from _leaves(others, path[length:], definitions, whole)
    elif not properties and others is not False and schema.get("type") in (None, "object", "array"):
        yield {}


def _kinds(leaf: Schema) -> set[str]:
    kind = leaf.get("type")
    return {"any"} if kind is None else {kind} if isinstance(kind, str) else set(kind)


def _labelled(label: str) -> Any:
    def has(model: Model) -> bool:
        return label in model.model_fields or "started" in model.model_fields

    return has


def _short(model: Model) -> str:
    return short_type(model.TYPE)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _suggest(names: Collection[str], wanted: str) -> str:
    near = get_close_matches(wanted, names, 1)
    shown = ", ".join([*names][:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
    return (f"did you mean {near[0]}? " if near else "") + f"There are {shown}"
