"""Notes become records: validated, with their envelope; what JSON cannot carry is described, not lost."""

import json
from array import array
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from headrace.agents.encoding import InvalidEvent, Note, encode_note, is_larger_than
from headrace.schemas.events import ModelCalled, ToolReturned, TrajectoryStarted
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode


def note(model: type[Record], fields: dict[str, Any], context: Context | None = None) -> Note:
    return Note(EVENTS, "t-1", 3, 1_700_000_000_123_456_789, context or Context(), model, fields)


def returned(result: Any) -> Any:
    message = encode_note(note(ToolReturned, {"call_id": "c1", "tool": "search", "result": result}), "test")
    return json.loads(message.value)["result"]


def test_the_envelope_carries_time_number_and_trajectory() -> None:
    envelope, payload = decode(*_parts(encode_note(note(TrajectoryStarted, {"task_id": "q", "agent": "a"}), "shop")))
    assert (envelope.subject, envelope.sequence, envelope.time_ms) == ("t-1", 3, 1_700_000_000_123)
    assert (envelope.source, envelope.type, envelope.traceparent) == ("shop", TrajectoryStarted.TYPE, None)
    assert payload == TrajectoryStarted(task_id="q", agent="a")


def test_the_host_s_span_becomes_the_traceparent() -> None:
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    context = set_span_in_context(span, Context())
    message = encode_note(note(TrajectoryStarted, {"task_id": "q", "agent": "a"}, context), "shop")
    assert decode(*_parts(message))[0].traceparent == f"00-{0xABC:032x}-{0xDEF:016x}-01"


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidEvent, match=r"trajectory.started.v1: agent: Field required"):
        encode_note(note(TrajectoryStarted, {"task_id": "q"}), "test")


def test_what_json_has_no_form_for_is_described() -> None:
    assert returned({"a": {1, 2}}) == {"a": [1, 2]}
    assert returned([object])[0].startswith("<class")
    assert returned("broken \ud800 text") == "broken ? text"
    assert returned([float("nan"), object()])[0] is None


def test_a_result_that_contains_itself_ends_at_itself() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert returned(loop) == [1, "<list>"]


def test_a_result_that_cannot_describe_itself_costs_the_event_and_nothing_else() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(InvalidEvent, match="RuntimeError"):
        returned(Hostile())


def test_token_arrays_survive_the_slow_way() -> None:
    fields = {"model": "m\ud800", "context_ids": array("i", [1, 2]), "sampled_ids": [3], "logprobs": array("f", [-1])}
    _, payload = decode(*_parts(encode_note(note(ModelCalled, fields), "test")))
    assert isinstance(payload, ModelCalled)
    assert payload.model == "m?"
    assert payload.context_ids == array("i", [1, 2])


def test_a_large_field_is_seen_before_it_is_serialised() -> None:
    assert is_larger_than({"result": "x" * 11}, 10)
    assert not is_larger_than({"result": "x" * 10, "n": 10**9}, 10)


def _parts(message: Any) -> tuple[Any, bytes]:
    return message.headers, message.value
