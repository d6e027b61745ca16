"""A shop's model, the same for every library: it searches, asks a tool that fails, asks another agent, and answers.

What is due it sees in the conversation, so that runs at the same time do not confuse it. A question with ``fails`` gets
an error.
"""

import json
from collections.abc import Sequence
from typing import Any

from headrace.agents.encoding import Note
from tests.agents.adapters.scripted import (
    Reply,
    chat,
    chat_stream,
    response,
    response_stream,
    text_item,
)
from tests.agents.sdk_helpers import kinds

ANSWER = "We have both."
TWO_TOOLS = (
    *("trajectory.started", "model.called", "tool.called", "tool.returned"),
    *("model.called", "tool.called", "tool.returned", "model.called", "trajectory.ended"),
)
"""Events of a run with a tool that answers and one that fails."""


def chat_shop(body: dict[str, Any]) -> Reply:
    """Answer a request of the Chat Completions API."""
    asked = _size(json.dumps([each for each in body["messages"] if each["role"] == "user"]))
    done = sum(each["role"] == "tool" for each in body["messages"])
    if "fails" in json.dumps(body["messages"]):
        return Reply({"error": {"message": "no such model", "type": "invalid_request_error"}}, status=400)
    due = _due(body, asked, done)
    if isinstance(due, str):
        return Reply(chat_stream(due[:3], due[3:]) if body.get("stream") else chat(due))
    call = {"id": due[0], "type": "function", "function": {"name": due[1], "arguments": json.dumps(due[2])}}
    return Reply(chat_stream(calls=(call,)) if body.get("stream") else chat(None, call))


def response_shop(body: dict[str, Any]) -> Reply:
    """Answer a request of the Responses API."""
    items = [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
    asked = _size(json.dumps([each for each in items if each.get("role") == "user"]))
    done = sum(each.get("type") == "function_call_output" for each in items)
    if "fails" in json.dumps(items):
        return Reply({"error": {"message": "no such model", "type": "invalid_request_error"}}, status=400)
    due = _due(body, asked, done)
    if isinstance(due, str):
        item = text_item(due)
    else:
        call = {"call_id": due[0], "name": due[1], "arguments": json.dumps(due[2])}
        item = {"id": "fc_1", "type": "function_call", "status": "completed", **call}
    return Reply(response_stream(item) if body.get("stream") else response(item))


def _size(text: str) -> str:
    """The size that a question is about, which tells runs at the same time apart."""
    return next((word for word in ("44", "46") if word in text), "")


def _due(body: dict[str, Any], size: str, done: int) -> str | tuple[str, str, dict[str, Any]]:
    """The answer: a text, or a tool call."""
    tools = [each.get("function", each)["name"] for each in body.get("tools") or ()]
    names = [name for name in tools if "search" in name or "stock" in name]
    others = [name for name in tools if name not in names]
    plan = [*((name, {"query": size}) for name in sorted(names)), *((name, {"input": size}) for name in others)]
    if done < len(plan):
        name, arguments = plan[done]
        return f"call_{size}_{name}", name, arguments if not name.startswith("transfer_to") else {}
    return f"{ANSWER} {size}".rstrip()


def by_trajectory(notes: Sequence[Note]) -> list[list[Note]]:
    """The events of each trajectory, in the order of their starts."""
    found: dict[str, list[Note]] = {}
    for note in notes:
        found.setdefault(note.trajectory_id, []).append(note)
    return list(found.values())


def fields_of(notes: Sequence[Note], kind: str) -> list[dict[str, Any]]:
    """The fields of all events of a kind."""
    return [note.fields for note in notes if kinds([note]) == [kind]]


def assert_two_tools(notes: list[Note], size: str) -> None:
    """The run of one question: a search, a tool that fails, an answer; each message once."""
    assert tuple(kinds(notes)) == TWO_TOOLS
    searched, stocked = fields_of(notes, "tool.called")
    assert (searched["tool"], searched["arguments"]) == ("search", {"query": size})
    assert (stocked["tool"], stocked["arguments"]) == ("stock", {"query": size})
    found, failed = fields_of(notes, "tool.returned")
    assert [found["call_id"], failed["call_id"]] == [searched["call_id"], stocked["call_id"]]
    assert [searched["call_id"], stocked["call_id"]] == [f"call_{size}_search", f"call_{size}_stock"]
    assert (found["status"], failed["status"]) == ("ok", "error")
    assert f"boots {size}" in str(found["result"])
    assert "no shop" in str(getattr(failed["result"], "arguments", failed["result"]))
    first, second, last = (call["messages"] for call in fields_of(notes, "model.called"))
    assert [each["role"] for each in first] == ["system", "user", "assistant"], first
    assert first[0]["content"] == "You sell boots."
    assert first[1]["content"] == f"boots in {size}?"
    assert [each["role"] for each in second] == ["tool", "assistant"]
    assert [each["role"] for each in last] == ["tool", "assistant"]
    assert last[-1]["content"] == f"{ANSWER} {size}"
    assert {call["usage"].prompt_tokens for call in fields_of(notes, "model.called")} == {9}
    assert notes[-1].fields["status"] == "completed"
    assert notes[-1].fields["answer"] == f"{ANSWER} {size}"


def assert_failed(notes: list[Note]) -> None:
    """The run whose model call was refused."""
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert (notes[1].fields["finish_reason"], notes[2].fields["status"]) == ("error", "failed")
    assert "no such model" in str(getattr(notes[1].fields["error"], "arguments", notes[1].fields["error"]))
