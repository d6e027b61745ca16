"""Every time, number and name is bounded where it enters, equally in the models, the structs and the C++."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.schemas.bounds import MAX_COUNT, MAX_NAME, MAX_SECONDS, MAX_STEPS, MAX_TIME_MS
from headrace.schemas.envelope import ID, SOURCE, SUBJECT, TIME, TRACEPARENT, BadTimeError, EnvelopeError, from_headers
from headrace.schemas.events import (
    FACTS,
    ClockTicked,
    FeedbackGiven,
    ModelCalled,
    Sampling,
    SubagentFinished,
    ToolCalled,
    ToolReturned,
    TrajectoryStarted,
)
from headrace.schemas.model import Part, Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.structs import Doubt, StructReader
from tests.streams.builders import T0, event, started, with_header

GOOD: dict[type[Record], dict[str, Any]] = {
    TrajectoryStarted: {"task_id": "t", "agent": "a"},
    ModelCalled: {"model": "m"},
    ToolCalled: {"call_id": "c", "tool": "t"},
    ToolReturned: {"call_id": "c", "tool": "t"},
    SubagentFinished: {"name": "n", "sub_trajectory_id": "s"},
    ClockTicked: {"unix_ms": T0},
    FeedbackGiven: {"signal": "s", "value": 1.0},
}
LONG = "x" * (MAX_NAME + 1)
BEYOND: list[tuple[type[Record], str, Any]] = [
    *((TrajectoryStarted, name, LONG) for name in ("task_id", "group_id", "cohort_key", "agent", "run", "tenant")),
    (TrajectoryStarted, "group_size", MAX_COUNT + 1),
    (ModelCalled, "prefix_length", MAX_COUNT + 1),
    (ModelCalled, "latency_s", MAX_SECONDS * 2),
    (ModelCalled, "latency_s", float("inf")),
    (ModelCalled, "model", LONG),
    (ModelCalled, "call_id", LONG),
    (ModelCalled, "choice", MAX_COUNT + 1),
    (ModelCalled, "choice", -1),
    (ModelCalled, "delivered", "maybe"),
    (ToolCalled, "tool", LONG),
    (ToolCalled, "call_id", "ä" * (MAX_NAME + 1)),
    (ToolReturned, "latency_s", float("nan")),
    (SubagentFinished, "steps", MAX_STEPS + 1),
    (SubagentFinished, "stage", 10**30),
    (ClockTicked, "unix_ms", MAX_TIME_MS),
    (FeedbackGiven, "signal", LONG),
    (FeedbackGiven, "delay_s", 1e300),
]


@pytest.mark.parametrize(("model", "field", "value"), BEYOND, ids=lambda each: str(each)[:40])
def test_a_value_beyond_its_bound_is_refused_by_the_model_and_not_read_by_the_struct(
    model: type[Record], field: str, value: Any
) -> None:
    text = json.dumps(GOOD[model] | {field: value}).encode()
    with pytest.raises(ValidationError, match=field):
        model.model_validate_json(text)
    with pytest.raises(Doubt):
        StructReader(model).read(text)


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (TrajectoryStarted, "task_id", LONG[1:]),
        (ToolCalled, "tool", "ä" * MAX_NAME),
        (ModelCalled, "latency_s", MAX_SECONDS),
        (ModelCalled, "choice", MAX_COUNT),
        (SubagentFinished, "steps", MAX_STEPS),
        (ClockTicked, "unix_ms", MAX_TIME_MS - 1),
    ],
)
def test_a_value_at_its_bound_is_accepted(model: type[Record], field: str, value: Any) -> None:
    text = json.dumps(GOOD[model] | {field: value}).encode()
    assert getattr(model.model_validate_json(text), field) == value
    assert getattr(StructReader(model).read(text), field) == value


def _numbers(model: type[Record] | type[Part]) -> list[tuple[str, str]]:
    """Owner and name of each field that holds a plain number."""
    found = []
    schema = model.model_json_schema()
    for owner, part in {model.__name__: schema, **schema.get("$defs", {})}.items():
        for name, shape in part.get("properties", {}).items():
            options = shape.get("anyOf", [shape])
            found += [(owner, name) for option in options if option.get("type") in ("integer", "number")]
    return found


SCORES = {
    ("FeedbackGiven", "value"),
    ("TrajectoryEnded", "outcome"),
    ("Trajectory", "outcome"),
    ("Reward", "total"),
    ("Reward", "maximum"),
}
"""Scores have the scale of their spec, which bounds them."""


@pytest.mark.parametrize("model", [*FACTS, FeedbackGiven, Trajectory, Reward], ids=lambda model: model.__name__)
def test_every_number_of_an_event_is_bounded(model: type[Record]) -> None:
    """Covers fields that are added later."""
    parts: dict[str, Any] = {model.__name__: model}
    for info in model.model_fields.values():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Part):
            parts[info.annotation.__name__] = info.annotation
    for owner, name in _numbers(model):
        if owner not in parts or (owner, name) in SCORES:
            continue
        validator = parts[owner].__pydantic_validator__
        for huge in (10**40, -(10**40)):
            with pytest.raises(ValidationError) as caught:
                validator.validate_python({name: huge})
            assert any(name in problem["loc"] for problem in caught.value.errors()), (owner, name, huge)


@pytest.mark.parametrize(
    "time",
    [
        "9999-12-31T23:59:59.000-23:59",
        "0001-01-01T00:00:00.000+23:59",
        "2200-01-01T00:00:00.000Z",
        "1969-12-31T23:59:59Z",
    ],
)
def test_a_time_out_of_bounds_is_a_bad_time(time: str) -> None:
    record = with_header(event("s1", 0, started()), TIME, time.encode())
    with pytest.raises(BadTimeError, match="from 1970 on and before 2200"):
        from_headers(record.headers)
    with pytest.raises(UnreadableRecord) as caught:
        decode(record.headers, record.value)
    assert caught.value.error is DeadLetterError.BAD_TIME


@pytest.mark.parametrize("name", [ID, SOURCE, SUBJECT, TRACEPARENT])
def test_an_envelope_attribute_that_is_too_long_is_refused(name: str) -> None:
    record = with_header(event("s1", 0, started()), name, b"x" * 2049)
    with pytest.raises(EnvelopeError, match=f"{name} has 2,049 bytes"):
        from_headers(record.headers)


def test_sampling_parameters_are_bounded() -> None:
    for fields in ({"temperature": float("nan")}, {"top_k": 2**31}, {"seed": 2**63}):
        with pytest.raises(ValidationError):
            Sampling(**fields)
