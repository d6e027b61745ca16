"""A trajectory as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.transcript.page import Colouring, Kind, transcript
from headrace.schemas.events import ToolStatus
from headrace.schemas.records.trajectory import ToolUse, Turn
from tests.trainer.builders import segment, trajectory


def text_of(lines):
    return ["".join(fragment.text for fragment in line) for line in lines]


def words(token_ids):
    return " ".join(f"w{each}" for each in token_ids)


RECORD = trajectory("t", segment("ccSScS", versions=[4, 5, 5], logprobs=[-0.5, -1.5, -2.0])).model_copy(
    update={
        "turns": [
            Turn(sampled_tokens=2, segment=0, tools=[ToolUse(call_id="1", tool="search", status=ToolStatus.OK)]),
            Turn(sampled_tokens=1, segment=0, pruned_ids=["c1"]),
        ]
    }
)


def test_turns_stand_under_their_titles_with_what_happened():
    assert text_of(transcript(RECORD, words, Colouring.VERSION, None)) == [
        "Segment 0: 6 tokens, 3 of them sampled by version 4–5",
        "  context",
        "    w6 w13",
        "  turn 0, version 4–5, mean log-probability -1.00",
        "    w20 w27",
        "    · tool search() → ok",
        "  context",
        "    w34",
        "  turn 1, version 5, mean log-probability -2.00",
        "    w41",
        "    · pruned c1",
    ]


def test_sampled_text_has_the_value_that_its_colour_stands_for():
    (_, line, *_) = [
        line for line in transcript(RECORD, words, Colouring.VERSION, None) if line[-1].kind is Kind.SAMPLED
    ] + [None]
    lines = transcript(RECORD, words, Colouring.LOGPROB, None)
    values = [fragment.value for each in lines for fragment in each if fragment.kind is Kind.SAMPLED]
    assert values == [-1.0, -3.0, -3.0]
    lines = transcript(RECORD, words, Colouring.NONE, None)
    assert {fragment.value for each in lines for fragment in each if fragment.kind is Kind.SAMPLED} == {None}
    assert [fragment.value for fragment in line if fragment.kind is Kind.SAMPLED] == [5]


def test_without_a_decoder_ids_are_printed():
    assert "    20 27" in text_of(transcript(RECORD, None, Colouring.NONE, None))


def test_long_contexts_are_shortened_in_the_middle_and_sampled_text_never():
    long = trajectory("t", segment("c" * 400 + "S" * 400))
    short = text_of(transcript(long, words, Colouring.NONE, 100))
    full = text_of(transcript(long, words, Colouring.NONE, None))
    assert "characters; --full prints them] …" in short[2]
    assert len(short[2]) < 200 < len(full[2])
    assert short[4] == full[4]


def test_line_ends_begin_new_lines():
    lines = text_of(transcript(RECORD, lambda ids: "\n".join(map(str, ids)), Colouring.VERSION, None))
    assert lines[3:6] == ["    13", "  turn 0, version 4–5, mean log-probability -1.00", "    20"]


def test_a_trajectory_without_tokens_is_printed_as_its_messages():
    calls = [{"function": {"name": "search"}}]
    record = trajectory("t").model_copy(
        update={
            "turns": [
                Turn(
                    messages=[
                        {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
                        {"role": "assistant", "content": None, "tool_calls": calls},
                    ]
                )
            ]
        }
    )
    assert text_of(transcript(record, None, Colouring.VERSION, None)) == [
        "  turn 0",
        "    user: Where?",
        f"    assistant: {calls[0]}",
    ]


def test_calls_without_tokens_are_shown_beside_those_with_tokens():
    said = [{"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": "Yes."}]
    turns = [Turn(sampled_tokens=2, segment=0), Turn(messages=said)]
    record = trajectory("t", segment("cSS")).model_copy(update={"turns": turns})
    assert text_of(transcript(record, words, Colouring.NONE, None))[-3:] == [
        "  turn 1",
        "    user: Is it so?",
        "    assistant: Yes.",
    ]


def test_a_long_turn_is_decoded_in_time_linear_in_its_length():
    decoded = 0

    def decode(token_ids):
        nonlocal decoded
        decoded += len(token_ids)
        return words(token_ids)

    logprobs = [-0.05, -2.0] * 2_000
    record = trajectory("t", segment("c" + "S" * len(logprobs), logprobs=logprobs))
    transcript(record, decode, Colouring.LOGPROB, None)
    assert decoded < 400 * len(logprobs)


@pytest.mark.parametrize("colouring", list(Colouring))
@given(text=st.text("aé日🎉 \n", min_size=1, max_size=80), data=st.data())
def test_colours_do_not_change_the_text(colouring, text, data):
    """Every byte is a token, so that stretches end inside characters."""
    spoken = text.encode()
    versions = data.draw(st.lists(st.integers(0, 2), min_size=len(spoken), max_size=len(spoken)))
    logprobs = data.draw(st.lists(st.floats(-9, 0, width=32), min_size=len(spoken), max_size=len(spoken)))
    said = segment("c" + "S" * len(spoken), versions=versions, logprobs=logprobs)
    said = said.model_copy(update={"token_ids": type(said.token_ids)("i", [65, *spoken])})

    def decode(token_ids):
        return bytes(list(token_ids)).decode(errors="replace")

    lines = transcript(trajectory("t", said), decode, colouring, None)
    shown = [line[4:] for line in text_of(lines[4:])]
    assert "\n".join(shown).rstrip("\n") == text.rstrip("\n")
