"""Answers that a library reports late keep their place, and their tool calls are recorded in time."""

from typing import Any

from headrace.agents.adapters.recorder import RecordedCall
from headrace.agents.adapters.requests import read_answer
from headrace.agents.encoding import Note
from headrace.agents.gateway.canonical import Api
from headrace.agents.sdk import Headrace
from tests.agents.adapters.scripted import SEARCH, chat
from tests.agents.sdk_helpers import kinds

ASK = {"role": "user", "content": "boots in 44?"}
SAID = {"role": "assistant", "content": None, "tool_calls": [SEARCH]}
FOUND = {"role": "tool", "tool_call_id": "call_1", "content": "boots"}


def test_reports_in_any_order_make_the_same_trajectory(headrace: Headrace, notes: list[Note]) -> None:
    """``early``: both answers are reported after the end; otherwise the first is reported before the second request."""
    found = []
    for early in (False, True):
        notes.clear()
        recorder = headrace.recorder(agent="a", record_tools=True)

        def begin(*messages: dict[str, Any]) -> RecordedCall:
            body = {"model": "m", "messages": list(messages), "stream": True}
            call = recorder.call(Api.CHAT, body, may_be_late=True)  # noqa: B023 - called in this iteration
            assert call is not None
            return call

        with headrace.trajectory(task_id="order-17", agent="a"):
            first = begin(ASK)
            if not early:
                first.answered({}, lambda: read_answer(Api.CHAT, chat(None, SEARCH)))
            second = begin(ASK, SAID, FOUND)
        if early:
            first.answered({}, lambda: read_answer(Api.CHAT, chat(None, SEARCH)))
        second.answered({}, lambda: read_answer(Api.CHAT, chat("Yes.")))
        ordered = sorted(notes, key=lambda note: note.seq or 0)
        assert [note.seq for note in ordered] == [0, 1, 2, 3, 4, 5]
        assert kinds(ordered) == [
            *("trajectory.started", "model.called", "tool.called", "tool.returned", "model.called"),
            "trajectory.ended",
        ]
        tools = ordered[2].fields, {name: ordered[3].fields[name] for name in ("call_id", "status", "result")}
        assert (ordered[3].fields["latency_s"] is None) == early
        found.append((ordered[1].fields["messages"], ordered[4].fields["messages"], tools))
    assert found[0] == found[1]
    assert headrace.stats.dropped == {}


def test_the_tools_of_an_unknown_history_are_not_recorded(headrace: Headrace, notes: list[Note]) -> None:
    recorder = headrace.recorder(agent="a", record_tools=True)
    with headrace.trajectory(task_id="order-17", agent="a"):
        call = recorder.call(Api.CHAT, {"model": "m", "messages": [ASK, SAID, FOUND]}, may_be_late=True)
        assert call is not None
        call.answered({}, lambda: read_answer(Api.CHAT, chat("Yes.")))
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
