"""Spliced prompts: the tokens that the engine has, then exactly what the template adds."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.canonical import Api, Message, MessageRole, assistant, call_of
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.splice import (
    DUMMY_TEXT,
    History,
    Refusal,
    Rendered,
    Spliced,
    closing_ids,
    dummy_turn,
    splice,
)
from headrace.schemas.arrays import IntArray
from tests.agents.gateway.harness import CLOSING, END, NEWLINE, STOP, render, sampled_ids

USER = MessageRole.USER
words = st.text("abc", max_size=4)
turns = st.lists(st.tuples(words, st.text("xyz", min_size=1, max_size=4), st.booleans()), min_size=1, max_size=6)


def pair(before: tuple[Message, ...], new: tuple[Message, ...], *, thinking: bool = False) -> tuple[Rendered, Rendered]:
    return (
        Rendered(render(before, prompt=False, thinking=thinking)),
        Rendered(render((*before, *new), thinking=thinking)),
    )


@given(turns)
def test_a_spliced_prompt_is_the_engine_s_tokens_and_exactly_the_rendered_suffix(
    conversation: list[tuple[str, str, bool]],
) -> None:
    """``True`` in a turn: the model stopped by itself, else it was cut off and its stop token is missing."""
    messages: tuple[Message, ...] = (Message.of(USER, (conversation[0][0],)),)
    engine = render(messages)
    for question, text, stopped in conversation:
        answer, new = assistant(text), Message.of(USER, (question,))
        engine += sampled_ids(answer) if stopped else sampled_ids(answer)[:-1]
        messages = (*messages, answer)
        result = splice(engine, CLOSING, [pair(messages, (new,))], stop_ids=[STOP])
        assert isinstance(result, Spliced)
        suffix = render((new,))
        expected = engine + CLOSING[1 if stopped else 0 :] + suffix
        assert (result.token_ids, result.known) == (expected, len(engine))
        assert result.closing == 1 + (not stopped)
        engine, messages = expected, (*messages, new)


def test_a_template_that_drops_earlier_reasoning_is_spliced_after_a_dummy_turn() -> None:
    answer = assistant("hi", reasoning="hm")
    start, new = Message.of(USER, ("x",)), Message.of(USER, ("y",))

    def dropping(*messages: Message, prompt: bool) -> Rendered:
        """Keeps the reasoning of the last message only, as templates do."""
        ids = render(messages[:-1], prompt=False) + render(messages[-1:], prompt=prompt, thinking=True)
        return Rendered(ids)

    real = (dropping(start, answer, prompt=False), dropping(start, answer, new, prompt=True))
    known = render((start,)) + sampled_ids(answer)
    assert splice(known, CLOSING, [real]) is Refusal.NO_DIFFERENCE
    dummy = (Message.of(USER, (DUMMY_TEXT,)), assistant(DUMMY_TEXT))
    result = splice(known, CLOSING, [real, pair(dummy, (new,))], stop_ids=[STOP])
    assert isinstance(result, Spliced)
    assert result.token_ids == known + array("i", [NEWLINE]) + render((new,))


def test_with_template_history_the_prompt_continues_where_the_template_writes_the_same_tokens() -> None:
    start, answer, new = Message.of(USER, ("x",)), assistant("hi"), Message.of(USER, ("y",))
    real = pair((start, answer), (new,))
    same = render((start, answer), prompt=False)[:-1]
    assert isinstance(splice(same, CLOSING, [real], stop_ids=[STOP], history=History.TEMPLATE), Spliced)
    other = render((start,)) + sampled_ids(answer)
    assert splice(other, CLOSING, [real], stop_ids=[STOP], history=History.TEMPLATE) is Refusal.REWRITTEN


def test_another_stop_token_than_the_template_s_is_refused() -> None:
    real = pair((Message.of(USER, ("x",)), assistant("hi")), (Message.of(USER, ("y",)),))
    known = array("i", [1, 2, 3, 99])
    assert splice(known, CLOSING, [real], stop_ids=[STOP, 99]) is Refusal.OTHER_STOP_TOKEN
    assert isinstance(splice(known, CLOSING, [real], stop_ids=[STOP]), Spliced)


def test_an_answer_that_ended_without_what_the_template_writes_before_its_stop_token() -> None:
    """Llama 2's template writes a space there; the answer is not ended twice."""
    space, known = 7, array("i", [1, 2, STOP])
    closing = array("i", [space, STOP, NEWLINE])
    real = pair((Message.of(USER, ("x",)), assistant("hi")), (Message.of(USER, ("y",)),))
    result = splice(known, closing, [real], stop_ids=[STOP])
    assert isinstance(result, Spliced)
    assert result.token_ids[:4] == array("i", [1, 2, STOP, NEWLINE])
    assert (result.known, result.closing) == (3, 1)
    assert splice(known, closing, [real], stop_ids=[STOP], history=History.TEMPLATE) is Refusal.REWRITTEN
    unstopped = splice(known, closing, [real])  # here the token is a part of the text
    assert isinstance(unstopped, Spliced)
    assert unstopped.closing == 3


def test_a_prompt_beyond_the_context_is_refused() -> None:
    real = pair((Message.of(USER, ("x",)), assistant("hi")), (Message.of(USER, ("y",)),))
    known = array("i", [5, STOP])
    result = splice(known, CLOSING, [real])
    assert isinstance(result, Spliced)
    length = len(result.token_ids)
    assert splice(known, CLOSING, [real], max_tokens=length) == result
    assert splice(known, CLOSING, [real], max_tokens=length - 1) is Refusal.TOO_LONG


def test_without_any_difference_there_is_no_prompt() -> None:
    for history in History:
        assert splice(array("i", [5]), CLOSING, [], history=history) is Refusal.NO_DIFFERENCE


def test_texts_are_compared_where_tokens_merge_at_the_boundary() -> None:
    # A template without special tokens: "a:" "b" and "a:b" have no common first token.
    before, after = (
        Rendered(array("i", [10, 11]), "User: x\nBot: y\n"),
        Rendered(array("i", [77]), "User: x\nBot: y\nUser: z"),
    )

    def encode(text: str) -> list[int]:
        return [ord(each) for each in text]

    assert splice(array("i", [5]), array("i"), [(before, after)]) is Refusal.NO_DIFFERENCE
    result = splice(array("i", [5]), array("i"), [(before, after)], encode=encode)
    assert isinstance(result, Spliced)
    assert result.token_ids == array("i", [5, *encode("User: z")])
    other = Rendered(after.ids, "Other")
    assert splice(array("i", [5]), array("i"), [(before, other)], encode=encode) is Refusal.NO_DIFFERENCE


@pytest.mark.parametrize("known", [[], [5], [5, END], [5, END, NEWLINE], [END, END]])
def test_only_closing_tokens_that_are_missing_are_supplied(known: list[int]) -> None:
    real = pair((Message.of(USER, ("x",)), assistant("hi")), (Message.of(USER, ("y",)),))
    result = splice(array("i", known), CLOSING, [real], stop_ids=[STOP])
    assert isinstance(result, Spliced)
    at = len(known)
    assert result.token_ids[:at] == array("i", known)
    tail = result.token_ids[max(0, at - (2 - result.closing)) : at + result.closing]
    assert tail == CLOSING


def test_closing_tokens_are_the_common_end_of_two_conversations() -> None:
    def ending(text: str) -> IntArray:
        return render((Message.of(USER, ("x",)), assistant(text)), prompt=False)

    assert closing_ids(ending("a"), ending("b")) == CLOSING
    assert closing_ids(array("i", [1]), array("i", [2])) == array("i")
    assert closing_ids(array("i", [1]), array("i", [1])) == array("i", [1])
    for length in range(5):
        end = array("i", range(10, 10 + length))
        assert closing_ids(array("i", [5, 1]) + end, array("i", [5, 6, 2]) + end) == end


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
@pytest.mark.parametrize("calls", [[], [("c1", "bash")], [("c1", "bash"), ("c2", "grep")]])
def test_a_dummy_turn_can_be_read_in_its_api(api: Api, calls: list[tuple[str, str]]) -> None:
    field = "input" if api is Api.RESPONSES else "messages"
    request = read(api, {"model": "m", field: dummy_turn(api, calls)})
    assert [message.role for message in request.messages] == [USER, MessageRole.ASSISTANT]
    assert [(call.call_id, call.tool) for call in request.messages[1].calls] == calls
    assert request.messages[1].calls == tuple(call_of(*call, {}, "x") for call in calls) or calls
