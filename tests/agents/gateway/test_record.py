"""Events of a call: valid, complete, and without what a masked session hides."""

from array import array
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Message, MessageRole, assistant, call_of
from headrace.agents.gateway.nodes import Answer
from headrace.agents.gateway.record import (
    CallRecord,
    TaskInfo,
    model_called,
    tool_called,
    tool_returned,
    trajectory_started,
)
from headrace.agents.gateway.terms import Terms
from headrace.schemas.events import Role, Sampling, ToolStatus, Usage, VersionSpan
from headrace.schemas.hidden import TOKEN_FIELDS

TERMS = Terms(recorded=True, consent=True, masked=False, sample_rate=0.5)


def record(**changes: Any) -> CallRecord:
    answer = Answer(
        message=assistant("hi", (call_of("c1", "bash", {"a": 1}, "x"),)),
        sampled_ids=array("i", [7, 8]),
        logprobs=array("f", [-0.5, -1.0]),
        version_spans=(VersionSpan(version=3, start=0, end=1), VersionSpan(version=4, start=1, end=2)),
        finish_reason="tool_calls",
        delivered=True,
    )
    fields: dict[str, Any] = {
        "call_id": "id-1",
        "choice": 0,
        "model": "policy",
        "prefix_length": 4,
        "prefix_sha256": "ab",
        "context_ids": array("i", [1, 2]),
        "messages": (Message.of(MessageRole.USER, ("q",)),),
        "previous_calls": (),
        "answer": answer,
        "sampling": Sampling(temperature=0.7),
        "usage": Usage(prompt_tokens=6, completion_tokens=2),
        "latency_s": 0.5,
    }
    return CallRecord(**fields | changes)


def test_a_call_is_recorded_with_its_exact_tokens() -> None:
    event = model_called(record(), masked=False)
    assert (event.prefix_length, event.prefix_sha256) == (4, "ab")
    assert (event.context_ids, event.sampled_ids) == (array("i", [1, 2]), array("i", [7, 8]))
    assert event.logprobs == array("f", [-0.5, -1.0])
    assert [span.version for span in event.version_spans] == [3, 4]
    assert (event.finish_reason, event.latency_s, event.sampling.temperature) == ("tool_calls", 0.5, 0.7)
    assert event.usage == Usage(prompt_tokens=6, completion_tokens=2)
    assert [message["role"] for message in event.messages or ()] == ["user", "assistant"]
    assert (event.call_id, event.choice, event.delivered) == ("id-1", 0, True)


def test_a_masked_call_has_neither_tokens_nor_messages() -> None:
    event = model_called(record(), masked=True)
    assert all(getattr(event, name) is None for name in (*TOKEN_FIELDS, "messages"))
    assert event.hidden == ["context_ids", "logprobs", "messages", "sampled_ids"]
    assert (event.prefix_length, event.prefix_sha256, event.version_spans) == (0, None, [])
    assert event.usage.completion_tokens == 2


def test_a_trajectory_starts_with_what_the_session_says() -> None:
    task = TaskInfo(task_id="t", group_id="g", group_size=8, agent="coder", run="r", task={"target": 7})
    event = trajectory_started(
        task, TERMS, tenant="acme", session_id="s", agent="codex", role=Role.FROZEN, parent_trajectory_id="p"
    )
    assert (event.task_id, event.group_id, event.group_size, event.agent) == ("t", "g", 8, "coder")
    assert (event.run, event.task, event.tenant, event.role) == ("r", {"target": 7}, "acme", Role.FROZEN)
    assert (event.consent, event.sample_rate, event.parent_trajectory_id) == (True, 0.5, "p")


@pytest.mark.parametrize(("client", "agent"), [("codex", "codex"), (None, "gateway")])
def test_without_a_task_the_session_and_the_client_name_it(client: str | None, agent: str) -> None:
    event = trajectory_started(
        TaskInfo(), TERMS, tenant="a", session_id="s", agent=client, role=Role.TRAINABLE, parent_trajectory_id=None
    )
    assert (event.task_id, event.agent) == ("s", agent)


def test_tools_are_recorded_with_arguments_and_result() -> None:
    call = call_of("c1", "bash", '{"command": "ls"}', "x")
    called = tool_called(call, masked=False)
    assert (called.call_id, called.tool, called.arguments) == ("c1", "bash", {"command": "ls"})
    result = Message.of(MessageRole.TOOL, ("no such file",), answers=0, failed=True)
    returned = tool_returned("c1", "bash", result, 1.5, masked=False)
    assert (returned.status, returned.error_class, returned.result) == (ToolStatus.ERROR, None, "no such file")
    assert returned.latency_s == 1.5
    assert tool_called(call, masked=True).arguments == {}
    assert tool_returned("c1", "bash", result, -1.0, masked=True).result is None
    assert tool_returned("c1", "bash", result, -1.0, masked=True).latency_s == 0.0


def test_a_tool_with_a_long_name_is_recorded_under_its_beginning() -> None:
    assert len(tool_called(call_of("c", "t" * 600, {}, "x"), masked=False).tool) == 512
