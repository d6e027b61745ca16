"""The rules of an episode over real text: exclusion, thresholds, budgets, prunes, a defined result for any message."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.retrieval.passages import Chunk
from headrace.agents.search.text.actions import Action, Malformed, parse
from headrace.agents.search.text.harness import Call, Done, Observation, TextHarness, TextLimits, Usage
from headrace.schemas.events import EndStatus, ToolErrorClass

QUESTION = "What is the base class of web.WebServer?"
BASE = TextHarness(QUESTION).context_tokens
"""Tokens of the context at the start."""


def chunk(number: int, words: int = 40) -> Chunk:
    return Chunk(f"d{number}-1", f"d{number}", f"title {number}", "word " * words)


def harness(**limits: int) -> TextHarness:
    return TextHarness(QUESTION, TextLimits(**limits))


def search(episode: TextHarness, chunks: Sequence[Chunk], said: str = "search_corpus base") -> Observation | Done:
    call = episode.act(said)
    assert isinstance(call, Call)
    return episode.shown(chunks)


def last(episode: TextHarness) -> str:
    return episode.messages[-1]["content"]


@pytest.mark.parametrize(
    ("said", "tool", "argument"),
    [
        ("search_corpus base class", "search_corpus", "base class"),
        ("I think so.\n\n  grep_corpus a|b  \n", "grep_corpus", "a|b"),
        ("read_document d1", "read_document", "d1"),
        ("answer", "answer", ""),
        ("answer d1-1, d2-1 d1-1", "answer", "d1-1, d2-1 d1-1"),
        ("search_corpus\tbase class", "search_corpus", "base class"),
        ("answer\u00a0d1-1", "answer", "d1-1"),
    ],
)
def test_the_last_line_is_the_call(said: str, tool: str, argument: str) -> None:
    assert parse(said) == Action(tool, argument)


def test_ids_are_taken_once_and_may_have_commas() -> None:
    action = parse("answer d1-1, d2-1 d1-1")
    assert isinstance(action, Action)
    assert action.chunk_ids == ("d1-1", "d2-1")


@pytest.mark.parametrize(
    ("said", "tool", "reason"),
    [
        ("", "unknown", "no line"),
        ("I do not know.", "unknown", "no line"),
        ("search_corpus a\nsearch_corpus b", "search_corpus", "more than one"),
        ("search_corpus a\nbecause", "search_corpus", "after the call"),
        ("search_corpus", "search_corpus", "argument"),
        ("prune_chunks", "prune_chunks", "ids"),
        ("answer the river is Thames!", "answer", "ids"),
        ("search_corpus " + "a" * 2_000, "search_corpus", "1000"),
    ],
)
def test_what_is_no_call_is_malformed_with_its_reason(said: str, tool: str, reason: str) -> None:
    found = parse(said)
    assert isinstance(found, Malformed)
    assert found.tool == tool
    assert reason in found.reason


def test_the_context_begins_with_the_question_and_its_size() -> None:
    (message,) = harness().messages
    assert message["role"] == "user"
    assert QUESTION in message["content"]
    assert message["content"].endswith("/32,768]")
    assert "[Token usage: " in message["content"]


def test_a_search_excludes_what_was_shown_and_other_tools_do_not() -> None:
    episode = harness()
    search(episode, [chunk(1), chunk(2)])
    call = episode.act("search_corpus again")
    assert isinstance(call, Call)
    assert call.exclude == {"d1-1", "d2-1"}
    episode.shown([chunk(1), chunk(3)])
    assert list(episode.seen) == ["d1-1", "d2-1", "d3-1"]
    assert "title 1" not in last(episode)
    read = episode.act("read_document d1")
    assert isinstance(read, Call)
    assert read.exclude == frozenset()
    episode.shown([chunk(1)])
    assert "title 1" in last(episode)


def test_pruned_chunks_stay_excluded() -> None:
    episode = harness()
    search(episode, [chunk(1)])
    episode.act("prune_chunks d1-1")
    call = episode.act("search_corpus again")
    assert isinstance(call, Call)
    assert call.exclude == {"d1-1"}


def test_a_result_has_as_many_whole_chunks_as_fit_its_budget() -> None:
    size = TextHarness(QUESTION).tokens_of(chunk(1).shown)
    episode = harness(search_tokens=2 * size)
    observation = search(episode, [chunk(1), chunk(2), chunk(3)])
    assert isinstance(observation, Observation)
    assert observation.result["chunk_ids"] == ["d1-1", "d2-1"]


def test_a_document_is_truncated_to_the_remaining_budget() -> None:
    size = TextHarness(QUESTION).tokens_of(chunk(1).shown)
    episode = harness(budget=BASE + 3 * size, soft=BASE + 3 * size, hard=BASE + 3 * size)
    call = episode.act("read_document d1")
    assert isinstance(call, Call)
    assert 2 * size < call.budget < 3 * size
    episode.shown([chunk(number) for number in range(5)])
    assert len(episode.view) == 2


def test_above_the_soft_threshold_pruning_is_suggested() -> None:
    episode = harness(soft=BASE + 20)
    assert "Consider pruning" not in last(episode)
    search(episode, [chunk(1)])
    assert "Consider pruning" in last(episode)


def test_above_the_hard_threshold_only_pruning_and_answering_are_allowed() -> None:
    episode = harness(soft=BASE + 10, hard=BASE + 20)
    search(episode, [chunk(1), chunk(2)])
    assert "Only prune_chunks and answer" in last(episode)
    refused = episode.act("search_corpus more")
    assert isinstance(refused, Observation)
    assert refused.error_class is ToolErrorClass.REFUSED
    pruned = episode.act("prune_chunks d1-1 d2-1")
    assert isinstance(pruned, Observation)
    assert pruned.pruned == ("d1-1", "d2-1")
    assert isinstance(episode.act("search_corpus more"), Call)


def test_a_prune_leaves_the_question_and_the_calls_that_still_show_chunks() -> None:
    episode = harness()
    (first,) = episode.messages
    search(episode, [chunk(1), chunk(2)], "search_corpus one")
    search(episode, [chunk(3)], "thinking\nsearch_corpus two")
    episode.act("nonsense")
    episode.act("prune_chunks d1-1 d3-1")
    roles = [message["role"] for message in episode.messages]
    assert roles == ["user", "assistant", "user"]
    assert episode.messages[1]["content"] == "search_corpus one"
    assert "title 2" in last(episode)
    assert "title 1" not in last(episode)
    assert last(episode).count("[Token usage") == 1
    assert episode.messages[0] == first  # a gateway knows the conversation by it


def test_a_prune_of_everything_starts_again_with_the_same_context() -> None:
    episode = harness()
    before = episode.messages
    search(episode, [chunk(1)])
    episode.act("prune_chunks d1-1")
    assert episode.messages == before


def test_a_prune_of_what_is_not_in_the_context_is_an_error_and_removes_nothing() -> None:
    episode = harness()
    search(episode, [chunk(1)])
    wrong = episode.act("prune_chunks d1-1 d7-1")
    assert isinstance(wrong, Observation)
    assert wrong.error_class is ToolErrorClass.INVALID_ARGUMENTS
    assert "d7-1" in last(episode)
    assert [each.chunk_id for each in episode.view] == ["d1-1"]


def test_an_answer_ends_the_episode() -> None:
    done = harness().act("I am sure.\nanswer d1-1 d2-1")
    assert done == Done(EndStatus.COMPLETED, {"chunk_ids": ["d1-1", "d2-1"]})


def test_the_budget_ends_the_episode() -> None:
    episode = harness(budget=BASE + 50, soft=BASE + 50, hard=BASE + 50)
    done = episode.act("word " * 60)
    assert isinstance(done, Done)
    assert (done.status, done.answer) == (EndStatus.BUDGET_EXHAUSTED, None)
    assert done.observation is not None


def test_the_turns_end_the_episode() -> None:
    episode = harness(turns=2)
    assert isinstance(episode.act("nonsense"), Observation)
    done = episode.act("nonsense")
    assert isinstance(done, Done)
    assert done.status is EndStatus.TURNS_EXHAUSTED


def test_a_message_that_was_cut_off_is_no_action() -> None:
    episode = harness()
    step = episode.act("answer d1-1", was_cut=True)
    assert isinstance(step, Observation)
    assert step.error_class is ToolErrorClass.INVALID_ARGUMENTS
    assert episode.tools == ["unknown"]


def test_the_engines_count_replaces_the_estimate() -> None:
    episode = harness()
    call = episode.act("search_corpus base", Usage(prompt=1_000, completion=10))
    assert isinstance(call, Call)
    assert episode.context_tokens == 1_010
    before = sum(len(message["content"]) for message in episode.messages)
    episode.shown([chunk(1)])
    added = sum(len(message["content"]) for message in episode.messages) - before
    assert episode.context_tokens == pytest.approx(1_010 + added * 1_010 / before, abs=1)


def test_results_are_not_taken_out_of_turn() -> None:
    episode = harness()
    with pytest.raises(RuntimeError, match="no result"):
        episode.shown([])
    episode.act("search_corpus a")
    with pytest.raises(RuntimeError, match="shown or failed"):
        episode.act("search_corpus b")


@pytest.mark.parametrize("limits", [{"soft": 9, "hard": 8}, {"soft": 0}, {"hard": 99_999}, {"turns": 0}])
def test_limits_that_contradict_each_other_are_an_error(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"does not hold|at least 1"):
        TextLimits(**limits)


words = st.sampled_from(
    ["search_corpus", "grep_corpus", "read_document", "prune_chunks", "answer", "d1-1", "d2-1", "x"]
)
spaces = st.sampled_from([" ", "\t", "\u00a0", "\u2003", "\x1f", ", "])
sayings = st.one_of(
    st.text(max_size=30), st.builds(lambda space, each: space.join(each), spaces, st.lists(words, max_size=4))
)


@given(st.lists(sayings, min_size=1, max_size=12), st.lists(st.integers(1, 6), min_size=12, max_size=12))
def test_any_messages_have_a_result_and_the_budget_holds_when_the_model_is_asked(
    said: list[str], found: list[int]
) -> None:
    episode = harness(budget=BASE + 300, soft=BASE + 100, hard=BASE + 200, search_tokens=120, grep_tokens=120)
    for text, number in zip(said, found, strict=False):
        assert episode.context_tokens < episode.limits.budget
        shown = {each.chunk_id for each in episode.view}
        assert shown <= episode.seen.keys()
        step = episode.act(text)
        if isinstance(step, Call):
            assert step.budget > 0
            step = episode.shown([chunk(each) for each in range(number)])
        if isinstance(step, Done):
            return
        assert len(episode.tools) == episode.turns
        assert episode.messages[-1]["role"] == "user"
