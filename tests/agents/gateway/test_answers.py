"""One answer on its way: what the client is sent, what is recorded, and the same answer again."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.answer import AnswerMeta, AnswerUsage
from headrace.agents.gateway.answer_parser import AnswerParser, Parsing
from headrace.agents.gateway.answers import AnswerInProgress, framer_of, options_of, replayed
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.generate_stream import Chunk
from headrace.agents.gateway.nodes import Match, NodeStore
from headrace.schemas.events import Purpose, VersionSpan
from tests.agents.gateway.http_clients import ALL

META = AnswerMeta("resp_1", 1_790_000_000, "policy", 3, "sig_1")
READERS = {kind.api: kind for kind in ALL}
PROMPT = array("i", [7, 8, 9])


def chunk(text: str, ids: list[int], choice: int = 0, **fields: Any) -> Chunk:
    return Chunk(choice, array("i", ids), array("f", [-0.5] * len(ids)), text, **fields)


def in_progress(api: Api, choices: int = 1, *, streams: bool = False, **body: Any) -> AnswerInProgress:
    framer = framer_of(api, META, options_of(api, body, choices), body)
    return AnswerInProgress(framer, AnswerParser(Parsing(lambda *_: "call_1"), PROMPT, choices), streams=streams)


END: dict[str, Any] = {"finish_reason": "stop", "spans": (VersionSpan(version=3, start=0, end=3),)}


@pytest.mark.parametrize("api", list(Api))
def test_a_whole_answer_is_what_a_stream_adds_up_to(api: Api) -> None:
    chunks = [chunk("Hi", [1], prompt_ids=PROMPT), chunk(" you", [2]), chunk("", [3], **END)]
    usage = AnswerUsage(3, 3)
    whole, stream = in_progress(api), in_progress(api, streams=True)
    assert whole.feed(chunks) == b""
    data = stream._framer.begin() + b"".join(stream.feed([each]) for each in chunks) + stream.last(usage)
    assert (
        READERS[api].read_stream(data) == READERS[api].read(whole.last(usage)) == READERS[api].read(stream.whole(usage))
    )
    for answer in (whole, stream):
        (found,) = answer.answers()
        assert (found.message.texts, found.sampled_ids.tolist()) == (("Hi you",), [1, 2, 3])
        assert (found.finish_reason, found.ends_with_stop_token, found.delivered) == ("stop", True, None)
        assert found.version_spans == END["spans"]
        assert answer.prompt_ids == PROMPT


def test_a_part_of_an_answer_is_context() -> None:
    answer = in_progress(Api.CHAT, 2, streams=True)
    assert not answer.has_tokens
    answer.feed([chunk("Hi", [1], choice=1)])
    assert answer.has_tokens
    nothing, part = answer.answers(aborted=True)
    assert (nothing.sampled_ids, nothing.message.texts) == (array("i"), ())
    assert (part.sampled_ids, part.message.texts) == (array("i", [1]), ("Hi",))
    assert {(each.finish_reason, each.delivered, each.version_spans) for each in (nothing, part)} == {
        ("abort", False, ())
    }


@pytest.mark.parametrize(
    ("end", "is_stop_token"),
    [
        ({"finish_reason": "stop"}, True),
        ({"finish_reason": "stop", "stop_reason": 7}, True),
        ({"finish_reason": "stop", "stop_reason": "END"}, False),
        ({"finish_reason": "length"}, False),
    ],
)
def test_only_a_token_of_the_model_ends_its_turn(end: dict[str, Any], is_stop_token: bool) -> None:
    answer = in_progress(Api.CHAT)
    answer.feed([chunk("Hi", [1], **end)])
    assert answer.answers()[0].ends_with_stop_token is is_stop_token


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("api", list(Api))
def test_an_answer_is_delivered_again_as_it_was(api: Api, streams: bool) -> None:
    choices = 2 if api in (Api.CHAT, Api.COMPLETIONS) else 1
    first = in_progress(api, choices)
    for choice in range(choices):
        first.feed([chunk(f"Hi {choice}", [1, 2], choice, finish_reason="stop")])
    usage = AnswerUsage(3, 2 * choices)
    store, match = NodeStore(10**6), Match(None, 0, False, b"k" * 32, b"o" * 32)
    nodes = [
        store.add(
            match, None, tenant="t", scope="s", trajectory_id="t", call_id="c", choice=choice, prompt_ids=PROMPT,
            context=(), has_instructions=False, answer=answer, consent=True, purpose=Purpose.TRAIN,
        )
        for choice, answer in enumerate(first.answers())
    ]  # fmt: skip
    framer = framer_of(api, META, options_of(api, {}, choices), {})
    data, ends, counted = replayed(framer, nodes, streams=streams)
    reader = READERS[api].read_stream if streams else READERS[api].read
    assert reader(data) == READERS[api].read(first.last(usage))
    assert counted == usage
    assert framer.whole(ends, usage) == first.whole(usage)


@pytest.mark.parametrize(
    ("api", "body", "is_parallel"),
    [
        (Api.CHAT, {}, True),
        (Api.CHAT, {"parallel_tool_calls": False}, False),
        (Api.CHAT, {"parallel_tool_calls": None}, True),
        (Api.RESPONSES, {"parallel_tool_calls": False}, False),
        (Api.MESSAGES, {"parallel_tool_calls": False}, True),
        (Api.MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, False),
        (Api.MESSAGES, {"tool_choice": "auto"}, True),
    ],
)
def test_what_a_request_asks_of_the_answers_form(api: Api, body: dict[str, Any], is_parallel: bool) -> None:
    assert options_of(api, body, 1).parallel_tool_calls is is_parallel
    assert not options_of(api, {"stream_options": "odd", **body}, 1).include_usage
    assert options_of(api, {"stream_options": {"include_usage": True}, **body}, 3).include_usage


def test_an_api_of_one_choice_refuses_more() -> None:
    for api in (Api.MESSAGES, Api.RESPONSES):
        with pytest.raises(ValueError, match="one choice"):
            in_progress(api, 2)


@given(st.lists(st.text(max_size=4), min_size=1, max_size=8), st.sampled_from(list(Api)))
def test_any_text_survives_any_api(pieces: list[str], api: Api) -> None:
    answer = in_progress(api, streams=True)
    data = answer._framer.begin()
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        data += answer.feed([chunk(piece, [number], **({"finish_reason": "stop"} if is_last else {}))])
    data += answer.last(AnswerUsage(3, len(pieces)))
    (found,) = answer.answers()
    (read,) = READERS[api].read_stream(data)
    assert "".join(read.texts) == "".join(pieces) == "".join(found.message.texts)
    assert json.dumps("".join(found.message.texts))
