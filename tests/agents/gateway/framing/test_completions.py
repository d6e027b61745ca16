"""Completions: text only."""

import pytest

from headrace.agents.gateway.answer import (
    AnswerOptions,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
)
from tests.agents.gateway.framing.answers import COMPLETIONS, bash, ended, streamed, whole
from tests.agents.gateway.framing.clients import DONE, data, json

HEAD = {"id": "resp_1", "object": "text_completion", "created": 1_790_000_000, "model": "policy"}


def test_a_stream() -> None:
    framer = COMPLETIONS.make(AnswerOptions(include_usage=True))
    first, last, usage, done = data(streamed(framer, [TextDelta(0, "Hi")], ended(FinishReason.STOP, "###")))
    open_choice = {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": None}
    assert first == {**HEAD, "choices": [open_choice], "usage": None}
    closed = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": "###"}
    assert last == {**HEAD, "choices": [closed], "usage": None}
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 19)
    assert done == DONE


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.TOOL_CALLS, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.ABORT, "length"),
    ],
)
def test_the_reason_is_one_that_the_api_has(reason: FinishReason, written: str) -> None:
    body = json.loads(whole(COMPLETIONS.make(AnswerOptions()), [TextDelta(0, "Hi")], ended(reason)))
    assert [(each["text"], each["finish_reason"]) for each in body["choices"]] == [("Hi", written)]


def test_offsets_of_log_probabilities_continue_through_a_stream() -> None:
    hi = TokenLogprob("Hi", -0.5, top=(("Hi", -0.5), ("Yo", -2.0)))
    deltas = [TokenLogprobs(0, (hi,)), TextDelta(0, "Hi"), TokenLogprobs(0, (TokenLogprob("!", -1.5),))]
    stream = data(streamed(COMPLETIONS.make(AnswerOptions()), deltas))
    assert [each["choices"][0]["logprobs"] for each in stream[:-1]] == [
        {"text_offset": [0], "token_logprobs": [-0.5], "tokens": ["Hi"], "top_logprobs": [{"Hi": -0.5, "Yo": -2.0}]},
        {"text_offset": [2], "token_logprobs": [-1.5], "tokens": ["!"], "top_logprobs": None},
    ]
    (choice,) = json.loads(whole(COMPLETIONS.make(AnswerOptions()), deltas))["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 2],
        "token_logprobs": [-0.5, -1.5],
        "tokens": ["Hi", "!"],
        "top_logprobs": [{"Hi": -0.5, "Yo": -2.0}, {}],
    }


@pytest.mark.parametrize("delta", [ReasoningDelta(0, "Hm."), bash()[0]])
def test_what_the_api_cannot_express_is_refused(delta: ReasoningDelta) -> None:
    with pytest.raises(ValueError, match=r"in a completion: the Completions API has only text"):
        COMPLETIONS.make(AnswerOptions()).delta(delta)
