"""OpenAI Responses: items in order, and the response object, which repeats the request."""

from typing import Any

import pytest

from headrace.agents.gateway.answer import (
    AnswerMeta,
    AnswerOptions,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
)
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind
from headrace.agents.gateway.framing.responses import ResponsesFramer
from tests.agents.gateway.framing.answers import LS, META, RESPONSES, USAGE, bash, ended, streamed, whole
from tests.agents.gateway.framing.clients import RESPONSE_EVENTS, json, response_events

ONE = AnswerOptions()


def brief(stream: bytes) -> list[tuple[str, Any]]:
    """Type of each event with what it says."""
    keys = ("delta", "text", "arguments", "part", "item", "response")
    return [
        (each["type"].removeprefix("response."), next(each[key] for key in keys if key in each))
        for each in response_events(stream)
    ]


def test_a_stream_of_reasoning_text_and_a_call() -> None:
    deltas = [ReasoningDelta(0, "Hm."), TextDelta(0, "Let me "), TextDelta(0, "look."), *bash(0, LS)]
    created, in_progress, *events, completed = brief(
        streamed(RESPONSES.make(ONE), deltas, ended(FinishReason.TOOL_CALLS))
    )
    reasoning = {"id": "rs_1_0", "type": "reasoning", "summary": [], "encrypted_content": "enc_x"}
    thought = {"type": "reasoning_text", "text": "Hm."}
    message = {"id": "msg_1_1", "type": "message", "role": "assistant"}
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": "Let me look."}
    call = {"id": "fc_1_2", "type": "function_call", "call_id": "call_0", "name": "bash"}
    output = [
        {**reasoning, "status": "completed", "content": [thought]},
        {**message, "status": "completed", "content": [part]},
        {**call, "status": "completed", "arguments": LS},
    ]
    assert events == [
        ("output_item.added", {**reasoning, "status": "in_progress", "content": []}),
        ("content_part.added", {**thought, "text": ""}),
        ("reasoning_text.delta", "Hm."),
        ("reasoning_text.done", "Hm."),
        ("content_part.done", thought),
        ("output_item.done", output[0]),
        ("output_item.added", {**message, "status": "in_progress", "content": []}),
        ("content_part.added", {**part, "text": ""}),
        ("output_text.delta", "Let me "),
        ("output_text.delta", "look."),
        ("output_text.done", "Let me look."),
        ("content_part.done", part),
        ("output_item.done", output[1]),
        ("output_item.added", {**call, "status": "in_progress", "arguments": ""}),
        ("function_call_arguments.delta", LS),
        ("function_call_arguments.done", LS),
        ("output_item.done", output[2]),
    ]
    assert created == ("created", in_progress[1])
    assert (created[1]["status"], created[1]["output"], created[1]["usage"]) == ("in_progress", [], None)
    assert completed == (
        "completed",
        {
            **created[1],
            "status": "completed",
            "output": output,
            "usage": {
                "input_tokens": 12,
                "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
                "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 3},
                "total_tokens": 19,
            },
        },
    )


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.STOP, "completed"), (FinishReason.LENGTH, "incomplete")])
def test_an_empty_answer_is_an_empty_message(reason: FinishReason, status: str) -> None:
    """A client has something to send back."""
    _, _, *events, last = brief(streamed(RESPONSES.make(ONE), [TextDelta(0, "")], ended(reason)))
    message = {"id": "msg_1_0", "type": "message", "role": "assistant"}
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
    output = {**message, "status": status, "content": [part]}
    assert events == [
        ("output_item.added", {**message, "status": "in_progress", "content": []}),
        ("content_part.added", part),
        ("output_text.done", ""),
        ("content_part.done", part),
        ("output_item.done", output),
    ]
    assert last[1]["output"] == [output]
    assert json.loads(whole(RESPONSES.make(ONE), [], ended(reason)))["output"] == [output]


def test_the_final_event_has_the_object_that_is_stored() -> None:
    deltas = [TextDelta(0, "Hi"), *bash(0, LS), TextDelta(0, "!")]
    framer = RESPONSES.make(ONE)
    last = response_events(streamed(framer, deltas))[-1]
    assert last["response"] == json.loads(framer.whole(ended(), USAGE))
    assert last["response"] == json.loads(whole(RESPONSES.make(ONE), deltas))


def test_the_request_is_repeated() -> None:
    tools = [{"type": "function", "name": "bash", "parameters": {}, "strict": False}]
    request = {
        "model": "other",
        "input": "never repeated",
        "stream": True,
        "instructions": "Be brief.\u2028",
        "metadata": {"order": "17"},
        "store": False,
        "tools": tools,
        "temperature": None,
        "parallel_tool_calls": False,
    }
    body = json.loads(whole(ResponsesFramer(META, ONE, request), []))
    assert {name: body[name] for name in ("instructions", "metadata", "store", "tools", "parallel_tool_calls")} == {
        "instructions": "Be brief.\u2028",
        "metadata": {"order": "17"},
        "store": False,
        "tools": tools,
        "parallel_tool_calls": False,
    }
    assert body["model"] == "policy"
    assert body["text"] == {"format": {"type": "text"}}
    assert "input" not in body
    assert "stream" not in body


def test_a_number_that_is_not_finite_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        ResponsesFramer(META, ONE, {"temperature": float("nan")})


@pytest.mark.parametrize(
    ("reason", "details"),
    [(FinishReason.LENGTH, {"reason": "max_output_tokens"}), (FinishReason.ABORT, None)],
)
@pytest.mark.parametrize("last", [[TextDelta(0, "Hi")], [ReasoningDelta(0, "Hm.")], bash(0, LS[:-1])])
def test_an_answer_that_is_cut_short_is_incomplete(
    reason: FinishReason, details: dict[str, str] | None, last: list[Delta]
) -> None:
    deltas = [*bash(5, "{}"), *last]
    *events, final = response_events(streamed(RESPONSES.make(ONE), deltas, ended(reason)))
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert done == final["response"]["output"]
    assert (final["type"], final["response"]["status"]) == ("response.incomplete", "incomplete")
    assert final["response"]["incomplete_details"] == details
    assert [item["status"] for item in final["response"]["output"]] == ["completed", "incomplete"]
    assert json.loads(whole(RESPONSES.make(ONE), deltas, ended(reason))) == final["response"]


def test_log_probabilities_are_those_of_the_text() -> None:
    deltas = [
        TokenLogprobs(0, (TokenLogprob("Hm", -0.5),)),
        ReasoningDelta(0, "Hm"),
        TokenLogprobs(0, (TokenLogprob("Hi", -0.25, top=(("Hi", -0.25),)),)),
        TextDelta(0, "Hi"),
        TokenLogprobs(0, (TokenLogprob("</s>", -1.0),)),
    ]
    stream = streamed(RESPONSES.make(ONE), deltas)
    hi = {"token": "Hi", "logprob": -0.25, "bytes": [72, 105]}
    written = [{**hi, "top_logprobs": [hi]}]
    found = [each["logprobs"] for each in response_events(stream) if each["type"].startswith("response.output_text")]
    assert found == [written, written]
    (_, message) = json.loads(whole(RESPONSES.make(ONE), deltas))["output"]
    assert message["content"][0]["logprobs"] == written


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ErrorKind.RATE_LIMIT, "rate_limit_exceeded"),
        (ErrorKind.INVALID_REQUEST, "invalid_prompt"),
        (ErrorKind.UNAVAILABLE, "server_error"),
    ],
)
def test_a_failure_has_the_output_so_far(kind: ErrorKind, code: str) -> None:
    framer = RESPONSES.make(ONE)
    sent = framer.begin() + framer.delta(TextDelta(0, "Hi")) + framer.failed(ApiError(kind, "no"))
    last = response_events(sent)[-1]
    RESPONSE_EVENTS.validate_python(last, strict=True)
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": code, "message": "no"}
    assert [item["status"] for item in last["response"]["output"]] == ["incomplete"]


def test_a_failure_before_the_start_has_a_start() -> None:
    events = brief(RESPONSES.make(ONE).failed(ApiError(ErrorKind.SERVER, "no")))
    assert [name for name, _ in events] == ["created", "in_progress", "failed"]


def test_without_encrypted_content_none_is_written() -> None:
    framer = ResponsesFramer(AnswerMeta("resp_2", 0, "policy"), ONE, {})
    (item,) = json.loads(whole(framer, [ReasoningDelta(0, "Hm.")]))["output"]
    assert "encrypted_content" not in item
    assert framer.delivered().echoed == ()
