"""Notes become validated records with an envelope; values that JSON cannot represent are described, not lost."""

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from headrace.agents.encoding import HUGE, InvalidEvent, Note, encode_note
from headrace.agents.json_form import TooLarge
from headrace.schemas.events import (
    ContextPruned,
    FeedbackGiven,
    ModelCalled,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message, decode

LIMIT = 100_000


def encoded(model: type[Record], fields: dict[str, Any], context: Context | None = None) -> Message:
    return encode_note(note(model, fields, context), "shop", LIMIT).message


def note(model: type[Record], fields: dict[str, Any], context: Context | None = None) -> Note:
    return Note(EVENTS, "t-1", 3, 1_700_000_000_123_456_789, context or Context(), model, fields)


def returned(result: Any) -> Any:
    message = encoded(ToolReturned, {"call_id": "c1", "tool": "search", "result": result})
    return json.loads(message.value)["result"]


def test_the_envelope_contains_time_number_and_trajectory() -> None:
    envelope, payload = decode(*_parts(encoded(TrajectoryStarted, {"task_id": "q", "agent": "a"})))
    assert (envelope.subject, envelope.sequence, envelope.time_ms) == ("t-1", 3, 1_700_000_000_123)
    assert (envelope.source, envelope.type, envelope.traceparent) == ("shop", TrajectoryStarted.TYPE, None)
    assert payload == TrajectoryStarted(task_id="q", agent="a")


def test_the_host_s_span_becomes_the_traceparent() -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    context = set_span_in_context(span, Context())
    message = encoded(TrajectoryStarted, {"task_id": "q", "agent": "a"}, context)
    assert decode(*_parts(message))[0].traceparent == f"00-{0xABC:032x}-{0xDEF:016x}-01"


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidEvent, match=r"trajectory.started.v1: agent: Field required"):
        encoded(TrajectoryStarted, {"task_id": "q"})


def test_values_that_json_cannot_represent_are_described_and_counted() -> None:
    generator = (n for n in [1, 2])
    fields = {"call_id": "c1", "tool": "search", "result": {"a": {1}, "rows": generator, "n": float("nan")}}
    done = encode_note(note(ToolReturned, fields), "shop", LIMIT)
    result = json.loads(done.message.value)["result"]
    assert result["a"] == [1]
    assert result["rows"] == {"unserialisable": "generator"}
    assert result["n"] == {"unserialisable": "float", "text": "nan"}
    assert (done.altered, done.described) == ({"unserialisable": 2}, "generator")
    assert list(generator) == [1, 2], "the host's generator was not advanced"


def test_invalid_unicode_is_replaced_and_counted() -> None:
    done = encode_note(note(TrajectoryEnded, {"answer": "broken \ud800 text", "error": "\udc00"}), "shop", LIMIT)
    assert json.loads(done.message.value) | {"status": "completed"} == {
        "status": "completed", "answer": "broken ? text", "error": "?", "outcome": None, "masked": {}, "stream": None,
        "continuations": None,
    }  # fmt: skip
    assert done.altered == {"surrogate": 2}


@pytest.mark.parametrize(
    ("model", "fields", "named"),
    [
        (ModelCalled, {"model": "m", "context_ids": (n for n in [1])}, "context_ids: expected a list or an array"),
        (ModelCalled, {"model": "m", "context_ids": map(int, "12")}, "context_ids: .* not map"),
        (ModelCalled, {"model": "m", "context_ids": [1, object()]}, "context_ids: expected numbers, not object"),
        (ModelCalled, {"model": "m", "context_ids": [2**40]}, "context_ids"),
        (ModelCalled, {"model": "m", "version_spans": iter([1])}, "version_spans"),
        (ModelCalled, {"model": "m", "messages": ["hello"]}, "messages.0: expected a dict, not str"),
        (ModelCalled, {"model": "m", "usage": {"prompt_tokens": 2**70}}, "usage.prompt_tokens"),
        (ToolCalled, {"call_id": "c", "tool": "t", "arguments": [1]}, "arguments: expected a dict, not list"),
        (ToolReturned, {"call_id": "c", "tool": "t", "error_class": "mine"}, "error_class: .*invalid_arguments"),
        (ContextPruned, {"pruned_ids": (n for n in "ab"), "tokens_before": 1, "tokens_after": 1}, "pruned_ids"),
        (ContextPruned, {"pruned_ids": [], "tokens_before": 2**70, "tokens_after": 1}, "tokens_before: .* 64 bits"),
        (TrajectoryEnded, {"outcome": float("nan")}, "outcome: nan is not a finite number"),
        (FeedbackGiven, {"signal": "s", "value": float("inf")}, "value: inf is not a finite number"),
        (FeedbackGiven, {"signal": "s", "value": iter([1.0])}, "value"),
    ],
)  # fmt: skip
def test_a_typed_field_accepts_no_other_type_and_advances_no_iterator(
    model: type[Record], fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidEvent, match=named):
        encoded(model, fields)
    assert all(list(value) for value in fields.values() if isinstance(value, Iterator)), "it still has all it had"


def test_a_generator_as_messages_is_described_in_a_list() -> None:
    stream = map(dict, [])
    value = json.loads(encoded(ModelCalled, {"model": "m", "messages": stream}).value)
    assert value["messages"] == [{"unserialisable": "map"}]


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_token_ids_come_as_any_sequence_of_numbers(kind: Any) -> None:
    fields = {"model": "m", "context_ids": kind(list(range(5_000))), "sampled_ids": [np.int64(7), 8]}
    _, payload = decode(*_parts(encoded(ModelCalled, fields)))
    assert isinstance(payload, ModelCalled)
    assert payload.context_ids == array("i", range(5_000))
    assert payload.sampled_ids == array("i", [7, 8])


def test_fields_that_are_unknown_to_the_type_are_sent() -> None:
    value = json.loads(encoded(TrajectoryEnded, {"answer": 1, 'quo"te': [1], "more": Path("/a")}).value)
    assert (value['quo"te'], value["more"], value["status"]) == ([1], "/a", "completed")


def test_token_arrays_can_be_encoded_from_any_form() -> None:
    fields = {"model": "m\ud800", "context_ids": array("i", [1, 2]), "sampled_ids": [3], "logprobs": array("f", [-1])}
    _, payload = decode(*_parts(encoded(ModelCalled, fields)))
    assert isinstance(payload, ModelCalled)
    assert payload.model == "m?"
    assert payload.context_ids == array("i", [1, 2])


@pytest.mark.parametrize("result", ["x" * LIMIT, {"a": [{"b": "x" * LIMIT}]}, [0] * LIMIT, "é" * (LIMIT - 100)])
def test_values_larger_than_an_event_are_not_encoded(result: Any) -> None:
    with pytest.raises(TooLarge):
        returned(result)
    with pytest.raises(TooLarge):
        encoded(ModelCalled, {"model": "m", "context_ids": [0] * (LIMIT + 1)})
    with pytest.raises(TooLarge):
        encoded(ToolReturned, {"call_id": "c", "tool": "t", "result": HUGE})


def _parts(message: Any) -> tuple[Any, bytes]:
    return message.headers, message.value
