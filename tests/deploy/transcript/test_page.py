"""A trajectory as text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.transcript.decoding import ids_as_text
from headrace.deploy.transcript.page import BRIEF, SHORT, WHOLE, Colouring, Kind, Limits, call_text, transcript
from headrace.deploy.transcript.refolded import Note, NoteKind
from headrace.deploy.transcript.styled import sampled_colour
from headrace.schemas.events import ModelCalled, ToolStatus, VersionSpan
from headrace.schemas.records.trajectory import ToolUse, Turn
from tests.trainer.builders import segment, trajectory


def text_of(lines):
    return ["".join(fragment.text for fragment in line) for line in lines]


def sampled_values(lines):
    return [fragment.value for line in lines for fragment in line if fragment.kind is Kind.SAMPLED]


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
    assert text_of(transcript(RECORD, words, Colouring.VERSION, WHOLE)) == [
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
        line for line in transcript(RECORD, words, Colouring.VERSION, WHOLE) if line[-1].kind is Kind.SAMPLED
    ] + [None]
    lines = transcript(RECORD, words, Colouring.LOGPROB, WHOLE)
    values = [fragment.value for each in lines for fragment in each if fragment.kind is Kind.SAMPLED]
    assert values == [-1.0, -3.0, -3.0]
    lines = transcript(RECORD, words, Colouring.NONE, WHOLE)
    assert {fragment.value for each in lines for fragment in each if fragment.kind is Kind.SAMPLED} == {None}
    assert [fragment.value for fragment in line if fragment.kind is Kind.SAMPLED] == [5]


def test_the_colour_of_the_advantage_is_the_same_for_all_sampled_text():
    lines = transcript(RECORD, words, Colouring.ADVANTAGE, WHOLE, advantage=-0.25)
    assert [each.value for line in lines for each in line if each.kind is Kind.SAMPLED] == [-0.25, -0.25]
    colours = [sampled_colour(value, Colouring.ADVANTAGE) for value in (0.5, -0.25, 0.0, None)]
    assert colours == ["green", "bright_red", None, None]
    assert sampled_colour(4, Colouring.VERSION) != sampled_colour(5, Colouring.VERSION)
    assert [sampled_colour(each, Colouring.LOGPROB) for each in (-0.1, -1.0, -3.0, float("-inf"))] == [
        "green", "yellow", "bright_red", "red",
    ]  # fmt: skip


def test_notes_stand_in_their_turn_instead_of_the_turn_s_own_words():
    notes = [
        Note(1, NoteKind.PRUNE, "1 piece removed, 9 → 3 tokens: c1"),
        Note(1, NoteKind.SUMMARY, "9 → 3 tokens\nSo far\nso good."),
        Note(0, NoteKind.SUBAGENT, "helper started", "t-2"),
    ]
    lines = text_of(transcript(RECORD, words, Colouring.NONE, WHOLE, notes))
    assert lines[5:7] == ["    · tool search() → ok", "    · sub-agent helper started, trajectory t-2"]
    assert lines[-4:] == [
        "    · prune 1 piece removed, 9 → 3 tokens: c1",
        "    · summary 9 → 3 tokens",
        "      So far",
        "      so good.",
    ]
    cut = text_of(transcript(RECORD, words, Colouring.NONE, Limits(None, 20), notes))
    assert not any("so good" in line for line in cut[:-1])
    assert any("characters] …" in line for line in cut)


def test_in_a_list_sampled_text_and_lines_are_bounded():
    turns = [Turn(sampled_tokens=400, segment=0, tools=[ToolUse(call_id="1", tool="search", result="x" * 900)])] * 30
    record = trajectory("t", segment(("c" + "S" * 400) * 30)).model_copy(update={"turns": turns})
    lines = text_of(transcript(record, words, Colouring.VERSION, BRIEF))
    assert len(lines) == 40
    assert lines[-1] == "  … `headrace show t` prints the rest"
    assert lines[4].endswith(" … [100 more tokens]")
    assert lines[4].count(" w") == 300
    assert max(map(len, lines)) < 2_000
    assert len(transcript(RECORD, words, Colouring.VERSION, BRIEF)) == 11


def test_a_call_is_its_context_and_its_answer():
    call = ModelCalled(
        model="m", context_ids=[1, 2], sampled_ids=[3, 4], logprobs=[-0.1, -0.2],
        version_spans=[VersionSpan(version=4, start=0, end=1), VersionSpan(version=5, start=1, end=2)],
    )  # fmt: skip
    lines = call_text(call, words, Colouring.VERSION, BRIEF)
    assert text_of(lines) == ["    w1 w2", "    w3 w4"]
    assert [each.value for each in lines[1] if each.kind is Kind.SAMPLED] == [4, 5]
    long = call_text(call, lambda ids: "\n" * 500, Colouring.VERSION, BRIEF)
    assert len(long) <= 40
    lines = call_text(call, lambda ids: "a\n" * 90, Colouring.NONE, BRIEF)
    assert (len(lines), text_of(lines)[-1][:20]) == (40, "  … `headrace show` ")
    told = ModelCalled(model="m", messages=[{"role": "assistant", "content": "Yes."}])
    assert text_of(call_text(told, None, Colouring.VERSION, BRIEF)) == ["    assistant: Yes."]


def test_without_a_decoder_ids_are_printed():
    assert "    20 27" in text_of(transcript(RECORD, None, Colouring.NONE, WHOLE))


def test_without_a_decoder_messages_are_printed_if_all_sampled_turns_have_them():
    said = [
        turn.model_copy(update={"messages": [{"role": "assistant", "content": f"Turn {number}."}]})
        for number, turn in enumerate(RECORD.turns)
    ]
    record = RECORD.model_copy(update={"turns": said})
    lines = transcript(record, None, Colouring.VERSION, WHOLE, advantage=0.5)
    assert text_of(lines) == [
        "  turn 0, version 4–5, mean log-probability -1.00",
        "    assistant: Turn 0.",
        "    · tool search() → ok",
        "  turn 1, version 5, mean log-probability -2.00",
        "    assistant: Turn 1.",
        "    · pruned c1",
    ]
    assert sampled_values(lines) == [None, 5]
    assert sampled_values(transcript(record, None, Colouring.ADVANTAGE, WHOLE, advantage=0.5)) == [0.5, 0.5]
    assert sampled_colour(None, Colouring.LOGPROB) is None, "a message has no band"
    assert "    20 27" in text_of(transcript(record, ids_as_text, Colouring.NONE, WHOLE))
    some = RECORD.model_copy(update={"turns": [said[0], RECORD.turns[1]]})
    assert "    20 27" in text_of(transcript(some, None, Colouring.NONE, WHOLE)), "the second turn has none"
    call = ModelCalled(
        model="m", sampled_ids=[3], version_spans=[VersionSpan(version=4, start=0, end=1)], messages=said[0].messages
    )
    lines = call_text(call, None, Colouring.VERSION, BRIEF)
    assert (text_of(lines), sampled_values(lines)) == (["    assistant: Turn 0."], [4])


def test_long_contexts_are_shortened_in_the_middle_and_sampled_text_never():
    long = trajectory("t", segment("c" * 400 + "S" * 400))
    short = text_of(transcript(long, words, Colouring.NONE, replace(SHORT, context_characters=100)))
    full = text_of(transcript(long, words, Colouring.NONE, WHOLE))
    assert "characters; --full prints them] …" in short[2]
    assert len(short[2]) < 200 < len(full[2])
    assert short[4] == full[4]


def test_line_ends_begin_new_lines():
    lines = text_of(transcript(RECORD, lambda ids: "\n".join(map(str, ids)), Colouring.VERSION, WHOLE))
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
    assert text_of(transcript(record, None, Colouring.VERSION, WHOLE)) == [
        "  turn 0",
        "    user: Where?",
        f"    assistant: {calls[0]}",
    ]


def test_calls_without_tokens_are_shown_beside_those_with_tokens():
    said = [{"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": "Yes."}]
    turns = [Turn(sampled_tokens=2, segment=0), Turn(messages=said)]
    record = trajectory("t", segment("cSS")).model_copy(update={"turns": turns})
    assert text_of(transcript(record, words, Colouring.NONE, WHOLE))[-3:] == [
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
    transcript(record, decode, Colouring.LOGPROB, WHOLE)
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

    lines = transcript(trajectory("t", said), decode, colouring, WHOLE)
    shown = [line[4:] for line in text_of(lines[4:])]
    assert "\n".join(shown).rstrip("\n") == text.rstrip("\n")
