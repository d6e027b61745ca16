"""Chat Completions: chunks as OpenAI's API documents them, and as vLLM writes them where it adds something."""

from typing import Any

import pytest

from headrace.agents.gateway.answer import (
    AnswerOptions,
    AnswerUsage,
    ChoiceEnd,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
)
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind
from tests.agents.gateway.framing.answers import CHAT, LS, bash, ended, streamed, whole
from tests.agents.gateway.framing.clients import DONE, data, json

HEAD = {"id": "resp_1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "policy"}
ONE = AnswerOptions()


def chunk(delta: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **fields}]}


def test_a_stream_of_text_reasoning_and_a_call() -> None:
    deltas = [ReasoningDelta(0, "Hm."), TextDelta(0, "Let me look."), *bash(3, LS)]
    assert data(streamed(CHAT.make(ONE), deltas, ended(FinishReason.TOOL_CALLS))) == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning": "Hm."}),
        chunk({"content": "Let me look."}),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "call_3", "type": "function", "function": {"name": "bash", "arguments": ""}}
                ]
            }
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": LS}}]}),
        chunk({}, finish_reason="tool_calls", stop_reason=None),
        DONE,
    ]


def test_the_usage_comes_last_and_is_null_before() -> None:
    stream = streamed(CHAT.make(AnswerOptions(include_usage=True)), [TextDelta(0, "Hi")])
    *before, usage, done = data(stream)
    assert [each["usage"] for each in before] == [None, None, None]
    assert usage == {
        **HEAD,
        "choices": [],
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 7,
            "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }
    assert done == DONE


def test_unknown_counts_are_absent() -> None:
    framer = CHAT.make(ONE)
    usage = json.loads(framer.whole(ended(), AnswerUsage(12, 7)))["usage"]
    assert usage == {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}


def test_each_choice_has_its_role_and_its_end() -> None:
    ends = [ChoiceEnd(1, FinishReason.STOP, stop_string="\n\n"), ChoiceEnd(0, FinishReason.ABORT)]
    stream = data(streamed(CHAT.make(AnswerOptions(choices=2)), [TextDelta(1, "b"), TextDelta(0, "a")], ends))
    choices = [each["choices"][0] for each in stream[:-1]]
    assert [(each["index"], each["delta"].get("content"), each["finish_reason"]) for each in choices] == [
        (0, "", None),
        (1, "", None),
        (1, "b", None),
        (0, "a", None),
        (0, None, "length"),
        (1, None, "stop"),
    ]
    assert choices[-1]["stop_reason"] == "\n\n"


def test_log_probabilities_ride_on_the_next_chunk_and_the_rest_on_the_last_one() -> None:
    hi = TokenLogprob("Hé", -0.25, top=(("Hé", -0.25), ("Yo", float("-inf"))))
    end = TokenLogprob("</s>", -1.0)
    deltas = [TokenLogprobs(0, (hi,)), TextDelta(0, "Hé"), TextDelta(0, "!"), TokenLogprobs(0, (end,))]
    written = {"token": "Hé", "logprob": -0.25, "bytes": [72, 195, 169]}
    yo = {"token": "Yo", "logprob": -9999.0, "bytes": [89, 111]}
    first = {"content": [{**written, "top_logprobs": [written, yo]}]}
    last = {"content": [{"token": "</s>", "logprob": -1.0, "bytes": [60, 47, 115, 62], "top_logprobs": []}]}
    stream = data(streamed(CHAT.make(ONE), deltas))
    assert [each["choices"][0]["logprobs"] for each in stream[1:-1]] == [first, None, last]
    (choice,) = json.loads(whole(CHAT.make(ONE), deltas))["choices"]
    assert choice["logprobs"] == {"content": first["content"] + last["content"]}


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ([], {"content": ""}),
        ([TextDelta(0, "Hi"), ReasoningDelta(0, "Hm.")], {"content": "Hi", "reasoning": "Hm."}),
        (
            bash(0, LS),
            {
                "content": None,
                "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": LS}}],
            },
        ),
    ],
)
def test_an_answer_in_one_piece(deltas: Any, message: dict[str, Any]) -> None:
    body = json.loads(whole(CHAT.make(ONE), deltas))
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "refusal": None, **message},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]


def test_a_failure_is_the_last_event_and_nothing_says_done() -> None:
    framer = CHAT.make(ONE)
    *_, last = data(framer.begin() + framer.failed(ApiError(ErrorKind.UNAVAILABLE, "the engine is away: try again")))
    assert last == {
        "error": {
            "message": "the engine is away: try again",
            "type": "server_error",
            "param": None,
            "code": "service_unavailable",
        }
    }


def test_chat_has_no_ping() -> None:
    assert CHAT.make(ONE).ping() == b""
