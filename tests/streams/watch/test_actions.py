"""Actions, trigrams and streaks."""

from headrace.schemas.records.trajectory import ToolUse, Turn
from headrace.streams.watch.actions import (
    MAX_ACTION,
    MAX_CALLED,
    MAX_GRAMS,
    actions,
    calls,
    longest_streak,
    prune_streak,
    trigrams,
)
from tests.streams.attempts import attempt, prunes, shows

SAYS = Turn(sampled_tokens=1)


def test_an_action_is_what_a_turn_did_and_the_last_words_are_the_answer() -> None:
    both = Turn(tools=[ToolUse(call_id="1", tool="read"), ToolUse(call_id="2", tool="grep")])
    turns = [shows("c", tool="search"), SAYS, both, Turn(pruned_ids=["x"], summarized=True), SAYS]
    assert actions(attempt("t", turns=turns)) == ["search", "say", "grep+read", "prune+summary", "answer"]


def test_a_turn_that_uses_tools_is_named_after_them_whatever_it_prunes() -> None:
    read = ToolUse(call_id="1", tool="read")
    turns = [Turn(tools=[read, read], pruned_ids=["x"]), Turn(tools=[read], summarized=True), Turn(pruned_ids=["x"])]
    assert actions(attempt("t", turns=turns)) == ["read", "read+summary", "prune"]
    assert actions(attempt("t", turns=[])) == []


def test_actions_and_the_number_of_trigrams_are_bounded() -> None:
    (long,) = actions(attempt("t", turns=[Turn(tools=[ToolUse(call_id="1", tool="t" * 100)])]))
    assert long == "t" * MAX_ACTION
    many = trigrams([str(number) for number in range(100)])
    assert (many[0], many[-1], len(many)) == ("^>0>1", "46>47>48", MAX_GRAMS)


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
    tools = [ToolUse(call_id=str(number), tool=name) for number, name in enumerate(("prune", "read", "prune_all"))]
    assert prune_streak(attempt("t", turns=[Turn(tools=tools, pruned_ids=["x"]), Turn(pruned_ids=["y"])])) == 2


def test_each_call_counts_and_so_does_each_action_that_is_none() -> None:
    read = ToolUse(call_id="1", tool="read")
    turns = [Turn(tools=[read, read, ToolUse(call_id="2", tool="grep")]), SAYS, Turn(pruned_ids=["x"]), SAYS]
    made = attempt("t", turns=turns)
    assert calls(made, actions(made)) == {"read": 2, "answer": 1, "grep": 1, "prune": 1, "say": 1}
    assert calls(attempt("t", turns=[]), []) == {}


def test_of_many_tools_the_commonest_count() -> None:
    uses = [ToolUse(call_id=f"{k}", tool=f"t{k:02}") for k in range(20)]
    made = attempt("t", turns=[Turn(tools=[*uses, *uses[10:]])])
    counted = calls(made, actions(made))
    assert (len(counted), counted["t19"]) == (MAX_CALLED, 2)
    assert set(counted) == {f"t{k:02}" for k in (*range(6), *range(10, 20))}
    (long,) = calls(attempt("t", turns=[Turn(tools=[ToolUse(call_id="1", tool="t" * 100)])]), ["t" * 100])
    assert long == "t" * MAX_ACTION
