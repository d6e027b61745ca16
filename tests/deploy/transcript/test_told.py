"""A trajectory as JSON for its page: nothing is lost, and everything is bounded."""

import json
from collections.abc import Sequence
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.transcript.refolded import Note, NoteKind, Refolded
from headrace.deploy.transcript.told import Bounds, sampled_texts, told
from headrace.schemas.events import ToolErrorClass, ToolStatus
from headrace.schemas.records.trajectory import ToolUse, Turn
from tests.trainer.builders import segment, trajectory


def words(token_ids: Sequence[int]) -> str:
    return "".join(f" w{each}" for each in token_ids)


USE = ToolUse(
    call_id="1", tool="search", arguments={"q": "ada"}, status=ToolStatus.ERROR, error_class=ToolErrorClass.TIMEOUT,
    result={"found": []}, latency_s=0.5,
)  # fmt: skip
RECORD = trajectory("t", segment("ccSScS", versions=[4, 5, 5], logprobs=[-0.5, -1.5, -4.0])).model_copy(
    update={"turns": [Turn(sampled_tokens=2, segment=0, tools=[USE]), Turn(sampled_tokens=1, segment=0)]}
)


def test_sampled_text_is_cut_where_version_or_band_changes() -> None:
    found = told(Refolded(RECORD, False, [Note(0, NoteKind.PRUNE, "2 pieces")]), words)
    context, first, _, last = found["pieces"]
    ids = RECORD.segments[0].token_ids
    assert context == {"segment": 0, "turn": None, "tokens": 2, "fragments": [{"text": words(ids[:2])}]}
    assert first["fragments"] == [
        {"text": words(ids[2:3]), "version": 4, "band": -1.0},
        {"text": words(ids[3:4]), "version": 5, "band": -3.0},
    ]
    assert (first["turn"], first["logprob"]) == (0, -1.0)
    assert last["fragments"] == [{"text": words(ids[5:]), "version": 5, "band": -1e9}]
    turn = found["turns"][0]
    assert turn["tools"] == [
        {
            "tool": "search", "arguments": 'q="ada"', "status": "error", "error": "timeout",
            "result": '{"found": []}', "seconds": 0.5,
        }
    ]  # fmt: skip
    assert turn["notes"] == [{"kind": "prune", "text": "2 pieces", "trajectory_id": ""}]
    json.dumps(found, allow_nan=False)


@given(st.text("cS", min_size=1, max_size=60), st.data())
def test_the_fragments_together_are_the_whole_text(text: str, data: st.DataObject) -> None:
    sampled = text.count("S")
    versions = data.draw(st.lists(st.integers(0, 2), min_size=sampled, max_size=sampled))
    logprobs = data.draw(st.lists(st.floats(-9, 0, width=32), min_size=sampled, max_size=sampled))
    record = trajectory("t", segment(text, versions=versions, logprobs=logprobs))
    found = told(Refolded(record, False), words)
    said = "".join(each["text"] for piece in found["pieces"] for each in piece["fragments"])
    assert said == words(record.segments[0].token_ids)
    assert all(each["text"] for piece in found["pieces"] for each in piece["fragments"])


def test_long_contexts_and_results_are_shortened_and_say_so() -> None:
    use = USE.model_copy(update={"result": "x" * 500})
    record = trajectory("t", segment("c" * 100 + "S")).model_copy(
        update={"turns": [Turn(sampled_tokens=1, segment=0, tools=[use])]}
    )
    found = told(Refolded(record, False), words, Bounds(context_tokens=10, characters=100))
    context, sampled = found["pieces"]
    ids = record.segments[0].token_ids
    assert [each["text"] for each in context["fragments"]] == [words(ids[:5]), words(ids[95:100])]
    assert context["cut"] == 90
    assert "cut" not in sampled
    assert "[400 characters]" in found["turns"][0]["tools"][0]["result"]
    bounded = told(Refolded(record, False), words, Bounds(all_tokens=50))
    assert [piece.get("cut") for piece in bounded["pieces"]] == [None, 1]


def test_without_a_tokenizer_ids_are_shown() -> None:
    found = told(Refolded(RECORD, False), None)
    assert found["pieces"][0]["fragments"][0]["text"] == " ".join(map(str, RECORD.segments[0].token_ids[:2]))
    assert not found["is_text"]


def test_without_a_tokenizer_messages_are_shown_if_all_sampled_turns_have_them() -> None:
    """Ids beside the messages would say the same again, and nobody can read them."""
    said = [
        turn.model_copy(update={"messages": [{"role": "assistant", "content": f"Turn {number}."}]})
        for number, turn in enumerate(RECORD.turns)
    ]
    record = RECORD.model_copy(update={"turns": said})
    found = told(Refolded(record, False), None)
    assert (found["pieces"], found["is_text"], len(found["segments"])) == ([], True, len(record.segments))
    assert [turn["messages"][0]["text"] for turn in found["turns"]] == ["Turn 0.", "Turn 1."]
    assert [turn["versions"] for turn in found["turns"]] == [[4, 5], [5]]
    assert [each["text"] for each in sampled_texts(Refolded(record, False), None)] == ["Turn 0.", "Turn 1."]
    assert told(Refolded(record, False), words)["pieces"], "with a tokenizer the tokens are the text"
    some = RECORD.model_copy(update={"turns": [said[0], RECORD.turns[1]]})
    assert not told(Refolded(some, False), None)["is_text"], "the tokens of the second turn have no messages"


def test_a_turn_without_tokens_has_its_messages() -> None:
    messages = [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": [{"text": "The red ones."}]}]
    record = trajectory("t").model_copy(update={"turns": [Turn(messages=messages)]})
    found = told(Refolded(record, False), None)
    assert found["turns"][0]["messages"] == [
        {"role": "user", "text": "Which?"},
        {"role": "assistant", "text": "The red ones."},
    ]
    assert sampled_texts(Refolded(record, False), None)[0]["text"] == "The red ones."


def test_attempts_are_compared_by_what_they_said_and_called() -> None:
    (first, second) = sampled_texts(Refolded(RECORD, False), words)
    ids = RECORD.segments[0].token_ids
    assert first == {"turn": 0, "text": words(ids[2:4]), "tokens": 2, "tools": ['search(q="ada") → error']}
    assert second["text"] == words(ids[5:])
    (cut, _) = sampled_texts(Refolded(RECORD, False), words, most_tokens=1)
    assert cut["text"] == f"{words(ids[2:3])} … [1 more tokens]"


def attempt_of(turns: int, tokens: int, *, segments: bool) -> Refolded:
    """An attempt whose tokens were sampled by two versions in turn, and with two bands; ``segments``: each turn has a
    context of its own."""
    text = "cc" + "S" * tokens
    count = tokens if segments else turns * tokens
    logprobs, versions = [-0.05, -2.0] * (count // 2), [4, 5] * (count // 2)
    each = segment(text if segments else text * turns, versions=versions, logprobs=logprobs)
    record = trajectory("t", *([each] * (turns if segments else 1)))
    made = [Turn(sampled_tokens=tokens, segment=number if segments else 0) for number in range(turns)]
    return Refolded(record.model_copy(update={"turns": made}), False)


@pytest.mark.parametrize(
    ("turns", "tokens", "segments"), [(1, 3000, False), (750, 4, False), (750, 4, True)],
    ids=["long-answer", "many-turns", "many-contexts"],
)  # fmt: skip
def test_an_attempt_that_is_eight_times_as_long_takes_no_more_than_about_eight_times_as_long(
    turns: int, tokens: int, segments: bool
) -> None:
    def seconds(turns: int, tokens: int) -> float:
        found = attempt_of(turns, tokens, segments=segments)
        taken = []
        for _ in range(4):
            began = thread_time()
            told(found, None, Bounds(all_tokens=10**9))
            taken.append(thread_time() - began)
        return min(taken)

    longer = (turns, 8 * tokens) if turns == 1 else (8 * turns, tokens)
    assert seconds(*longer) < 24 * seconds(turns, tokens)  # with each part compared with all others: 64 times
