"""What a client received is recognised when it sends it back: the framers and the readers of requests agree."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.answer import AnswerOptions, Delta
from headrace.agents.gateway.canonical import Api, Message, MessageRole, call_of
from headrace.agents.gateway.framing.delivered import Delivered
from headrace.agents.gateway.requests.read import read
from tests.agents.gateway.framing.answers import CHAT, MESSAGES, RESPONSES, chaotic, orderly, streamed, whole
from tests.agents.gateway.framing.clients import response_events

ANSWERS = st.one_of(orderly(), chaotic(1))


def expected(delivered: Delivered) -> Message:
    calls = tuple(call_of(call.call_id, call.name, call.arguments, "answer") for call in delivered.calls)
    return Message.of(
        MessageRole.ASSISTANT,
        delivered.texts,
        calls,
        reasoning="\n".join(delivered.reasoning),
        echoed=delivered.echoed,
    )


def last_message(api: Api, **body: Any) -> Message:
    return read(api, {"model": "m", **body}).messages[-1]


@given(ANSWERS)
def test_chat(deltas: Sequence[Delta]) -> None:
    framer = CHAT.make(AnswerOptions())
    message = json.loads(whole(framer, deltas))["choices"][0]["message"]
    assert last_message(Api.CHAT, messages=[message]).digest == expected(framer.delivered()).digest


@given(ANSWERS)
def test_messages(deltas: Sequence[Delta]) -> None:
    framer = MESSAGES.make(AnswerOptions())
    content = json.loads(whole(framer, deltas))["content"]
    found = last_message(Api.MESSAGES, messages=[{"role": "assistant", "content": content}])
    wanted = expected(framer.delivered())
    assert (found.digest, found.reasoning, found.echoed) == (wanted.digest, wanted.reasoning, wanted.echoed)


@given(ANSWERS)
def test_responses(deltas: Sequence[Delta]) -> None:
    framer = RESPONSES.make(AnswerOptions())
    if output := response_events(streamed(framer, deltas))[-1]["response"]["output"]:
        found = last_message(Api.RESPONSES, input=output)
        wanted = expected(framer.delivered())
        assert (found.digest, found.reasoning, found.echoed) == (wanted.digest, wanted.reasoning, wanted.echoed)
