"""Events whose every text is a canary, for tests that look for canaries in what leaves the process."""

from collections.abc import Iterator
from typing import Any

from headrace.schemas.events import FACTS, ClockTicked, FeedbackGiven
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.model import Record
from headrace.schemas.shape import AnyJson, FieldType, ListOf, MapOf, OneOf, PartOf, Text, shape_of

MODELS = [*(model for model in FACTS if model is not ClockTicked), FeedbackGiven]


def planted(model: type[Record], canary: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each place of a text in the example of ``model``, with the fields of the example and ``canary`` in that place."""
    fields = EXAMPLES[model.TYPE].payload.model_dump(mode="python", exclude={"masked"})
    for field in shape_of(model).fields:
        if field.name == "masked":
            continue
        for place, value in _in_value(fields.get(field.name), field.type, canary):
            yield f"{model.TYPE}: {field.name}{place}", fields | {field.name: value}
    yield f"{model.TYPE}: an unknown field", fields | {"note": [{"deep": canary}]}
    yield f"{model.TYPE}: an unknown name", fields | {canary: 1}


def _in_value(value: Any, kind: FieldType, canary: Any) -> Iterator[tuple[str, Any]]:
    match kind:
        case Text():
            yield "", f"so {canary}"
        case AnyJson():
            yield "", canary
            yield "[]{}", [1, {"deep": ["er", canary]}]
            yield "{key}", {canary: 1, "other": 2}
        case OneOf(options=options):
            for option in options:
                yield from _in_value(value, option, canary)
        case MapOf():
            yield "{}", {**(value or {}), "x": canary}
            yield "{key}", {**(value or {}), canary: "x"}
        case ListOf(item=item):
            for place, planted_item in _in_value((value or [None])[0], item, canary):
                yield f"[0]{place}", [planted_item, *(value or [])[1:]]
        case PartOf(model=model):
            part = value if isinstance(value, dict) else {}
            for field in shape_of(model).fields:
                for place, inner in _in_value(part.get(field.name), field.type, canary):
                    yield f".{field.name}{place}", part | {field.name: inner}
            yield ".unknown", part | {"unknown": canary}
        case _:
            return
