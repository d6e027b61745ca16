"""Spans become the same events in whatever order, and however often, they come."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openinference.semconv import trace as openinference
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from headrace.agents.consent import Consent
from headrace.agents.encoding import Note, encode_note
from headrace.agents.otel import names
from headrace.agents.otel.buffer import BufferLimits, SpanBuffer
from headrace.agents.otel.recording import Terms, notes_of
from headrace.agents.otel.span import Span
from headrace.agents.otel.trajectories import Grouped, SpanTrajectory, trajectories_of
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import VersionSpan
from headrace.schemas.wire import Message
from tests.agents.otel.spans import CONVENTIONS, TRACE, agent, chat, recorded, span, tool
from tests.agents.sdk_helpers import kinds

LIMIT = 1 << 20


def encoded(notes: list[Note]) -> list[Message]:
    return [encode_note(note, "spans", LIMIT).message for note in notes]


def events(*spans: Span, **group: Any) -> list[SpanTrajectory]:
    return trajectories_of(Grouped(spans, **group))


def fields(trajectory: SpanTrajectory, kind: str) -> list[dict[str, Any]]:
    return [event.fields for event in trajectory.events if f"headrace.{kind}.v1" == event.model.TYPE]


def labels(trajectory: SpanTrajectory) -> dict[str, int]:
    found = trajectory.events[0].fields["task"]["otel"].get("labels", {})
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_recorded_run_is_the_same_story_in_both_conventions(convention: str) -> None:
    spans = recorded(convention)
    notes = notes_of(Grouped(spans), Terms())
    assert kinds(notes) == [
        "trajectory.started", "model.called", "tool.called", "tool.returned", "model.called", "trajectory.ended",
    ]  # fmt: skip
    assert [note.seq for note in notes] == list(range(6))
    first, second = (note.fields for note in notes if note.model.TYPE == "headrace.model.called.v1")
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    assert second["messages"] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
        {"role": "assistant", "content": "It is 18 degrees in Paris."},
    ]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert (first["usage"].prompt_tokens, second["usage"].completion_tokens) == (20, 9)
    assert first["sampling"].temperature == 0.7
    assert (notes[2].fields["arguments"], notes[3].fields["result"]) == ({"city": "Paris"}, "18 degrees")
    assert (notes[0].fields["agent"], notes[5].fields["answer"]) == ("weather", "It is 18 degrees in Paris.")
    assert "sampled_ids" not in first  # so it is analysed, and never trained
    assert all(message.value for message in encoded(notes))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_tools_without_spans_are_read_from_the_messages(convention: str) -> None:
    [trajectory] = events(*(each for each in recorded(convention) if each.name != "execute_tool weather"))
    [called], [returned] = fields(trajectory, "tool.called"), fields(trajectory, "tool.returned")
    assert (called["tool"], called["arguments"]) == ("weather", {"city": "Paris"})
    assert (returned["call_id"], returned["result"]) == (called["call_id"], "18 degrees")
    assert labels(trajectory) == {"tools_from_messages": 1}


attributes = st.fixed_dictionaries(
    {},
    optional={
        "gen_ai__operation__name": st.sampled_from(["chat", "execute_tool", "invoke_agent", "embeddings"]),
        "openinference__span__kind": st.sampled_from(["LLM", "TOOL", "AGENT", "CHAIN"]),
        "gen_ai__agent__name": st.sampled_from(["a", "b"]),
        "gen_ai__tool__name": st.sampled_from(["t", "u"]),
        "gen_ai__tool__call__id": st.sampled_from(["c1", "c2"]),
        "gen_ai__conversation__id": st.sampled_from(["one", "two"]),
    },
)


@st.composite
def span_sets(draw: st.DrawFn) -> list[Span]:
    """Spans of up to two traces, each with its root and all parents; clocks need not agree."""
    spans: list[Span] = []
    for trace in ("1" * 32, "2" * 32)[: draw(st.integers(1, 2))]:
        for number in range(1, draw(st.integers(2, 8))):
            parent = None if number == 1 else draw(st.integers(1, number - 1))
            start, length = draw(st.integers(0, 5)), draw(st.integers(0, 5))
            error = draw(st.sampled_from([None, None, "failed"]))
            spans.append(span(number, parent, start, start + length, trace=trace, error=error, **draw(attributes)))
    return spans


def through_buffer(spans: list[Span]) -> dict[str, list[Message]]:
    """The events by trajectory."""
    buffer = SpanBuffer(BufferLimits(grace_s=1, idle_s=2), one_process=False)
    for number, each in enumerate(spans):
        assert not buffer.add(each, number / 1000)
    messages = [message for group in buffer.due(100.0) for message in encoded(notes_of(group, Terms()))]
    assert len(buffer) == 0
    assert buffer.size == 0
    found: dict[str, list[Message]] = {}
    for message in messages:
        found.setdefault(message.key.decode(), []).append(message)
    return found


@settings(max_examples=100, deadline=None)
@given(span_sets(), st.randoms(use_true_random=False), st.data())
def test_order_and_repetition_change_nothing(spans: list[Span], random: Any, data: st.DataObject) -> None:
    shuffled = spans + data.draw(st.lists(st.sampled_from(spans), max_size=6))
    random.shuffle(shuffled)
    expected = through_buffer(spans)
    assert through_buffer(shuffled) == expected
    ids = [dict(message.headers)["ce_id"] for messages in expected.values() for message in messages]
    assert len(ids) == len(set(ids))
    for messages in expected.values():
        sequence = [int(dict(message.headers)["ce_sequence"]) for message in messages]
        assert sequence == list(range(len(messages)))
        assert dict(messages[0].headers)["ce_type"] == b"headrace.trajectory.started.v1"
        assert dict(messages[-1].headers)["ce_type"] == b"headrace.trajectory.ended.v1"


@settings(max_examples=50, deadline=None)
@given(span_sets(), st.data())
def test_lost_spans_leave_no_gaps(spans: list[Span], data: st.DataObject) -> None:
    left = data.draw(st.lists(st.sampled_from(spans), unique_by=lambda each: (each.trace_id, each.span_id)))
    for messages in through_buffer(left).values():
        assert [int(dict(each.headers)["ce_sequence"]) for each in messages] == list(range(len(messages)))


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ATTRIBUTE_NAMES = sorted(
    {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str) and "." in value}
    | set(names.SAMPLING)
    | {f"headrace.{name}" for name in (*names.TOKEN_FIELDS, *names.START_FIELDS, "version", "outcome", "group_size")}
    | {"llm.input_messages.0.message.role", "llm.output_messages.0.message.tool_calls.0", "llm.input_messages.x"}
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["chat", "execute_tool", "invoke_agent"]),
    st.dictionaries(st.sampled_from(ATTRIBUTE_NAMES), junk | junk.map(lambda value: json.dumps(value, default=str))),
)
def test_malformed_attributes_are_labelled_and_never_raise(operation: str, found: dict[str, Any]) -> None:
    given_names = {name.replace(".", "__"): value for name, value in found.items()}
    for operations in ({"gen_ai__operation__name": operation}, {"openinference__span__kind": "LLM"}):
        spans = [agent(1, None, 0, 9), span(2, 1, 1, 2, **{**given_names, **operations})]
        assert [note.seq for note in notes_of(Grouped(spans), Terms()) if note.seq == 0] != []
        assert encoded(notes_of(Grouped(spans), Terms()))


def test_malformed_messages_and_numbers_are_labelled() -> None:
    [trajectory] = events(
        chat(1, gen_ai__input__messages="[{", gen_ai__usage__input_tokens="many", gen_ai__request__top_p=7.0)
    )
    assert labels(trajectory) == {"malformed_messages": 1, "malformed_usage": 1, "malformed_sampling": 1}
    [called] = fields(trajectory, "model.called")
    assert called["sampling"].is_unknown


def test_what_is_too_large_is_left_out_and_labelled() -> None:
    [large] = events(chat(1, gen_ai__input__messages="x" * 600_000))
    assert labels(large) == {"attribute_too_large": 1}
    [small] = events(chat(1, gen_ai__input__messages=json.dumps([{"role": "user", "content": "\u0001" * 80_000}])))
    assert labels(small) == {"value_too_large": 1}
    assert fields(small, "model.called")[0]["hidden"] == ["messages"]


def test_an_agent_in_another_is_a_sub_agent() -> None:
    main, sub = events(
        agent(1, None, 0, 20),
        chat(2, 1, 1, 2),
        tool(3, 1, 3, 15),
        agent(4, 3, 4, 14, name="b", error="gave up"),
        chat(5, 4, 5, 6),
        tool(6, 4, 7, 8),
        chat(7, 1, 16, 17),
    )
    assert [event.model.TYPE.split(".")[1:3] for event in main.events] == [
        ["trajectory", "started"], ["model", "called"], ["tool", "called"], ["subagent", "started"],
        ["subagent", "finished"], ["tool", "returned"], ["model", "called"], ["trajectory", "ended"],
    ]  # fmt: skip
    [finished] = fields(main, "subagent.finished")
    assert (finished["name"], finished["status"], finished["steps"]) == ("b", "failed", 1)
    assert finished["sub_trajectory_id"] == sub.trajectory_id
    assert sub.parent_id == main.trajectory_id == sub.events[0].fields["parent_trajectory_id"]
    assert (sub.events[0].fields["agent"], sub.events[-1].fields["status"]) == ("b", "failed")
    assert len(fields(sub, "tool.called")) == 1
    assert [each.events[0].fields["role"] for each in (main, sub)] == ["trainable", "frozen"], "as the SDK's own"


def test_a_tool_that_failed_has_the_class_of_its_error() -> None:
    [trajectory] = events(agent(1, None, 0, 9), tool(2, 1, 1, 2, error="no shop"), tool(3, 1, 3, 4))
    assert [(each["status"], each["error_class"]) for each in fields(trajectory, "tool.returned")] == [
        ("error", "environment"),
        ("ok", None),
    ]


def test_one_call_that_two_instrumentations_record_is_one_event() -> None:
    [trajectory] = events(agent(1, None, 0, 9), chat(2, 1, 1, 4), chat(3, 2, 2, 3), agent(4, 1, 5, 6))
    assert [called["call_id"] for called in fields(trajectory, "model.called")] == [f"{3:016x}"]
    assert labels(trajectory) == {"nested_model_calls": 1}


def test_tokens_come_from_own_attributes_only() -> None:
    own = {"headrace__context_ids": [1, 2], "headrace__sampled_ids": [3, 4], "headrace__logprobs": [-0.5, -1.0]}
    version = {"headrace__version": 7, "headrace__version_run": "r"}
    [trajectory] = events(chat(1, **own, **version))
    [called] = fields(trajectory, "model.called")
    assert list(called["sampled_ids"]) == [3, 4]
    assert called["version_spans"] == [VersionSpan(version=7, start=0, end=2, run="r")]
    [trajectory] = events(chat(1, **own | {"headrace__logprobs": [-0.5]}))
    assert labels(trajectory) == {"malformed_tokens": 1}
    assert "sampled_ids" not in fields(trajectory, "model.called")[0]


def test_consent_and_sampling_decide_for_the_whole() -> None:
    spans = [agent(1, None, 0, 9), chat(2, 1, 1, 2), agent(3, 1, 3, 4, name="b")]
    assert not notes_of(Grouped(spans), Terms(Consent.UNRECORDED))
    assert {note.fields["consent"] for note in notes_of(Grouped(spans), Terms(Consent.ANALYSE)) if note.seq == 0} == {
        False
    }
    shares = [
        bool(notes_of(Grouped([chat(1, trace=f"{number:032x}")]), Terms(sample_rate=0.5))) for number in range(1, 200)
    ]
    assert 60 < sum(shares) < 140


def test_what_comes_late_is_labelled_and_has_the_consent_of_its_trace() -> None:
    buffer = SpanBuffer(BufferLimits(grace_s=1, idle_s=5), one_process=False)
    for each in (agent(1, None, 0, 9, headrace__consent="unrecorded"), chat(2, 1, 1, 2)):
        buffer.add(each, 0.0)
    [group] = buffer.due(1.0)
    assert group.consent is Consent.UNRECORDED
    buffer.add(chat(2, 1, 1, 2), 2.0)
    assert (buffer.counts.repeated, len(buffer)) == (1, 0)
    buffer.add(chat(3, 1, 3, 4), 2.0)
    [late] = buffer.due(3.0)
    assert (dict(late.labels), late.consent) == ({"late": 1}, Consent.UNRECORDED)
    [first], [second] = trajectories_of(group), trajectories_of(late)
    assert first.trajectory_id != second.trajectory_id
    assert labels(second) == {"late": 1}


def test_a_trace_without_its_root_ends_as_aborted_once_it_is_idle() -> None:
    buffer = SpanBuffer(BufferLimits(grace_s=1, idle_s=5), one_process=False)
    buffer.add(chat(2, 1, 1, 2), 0.0)
    assert not buffer.due(4.9)
    [group] = buffer.due(5.0)
    [trajectory] = trajectories_of(group)
    assert trajectory.events[-1].fields["status"] == "aborted"
    assert labels(trajectory) == {"missing_parents": 1}


def test_a_parent_in_another_process_is_a_root_for_this_one() -> None:
    for one_process, waits in ((True, 1.0), (False, 5.0)):
        buffer = SpanBuffer(BufferLimits(grace_s=1, idle_s=5), one_process=one_process)
        buffer.add(chat(2, 1, 1, 2, is_entry=True), 0.0)
        assert not buffer.due(waits - 0.1)
        [group] = buffer.due(waits)
        assert not group.timed_out


def test_traces_of_a_conversation_are_one_trajectory() -> None:
    turns = [
        chat(1, None, turn, turn, trace=f"{turn + 1:032x}", gen_ai__conversation__id="c", service=service)
        for turn, service in ((0, "shop"), (1, "shop"), (2, "other"))
    ]
    for by_conversation, expected in ((True, [1, 2]), (False, [1, 1, 1])):
        buffer = SpanBuffer(BufferLimits(idle_s=5, grace_s=1, by_conversation=by_conversation), one_process=False)
        for each in turns:
            buffer.add(each, 0.0)
        assert sorted(len(group.spans) for group in buffer.due(5.0)) == expected


def test_memory_is_bounded_and_what_is_evicted_is_labelled() -> None:
    buffer = SpanBuffer(BufferLimits(max_traces=3, max_spans=2, remembered_spans=4), one_process=False)
    evicted = []
    for number in range(1, 9):
        for each in (2, 3, 4):
            evicted += buffer.add(chat(each, 1, trace=f"{number:032x}"), 0.0)
    assert (len(buffer), len(evicted), buffer.counts.dropped) == (3, 5, 8)
    # The newest span of a trace may not have come when it is evicted, so the first that is evicted has all of its own.
    assert dict(evicted[0].labels) == {"evicted": 1, "missing_parents": 1, "spans_dropped": 1}
    assert sum(len(sent.spans) for sent in buffer._sent.values()) <= 4
    buffer = SpanBuffer(BufferLimits(max_characters=2000), one_process=False)
    for number in range(1, 100):
        buffer.add(span(1, trace=f"{number:032x}"), 0.0)
    assert buffer.size <= 2000
    assert buffer.counts.unrelated == 99 - len(buffer)


def test_a_conversation_of_many_traces_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as all traces of a service that gives its process's id as the session."""
    buffer, looked_at = SpanBuffer(BufferLimits(), one_process=False), list[str]()
    together = buffer._together
    monkeypatch.setattr(buffer, "_together", lambda each: looked_at.append(each) or together(each))
    for number in range(1, 101):
        buffer.add(chat(1, trace=f"{number:032x}", session__id="s"), float(number))
    buffer.add(chat(1, trace="f" * 32), 100.0)
    assert buffer.due(650.0) != [], "the trace of its own"
    assert len(looked_at) == 1 + 2, "one of them, and that trace to look at it and to take it"
    assert len(buffer.due(700.0)[0].spans) == 100


def test_the_work_grows_with_the_spans_and_not_with_the_sub_agents_times_the_spans() -> None:
    class Counted(dict[str, Any]):
        reads = 0

        def get(self, *arguments: Any) -> Any:
            Counted.reads += 1
            return super().get(*arguments)

    def reads(agents: int) -> int:
        spans = [agent(1, None, 0, 1_000, "root")]
        for number in range(2, 2 * agents, 2):
            spans += [agent(number, 1, number, number + 1, f"a{number}"), chat(number + 1, number, number, number + 1)]
        Counted.reads = 0
        trajectories_of(Grouped([replace(each, attributes=Counted(each.attributes)) for each in spans]))
        return Counted.reads

    assert reads(80) < 3 * reads(40)


def test_every_text_of_a_span_counts_towards_the_memory() -> None:
    plain = span(1, error="").size
    assert span(1, error="x" * 9_999, service="s" * 9_999).size == plain + 4_096 - len("shop") + MAX_NAME


def test_a_clock_that_was_not_set_costs_no_event() -> None:
    """Of a device that starts in 1970 and learns the time within a span."""
    unset = -1_700_000_000
    asks = json.dumps([{"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "grep"}]}])
    knows = json.dumps([{"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "found"}]}])
    spans = [
        chat(1, None, unset, unset, gen_ai__output__messages=asks),
        chat(2, None, unset, 0),
        chat(3, None, 0, 1, gen_ai__input__messages=knows),
        tool(4, None, unset, 2),
    ]
    [trajectory] = events(*spans)
    assert [each["latency_s"] for each in fields(trajectory, "model.called")] == [0.0, None, 1.0]
    assert [each["latency_s"] for each in fields(trajectory, "tool.returned")] == [None, None]
    assert len(encoded(notes_of(Grouped(spans), Terms()))) == len(trajectory.events)


def test_cycles_of_parents_are_cut() -> None:
    [trajectory] = events(chat(1, 2, 0, 1), chat(2, 1, 0, 1))
    assert labels(trajectory)["cycle"] == 1


def test_events_are_in_the_order_of_starts_and_tools_return_before_what_follows() -> None:
    [trajectory] = events(agent(1, None, 0, 9), tool(2, 1, 1, 5), tool(3, 1, 2, 3), chat(4, 1, 5, 6))
    order = [(event.model.TYPE.split(".")[-2], event.fields.get("tool")) for event in trajectory.events[1:-1]]
    assert order == [
        ("called", "tool2"), ("called", "tool3"), ("returned", "tool3"), ("returned", "tool2"), ("called", None),
    ]  # fmt: skip
    times = [event.time_ns for event in trajectory.events]
    assert all(first <= second for first, second in pairwise(times))


def test_spans_that_headrace_exports_are_not_an_agents() -> None:
    assert not events(agent(1, None, 0, 9, headrace__trajectory_id="t"))


def test_an_outcome_that_no_event_can_have_is_labelled() -> None:
    [trajectory] = events(agent(1, None, 0, 9, headrace__outcome=1e13))
    assert labels(trajectory) == {"malformed_outcome": 1}
    [trajectory] = events(agent(1, None, 0, 9, headrace__outcome=0.5))
    assert trajectory.events[-1].fields["outcome"] == 0.5


def test_the_names_are_those_of_the_conventions() -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {value for value in vars(names).values() if isinstance(value, str) and value.startswith("gen_ai.")}
    assert (used | set(names.SAMPLING)) - {"gen_ai."} <= known
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert {*names.MODEL_OPERATIONS, names.TOOL_OPERATION, names.AGENT_OPERATION} <= operations


def test_the_names_are_those_of_openinference() -> None:
    known = {
        value
        for part in (openinference.SpanAttributes, openinference.ToolCallAttributes, openinference.ToolAttributes)
        for value in vars(part).values()
        if isinstance(value, str)
    }
    used = {value for name, value in vars(names).items() if name.startswith("OI_")} | {names.SPAN_KIND, names.SESSION}
    assert used <= known
    assert {names.LLM_KIND, names.TOOL_KIND, names.AGENT_KIND} <= {
        each.value for each in openinference.OpenInferenceSpanKindValues
    }


def test_the_trace_is_in_the_events() -> None:
    note = notes_of(Grouped([chat(1)]), Terms())[0]
    headers = dict(encode_note(note, "spans", LIMIT).message.headers)
    assert headers["traceparent"] == f"00-{TRACE}-{1:016x}-01".encode()
