"""Notes: what an event's messages lose comes back from their forms, and only a signed note counts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.canonical import Api, Message, MessageRole, call_of, to_chat
from headrace.agents.gateway.note import (
    MAX_BLOCKS,
    MAX_FORMS,
    MAX_NOTE_BYTES,
    CallNote,
    StartNote,
    forms_of,
    message_of,
    note_bytes,
    read_note,
    signed,
)
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.sealed import Sealer

SEALER = Sealer([b"0123456789abcdef", b"an older secret.."])
texts = st.lists(st.sampled_from(["", "a", "b\nc", "é 日", "\n"]), max_size=3).map(
    lambda found: tuple(found) if any(found) else ()
)
calls = st.lists(
    st.builds(
        call_of,
        st.sampled_from(["c1", "c2"]),
        st.just("bash"),
        st.sampled_from(['{"a": 1.0}', "{", "", {"b": [1, None]}, '{"a":1}']),
        st.just("test"),
    ),
    max_size=2,
).map(tuple)
messages = st.one_of(
    st.builds(Message.of, st.sampled_from([MessageRole.SYSTEM, MessageRole.USER, MessageRole.TOKENS]), texts),
    st.builds(Message.of, st.just(MessageRole.ASSISTANT), texts, calls, reasoning=st.sampled_from(["", "hm\nhm"])),
    st.builds(
        Message.of,
        st.just(MessageRole.TOOL),
        texts,
        answers=st.one_of(st.integers(0, 3), st.sampled_from(["c1", "#0"])),
        failed=st.booleans(),
    ),
    st.builds(Message.of, st.just(MessageRole.SUMMARY), st.just(("sealed",)), echoed=st.just(("sealed",))),
)


@given(st.lists(messages, max_size=6).map(tuple))
def test_messages_come_back_from_an_event(found: tuple[Message, ...]) -> None:
    chat = json.loads(json.dumps(to_chat(found)))
    forms = forms_of(found, chat)
    assert forms is not None
    note = CallNote("acme", "s", b"k" * 32, b"c" * 32, b"o" * 32, forms=forms)
    read_back = read_note(CallNote, signed(note_bytes(note), SEALER, "t", 3, b"{}"), SEALER, "t", 3, b"{}")
    assert read_back == note
    by_place = {form.at: form for form in read_back.forms}
    again = [message_of(entry, by_place.get(at)) for at, entry in enumerate(chat)]
    assert again == list(found)


def test_most_messages_need_no_form() -> None:
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    found = read(Api.CHAT, {"model": "m", "messages": conversation}, is_compaction=False).messages
    assert forms_of(found, to_chat(found)) == ()


@pytest.mark.parametrize(("count", "blocks"), [(MAX_FORMS + 1, 2), (1, MAX_BLOCKS + 1)])
def test_forms_are_bounded(count: int, blocks: int) -> None:
    found = (Message.of(MessageRole.USER, ("x",) * blocks),) * count
    assert forms_of(found, to_chat(found)) is None


def test_a_note_that_would_be_too_long_has_the_form_of_the_answer_alone() -> None:
    results = [Message.of(MessageRole.TOOL, ("x",), answers=f"{number}" * 200) for number in range(200)]
    answer = Message.of(MessageRole.ASSISTANT, ("a", "b"))
    found = (*results, answer)
    forms, shorter = forms_of(found, to_chat(found)), forms_of(found, to_chat(found), len(results))
    assert forms is not None
    note = CallNote("acme", "s", b"", b"", b"", has_context=True, forms=forms)
    header = signed(note_bytes(note, shorter=shorter), SEALER, "t", 0, b"")
    assert len(header) <= MAX_NOTE_BYTES
    read_back = read_note(CallNote, header, SEALER, "t", 0, b"")
    assert (read_back.has_context, read_back.forms) == (False, shorter)


HEADER = signed(note_bytes(StartNote("s1", "url")), SEALER, "t", 3, b"{}")


ELSEWHERE: tuple[dict[str, Any], ...] = (
    {"trajectory_id": "u"},
    {"seq": 4},
    {"value": b"[]"},
    {"sealer": Sealer([b"another secret.."])},
    *({"header": header} for header in (HEADER + b" ", b"", HEADER[:32], b"=" + HEADER, b"\xff" + HEADER)),
)


@pytest.mark.parametrize("changes", ELSEWHERE)
def test_a_note_counts_only_beside_its_event(changes: dict[str, Any]) -> None:
    place: dict[str, Any] = {"header": HEADER, "sealer": SEALER, "trajectory_id": "t", "seq": 3, "value": b"{}"}
    assert read_note(StartNote, **place).scope == "s1"
    with pytest.raises(ValueError, match=r"note|Non-hexadecimal|Odd-length"):
        read_note(StartNote, **place | changes)


def test_a_note_of_an_older_secret_counts() -> None:
    older = Sealer([b"an older secret.."])
    header = signed(note_bytes(StartNote("s1", "url")), older, "t", 3, b"{}")
    assert read_note(StartNote, header, SEALER, "t", 3, b"{}").scope == "s1"
    assert older.salt != SEALER.salt
