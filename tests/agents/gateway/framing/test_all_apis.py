"""What holds for every API and any stream: the official clients read what was delivered, streamed or in one piece."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.answer import (
    AnswerOptions,
    ChoiceEnd,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolStart,
)
from headrace.agents.gateway.framing.delivered import Delivered, DeliveredCall
from headrace.agents.gateway.framing.errors import ApiError, ErrorKind
from headrace.agents.gateway.framing.framer import Framer
from headrace.agents.gateway.framing.json_bytes import well_formed
from tests.agents.gateway.framing.answers import (
    APIS,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    USAGE,
    Api,
    bash,
    chaotic,
    orderly,
    recut,
    stops,
    streamed,
    texts,
    whole,
)
from tests.agents.gateway.framing.clients import DONE, events

TERMINAL = {"message_delta", "message_stop", "response.completed", "response.incomplete"}
every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)


def deltas_for(api: Api, choices: int) -> st.SearchStrategy[list[Delta]]:
    """Any stream that ``api`` can express."""
    if api.only_text:
        return st.lists(st.builds(TextDelta, st.integers(0, choices - 1), texts), max_size=20)
    return chaotic(choices)


def with_values(answers: list[Delivered]) -> list[object]:
    """``answers`` with arguments as JSON values, which is how clients of the Messages API hold them."""
    return [replace(each, calls=[(c.call_id, c.name, json.loads(c.arguments)) for c in each.calls]) for each in answers]  # type: ignore[arg-type]


def delivered(framer: Framer) -> list[Delivered]:
    return [framer.delivered(choice) for choice in range(framer.options.choices)]


@pytest.mark.parametrize("api", [api for api in APIS if api is not MESSAGES], ids=lambda api: api.name)
@given(st.data())
def test_the_client_receives_the_same_streamed_in_one_piece_and_as_delivered(api: Api, data: st.DataObject) -> None:
    options = AnswerOptions(
        choices=data.draw(st.sampled_from([1, 2, api.max_choices])) if api.max_choices > 1 else 1,
        include_usage=data.draw(st.booleans()),
        parallel_tool_calls=data.draw(st.booleans()),
    )
    deltas = data.draw(deltas_for(api, options.choices))
    framer, other = api.make(options), api.make(options)
    received = api.read_stream(streamed(framer, deltas))
    assert received == delivered(framer)
    assert api.read_whole(whole(other, deltas)) == received
    assert delivered(other) == received


@given(st.data())
def test_the_client_of_messages_receives_the_same_in_every_way(data: st.DataObject) -> None:
    options = AnswerOptions(parallel_tool_calls=data.draw(st.booleans()))
    deltas = data.draw(orderly())
    framer, other = MESSAGES.make(options), MESSAGES.make(options)
    received = with_values(MESSAGES.read_stream(streamed(framer, deltas)))
    assert received == with_values(delivered(framer))
    assert with_values(MESSAGES.read_whole(whole(other, deltas))) == received
    assert with_values(delivered(other)) == received


@every_api
@given(st.data())
def test_where_a_text_is_cut_does_not_matter(api: Api, data: st.DataObject) -> None:
    deltas = data.draw(deltas_for(api, 1))
    options = AnswerOptions()
    framer, other = api.make(options), api.make(options)
    assert whole(framer, deltas) == whole(other, data.draw(recut(deltas)))
    assert framer.delivered() == other.delivered()


@every_api
@given(st.data())
def test_a_stream_that_fails_is_well_formed_up_to_there_and_ends_with_the_error(api: Api, data: st.DataObject) -> None:
    framer = api.make(AnswerOptions())
    sent = framer.begin() if data.draw(st.booleans()) else b""
    if sent or api is COMPLETIONS:
        sent += b"".join(framer.delta(delta) for delta in data.draw(deltas_for(api, 1)))
    sent += framer.failed(ApiError(ErrorKind.SERVER, "the engine went away\u2028"))
    *before, (name, last) = events(sent)
    assert "the engine went away" in json.dumps(last)
    assert name in (None, "error", "response.failed")
    assert not [each for each in before if is_terminal(each)]
    assert not is_terminal((name, last))


@every_api
@given(st.data())
def test_nothing_before_the_end_says_that_the_answer_is_complete(api: Api, data: st.DataObject) -> None:
    framer = api.make(AnswerOptions())
    before = framer.begin() + b"".join(framer.delta(delta) for delta in data.draw(deltas_for(api, 1))) + framer.ping()
    assert not [each for each in events(before) if is_terminal(each)]
    assert [each for each in events(framer.terminal(stops(framer), USAGE)) if is_terminal(each)]


def is_terminal(event: tuple[str | None, object]) -> bool:
    name, data = event
    finished = isinstance(data, dict) and any(choice["finish_reason"] for choice in data.get("choices", ()))
    return finished or data == DONE or name in TERMINAL


@given(chaotic(3))
def test_chat_delivers_every_text_and_all_arguments_of_calls_that_started(deltas: list[Delta]) -> None:
    framer = CHAT.make(AnswerOptions(choices=3))
    received = CHAT.read_stream(streamed(framer, deltas))
    expected = [plainly(deltas, choice) for choice in range(3)]
    assert received == expected


def plainly(deltas: list[Delta], number: int) -> Delivered:
    """What a choice consists of, computed without blocks."""
    text = reasoning = ""
    calls: dict[int, DeliveredCall] = {}
    for delta in deltas:
        if delta.choice != number:
            continue
        match delta:
            case TextDelta():
                text += well_formed(delta.text)
            case ReasoningDelta():
                reasoning += well_formed(delta.text)
            case ToolStart():
                calls.setdefault(delta.index, DeliveredCall(delta.id, delta.name, ""))
            case ToolArguments() if delta.index in calls:
                call = calls[delta.index]
                calls[delta.index] = replace(call, arguments=call.arguments + well_formed(delta.text))
            case _:
                pass
    return Delivered((text,) if text else (), (reasoning,) if reasoning else (), tuple(calls.values()))


@every_api
@given(st.data())
def test_every_delta_is_delivered_held_or_counted(api: Api, data: st.DataObject) -> None:
    deltas = data.draw(deltas_for(api, 1))
    framer = api.make(AnswerOptions())
    streamed(framer, deltas)
    answer = framer.delivered()
    assert "".join(answer.texts) == "".join(well_formed(each.text) for each in deltas if isinstance(each, TextDelta))
    assert "".join(answer.reasoning) == "".join(
        well_formed(each.text) for each in deltas if isinstance(each, ReasoningDelta)
    )
    starts = Counter(type(each) for each in deltas)[ToolStart]
    assert len(answer.calls) + framer.answer.withheld_calls == starts
    pieces = sum(isinstance(each, ToolArguments) and bool(each.text) for each in deltas)
    received = sum(len(call.pieces) for call in framer.answer.choices[0].tool_calls())
    assert received + framer.answer.withheld_arguments == pieces


@pytest.mark.parametrize("api", [api for api in APIS if not api.only_text], ids=lambda api: api.name)
def test_without_parallel_tool_calls_only_the_first_call_is_delivered(api: Api) -> None:
    deltas = [*bash(4, "{}"), *bash(0, '{"command":', '"rm"}'), TextDelta(0, "Done.")]
    framer = api.make(AnswerOptions(parallel_tool_calls=False))
    (answer,) = api.read_stream(streamed(framer, deltas))
    assert answer.calls == (DeliveredCall("call_4", "bash", "{}"),)
    assert answer.texts == ("Done.",)
    assert framer.answer.withheld_calls == 1
    assert framer.answer.withheld_arguments == 0


@every_api
def test_an_answer_without_any_delta_is_complete(api: Api) -> None:
    assert api.read_stream(streamed(api.make(AnswerOptions()), [])) == [Delivered()]
    assert api.read_whole(whole(api.make(AnswerOptions()), [])) == [Delivered()]


@every_api
def test_ends_must_fit_the_choices(api: Api) -> None:
    framer = api.make(AnswerOptions())
    twice = [ChoiceEnd(0, FinishReason.STOP)] * 2
    for ends in ([], twice, [ChoiceEnd(1, FinishReason.STOP)]):
        with pytest.raises(ValueError, match="expected one for each of 1"):
            framer.terminal(ends, USAGE)
        with pytest.raises(ValueError, match="expected one for each of 1"):
            framer.whole(ends, USAGE)


@every_api
@pytest.mark.parametrize("choice", [-1, 1])
def test_a_delta_of_another_choice_is_refused(api: Api, choice: int) -> None:
    with pytest.raises(ValueError, match=rf"a delta of choice {choice}: the answer has 1"):
        api.make(AnswerOptions()).delta(TextDelta(choice, "x"))


@pytest.mark.parametrize("api", [api for api in APIS if api.max_choices == 1], ids=lambda api: api.name)
def test_an_api_of_one_choice_refuses_several(api: Api) -> None:
    with pytest.raises(ValueError, match="2 choices: this API has answers of one choice only"):
        api.make(AnswerOptions(choices=2))
