"""Anthropic Messages: blocks in order, each started, filled and stopped."""

from typing import Any

import pytest

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    AnswerUsage,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
)
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind
from headrace.agents.gateway.framing.messages import MessagesFramer, tool_input
from tests.agents.gateway.framing.answers import LS, MESSAGES, bash, ended, streamed, whole
from tests.agents.gateway.framing.clients import json, message_events, read_message_stream

ONE = AnswerOptions()
TOOL = {"type": "tool_use", "id": "call_0", "name": "bash", "input": {}}


def started(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def changed(index: int, kind: str, **fields: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stopped(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_a_stream_of_thinking_text_and_a_call() -> None:
    deltas = [ReasoningDelta(0, "Hm."), TextDelta(0, "Let me "), TextDelta(0, "look."), *bash(0, LS)]
    assert message_events(streamed(MESSAGES.make(ONE), deltas, ended(FinishReason.TOOL_CALLS))) == [
        {
            "type": "message_start",
            "message": {
                "id": "resp_1",
                "type": "message",
                "role": "assistant",
                "model": "policy",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 12, "output_tokens": 0},
            },
        },
        started(0, {"type": "thinking", "thinking": "", "signature": ""}),
        changed(0, "thinking_delta", thinking="Hm."),
        changed(0, "signature_delta", signature="sig_x"),
        stopped(0),
        started(1, {"type": "text", "text": ""}),
        changed(1, "text_delta", text="Let me "),
        changed(1, "text_delta", text="look."),
        stopped(1),
        started(2, TOOL),
        changed(2, "input_json_delta", partial_json=LS),
        stopped(2),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {
                "input_tokens": 4,
                "output_tokens": 7,
                "cache_read_input_tokens": 8,
                "output_tokens_details": {"thinking_tokens": 3},
            },
        },
        {"type": "message_stop"},
    ]


def test_text_inside_a_call_follows_it_and_the_call_continues() -> None:
    head, *rest = bash(0, '{"command":', '"ls"}')
    deltas: list[Delta] = [head, rest[0], TextDelta(0, "one"), rest[1], TextDelta(0, "two"), *bash(1, "{}")]
    framer = MESSAGES.make(ONE)
    sent = framer.begin() + b"".join(framer.delta(delta) for delta in deltas[:5])
    assert framer.delivered().texts == ()  # held back so far
    sent += b"".join(framer.delta(delta) for delta in deltas[5:])
    assert framer.delivered().texts == ("onetwo",)
    assert message_events(sent)[1:] == [
        started(0, TOOL),
        changed(0, "input_json_delta", partial_json='{"command":'),
        changed(0, "input_json_delta", partial_json='"ls"}'),
        stopped(0),
        started(1, {"type": "text", "text": ""}),
        changed(1, "text_delta", text="onetwo"),
        stopped(1),
        started(2, {**TOOL, "id": "call_1"}),
        changed(2, "input_json_delta", partial_json="{}"),
    ]


def test_text_after_the_last_call_comes_with_the_end() -> None:
    deltas = [*bash(0, "{}"), TextDelta(0, "Done.")]
    (answer,) = read_message_stream(streamed(MESSAGES.make(ONE), deltas))
    assert answer.texts == ("Done.",)


def test_arguments_of_a_call_that_has_ended_are_counted() -> None:
    framer = MESSAGES.make(ONE)
    deltas = [*bash(0, "{}"), *bash(1, "{}"), ToolArguments(0, 0, "late"), ToolArguments(0, 9, "never started")]
    (answer,) = read_message_stream(streamed(framer, deltas))
    assert [call.arguments for call in answer.calls] == ["{}", "{}"]
    assert framer.answer.withheld_arguments == 2


@pytest.mark.parametrize(
    ("deltas", "reason", "stop_string", "written"),
    [
        ([], FinishReason.STOP, None, ("end_turn", None)),
        ([TextDelta(0, "Hi")], FinishReason.STOP, "###", ("stop_sequence", "###")),
        ([TextDelta(0, "Hi")], FinishReason.LENGTH, None, ("max_tokens", None)),
        ([TextDelta(0, "Hi")], FinishReason.ABORT, None, ("max_tokens", None)),
        (bash(0, LS), FinishReason.TOOL_CALLS, None, ("tool_use", None)),
        (bash(0, LS), FinishReason.STOP, None, ("tool_use", None)),
        (bash(0, LS), FinishReason.STOP, "###", ("tool_use", None)),
        (bash(0, LS[:-1]), FinishReason.STOP, "###", ("stop_sequence", "###")),
        (bash(0, LS), FinishReason.LENGTH, None, ("max_tokens", None)),
    ],
)
def test_stop_reasons(
    deltas: list[Delta], reason: FinishReason, stop_string: str | None, written: tuple[str, str | None]
) -> None:
    ends = ended(reason, stop_string)
    body = json.loads(whole(MESSAGES.make(ONE), deltas, ends))
    assert (body["stop_reason"], body["stop_sequence"]) == written
    last = message_events(streamed(MESSAGES.make(ONE), deltas, ends))[-2]
    assert (last["delta"]["stop_reason"], last["delta"]["stop_sequence"]) == written


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("", {}),
        (LS, {"command": "ls"}),
        ('{"n":1,"path":"/t', {"n": 1}),
        ("{", {}),
        ("[1]", {"raw": "[1]"}),
        ("rm -rf", {"raw": "rm -rf"}),
        ('{"n":NaN}', {"raw": '{"n":NaN}'}),
        ('{"n":1e999}', {"raw": '{"n":1e999}'}),
        ('{"n":-1e999,"m":"cu', {"raw": '{"n":-1e999,"m":"cu'}),
        ("[" * 5_000, {"raw": "[" * 5_000}),
    ],
)
def test_arguments_become_an_object(arguments: str, value: dict[str, Any]) -> None:
    assert tool_input(arguments) == value
    framer = MESSAGES.make(ONE)
    (block,) = json.loads(whole(framer, bash(0, arguments)))["content"]
    assert block["input"] == value
    (call,) = framer.delivered().calls
    assert json.loads(call.arguments) == value


def test_without_a_signature_none_is_written() -> None:
    framer = MessagesFramer(AnswerMeta("msg_1", 0, "policy"), ONE)
    stream = streamed(framer, [ReasoningDelta(0, "Hm.")], usage=AnswerUsage(3, 1))
    kinds = [each["delta"].get("type") for each in message_events(stream) if "delta" in each]
    assert kinds == ["thinking_delta", None]
    assert framer.delivered().echoed == ()
    assert message_events(stream)[-2]["usage"] == {"input_tokens": 3, "output_tokens": 1}


def test_a_failure_has_anthropics_form() -> None:
    framer = MESSAGES.make(ONE)
    error = ApiError(ErrorKind.UNAVAILABLE, "the spool is full: try again", request_id="req_1")
    assert message_events(framer.failed(error)) == [
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "the spool is full: try again"},
            "request_id": "req_1",
        }
    ]


def test_ping() -> None:
    assert MESSAGES.make(ONE).ping() == b'event: ping\ndata: {"type":"ping"}\n\n'
