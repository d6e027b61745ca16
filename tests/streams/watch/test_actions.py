"""Actions, trigrams and streaks."""

from headrace.schemas.records.trajectory import ToolUse, Turn
from headrace.streams.watch.actions import actions, longest_streak, prune_streak, trigrams
from tests.streams.attempts import attempt, prunes, shows

SAYS = Turn(sampled_tokens=1)


def test_an_action_is_what_a_turn_did_and_the_last_words_are_the_answer() -> None:
    both = Turn(tools=[ToolUse(call_id="1", tool="read"), ToolUse(call_id="2", tool="grep")])
    turns = [shows("c", tool="search"), SAYS, both, Turn(pruned_ids=["x"], summarized=True), SAYS]
    assert actions(attempt("t", turns=turns)) == ["search", "say", "grep+read", "prune+summary", "answer"]


def test_trigrams_include_begin_and_end() -> None:
    assert trigrams(["search", "answer"]) == ["^>search>answer", "search>answer>$"]
    assert trigrams([]) == ["^>$"]
    assert trigrams(["say"] * 100) == ["^>say>say", "say>say>say", "say>say>$"]


def test_streaks_are_of_equal_actions() -> None:
    assert longest_streak(["a", "b", "b", "b", "a"]) == 3
    assert longest_streak([]) == 0


def test_a_prune_streak_counts_calls_and_not_pieces() -> None:
    assert prune_streak(attempt("t", turns=[prunes(2), prunes(3), shows("c"), prunes(1)])) == 5
    assert prune_streak(attempt("t", turns=[Turn(pruned_ids=["a", "b", "c"]), Turn(pruned_ids=["d"])])) == 2
    assert prune_streak(attempt("t", turns=[shows("c")])) == 0
