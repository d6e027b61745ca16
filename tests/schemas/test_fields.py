"""Fields are listed with path, type and description."""

import pytest

from headrace.schemas.events import ModelCalled, ToolReturned
from headrace.schemas.fields import enums, fields
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import MODELS


def field_types(model: type[Record]) -> dict[str, str]:
    return {field.path: field.type for field in fields(model)}


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.TYPE)
def test_every_field_of_every_type_has_a_description(model: type[Record]) -> None:
    assert fields(model)
    assert [field.path for field in fields(model) if not field.about] == []


def test_nested_parts_are_listed_under_their_field() -> None:
    listed = field_types(Trajectory)
    assert listed["segments"] == "list of Segment"
    assert listed["segments[].version_spans[].end"] == "integer ≥ 0"
    assert listed["tools{}.errors"] == "map to integer"
    assert listed["started.task_id"] == "string"


def test_types_are_described_in_words() -> None:
    assert field_types(ModelCalled)["logprobs"] == "log-probabilities or null"
    assert field_types(ModelCalled)["sampling.top_p"] == "number > 0 ≤ 1"
    assert field_types(ToolReturned)["status"] == "ok | error"
    assert field_types(DeadLetter)["headers"] == "list of [string, string or null]"
    assert field_types(ToolReturned)["result"] == "any JSON"


def test_a_long_enum_is_named_and_its_values_are_listed_separately() -> None:
    assert field_types(Rejection)["reason"] == "Reason"
    assert "late_for_group" in enums(Rejection)["Reason"]
    assert "ToolStatus" not in enums(ToolReturned)


def test_optional_fields_are_marked() -> None:
    required = {field.path for field in fields(ToolReturned) if field.required}
    assert required == {"call_id", "tool"}
