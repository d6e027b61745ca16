"""Context-1's reward: the published vectors, its bounds, and its values for malformed answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import Purpose, ToolStatus
from headrace.schemas.records.trajectory import Turn
from headrace.streams.rewards.context1 import (
    ANNEALED_AT,
    SEARCH,
    SEARCH_ANNEALED,
    SEARCH_PRUNING,
    SEARCH_RECALLS,
    context1,
    context1_reward,
    prune_streaks,
    shown_chunks,
    tools_called,
)
from headrace.streams.rewards.context1_program import SEARCH_PROGRAM
from headrace.streams.rewards.schedule import step
from headrace.streams.scoring.score import REWARDS_OF_AGENTS
from tests.streams.attempts import attempt, prunes, shows

TASK = {"targets": ["c1", "c2"], "answer_chunks": ["c2"]}


@pytest.mark.parametrize(
    ("precision", "recall", "trajectory_recall", "answer_found", "streaks", "turns", "at_4", "at_2"),
    [
        (0.25, 1.0, 1.0, 1, [], 6, 1.8950, 1.7375),
        (1.0, 0.25, 0.25, 0, [], 2, 0.2581, 0.2809),
        (0.5, 0.8, 0.9, 1, [5], 70, 1.5640, 1.5231),
        (0.5, 0.8, 0.9, 0, [12], 128, 0.01, 0.01),
        (0, 0, 0.5, 0, [], 128, 0.01, 0.01),
        (0, 0, 0, 0, [], 5, 0, 0),
    ],
)
def test_published_vectors(
    precision: float,
    recall: float,
    trajectory_recall: float,
    answer_found: float,
    streaks: list[int],
    turns: int,
    at_4: float,
    at_2: float,
) -> None:
    facts = (precision, recall, trajectory_recall, answer_found, streaks, turns)
    assert context1_reward(*facts, beta=4) == pytest.approx(at_4, abs=5e-5)
    assert context1_reward(*facts, beta=2) == pytest.approx(at_2, abs=5e-5)


shares = st.floats(0, 1)
streak_lists = st.lists(st.integers(1, 30), max_size=4)
turn_counts = st.integers(0, 300)


@given(shares, shares, shares, st.sampled_from([0.0, 1.0]), streak_lists, turn_counts, st.sampled_from([2.0, 4.0]))
def test_the_reward_stays_between_zero_and_two(
    precision: float, recall: float, seen: float, found: float, streaks: list[int], turns: int, beta: float
) -> None:
    assert 0 <= context1_reward(precision, recall, seen, found, streaks, turns, beta=beta) <= 2.0 + 1e-9


@given(shares, shares, shares, shares, shares, st.sampled_from([0.0, 1.0]), streak_lists, turn_counts)
def test_finding_more_never_scores_less(
    precision: float,
    low: float,
    high: float,
    seen: float,
    more_seen: float,
    found: float,
    streaks: list[int],
    turns: int,
) -> None:
    low, high = sorted((low, high))
    seen, more_seen = sorted((seen, more_seen))

    def of(recall: float, trajectory_recall: float) -> float:
        return context1_reward(precision, recall, trajectory_recall, found, streaks, turns, beta=2.0)

    assert of(high, seen) >= of(low, seen) - 1e-9
    assert of(low, more_seen) >= of(low, seen) - 1e-9


@given(shares, shares, streak_lists, turn_counts, st.integers(1, 10))
def test_more_turns_and_longer_prune_streaks_never_score_more(
    recall: float, seen: float, streaks: list[int], turns: int, more: int
) -> None:
    def of(streaks: list[int], turns: int) -> float:
        return context1_reward(0.5, recall, seen, 1.0, streaks, turns, beta=2.0)

    assert of(streaks, turns + more) <= of(streaks, turns)
    assert of([streak + more for streak in streaks], turns) <= of(streaks, turns)


def test_a_perfect_search_scores_the_maximum() -> None:
    done = attempt("t", agent="search", task=TASK, turns=[shows("c1"), shows("c2")], answer={"chunk_ids": ["c1", "c2"]})
    scored = SEARCH.score(done)
    assert scored.total == pytest.approx(SEARCH.maximum)
    assert {name: (each.value, each.weight) for name, each in scored.components.items()} == {
        "f_beta": (1.0, 0.7),
        "trajectory_recall": (1.0, 0.3),
        "answer_found": (1.0, 1.0),
        "prune_penalty": (0.0, -1.0),
        "turn_penalty": (0.0, -1.0),
    }


def test_the_spec_applies_the_formula_to_the_trajectory() -> None:
    turns = [shows("c1", "x"), prunes(5), *[Turn(sampled_tokens=1)] * 68]
    done = attempt("t", agent="search", task=TASK, turns=turns, answer={"chunk_ids": ["c1", "x", "y"]})
    assert SEARCH.score(done).total == pytest.approx(context1_reward(1 / 3, 0.5, 0.5, 0.0, [5], 70, beta=2.0))


@pytest.mark.parametrize(
    ("version", "beta"), [(0, 4.0), (ANNEALED_AT // 2, 3.0), (ANNEALED_AT, 2.0), (5 * ANNEALED_AT, 2.0)]
)
def test_beta_anneals_from_four_to_two_and_is_recorded(version: int, beta: float) -> None:
    done = attempt(
        "t", agent="search", task=TASK, turns=[shows("c1", "x")], answer={"chunk_ids": ["c1", "x"]}, version=version
    )
    scored = SEARCH_ANNEALED.score(done)
    assert scored.total == pytest.approx(context1_reward(0.5, 0.5, 0.5, 0.0, [], 1, beta=beta))
    assert (scored.components["beta"].value, scored.components["beta"].weight) == (beta, 0.0)


def test_beta_and_epsilon_are_settings() -> None:
    spec = context1(version=3, beta=step(4.0, 2.0, at=10), epsilon=0.05)
    turns = [shows("c1"), *[Turn(sampled_tokens=1)] * 127]
    slow = attempt("t", agent="search", task=TASK, turns=turns, answer={"chunk_ids": []})
    assert spec.score(slow).total == 0.05
    answered = {"chunk_ids": ["c1", "c2", "x", "y"]}
    early, late = (
        attempt("t", task=TASK, turns=[shows("c1", "c2", "x", "y")], answer=answered, version=version)
        for version in (9, 10)
    )
    assert spec.score(early).total == pytest.approx(context1_reward(0.5, 1.0, 1.0, 1.0, [], 1, beta=4.0))
    assert spec.score(late).total == pytest.approx(context1_reward(0.5, 1.0, 1.0, 1.0, [], 1, beta=2.0))
    for wrong in ({"epsilon": 0.0}, {"beta": 0.0}):
        with pytest.raises(ValueError, match="must be above 0"):
            context1(**({"version": 4, "beta": 2.0} | wrong))  # type: ignore[arg-type]


def test_a_pruned_chunk_still_counts_as_seen() -> None:
    done = attempt("t", agent="search", task=TASK, turns=[shows("c1", "c2"), prunes(1)], answer={"chunk_ids": ["c1"]})
    assert SEARCH.score(done).components["trajectory_recall"].value == 1.0


def test_guessed_chunks_are_not_found() -> None:
    done = attempt("t", agent="search", task=TASK, turns=[shows("x")], answer={"chunk_ids": ["c1", "c2"]})
    assert SEARCH.score(done).total == 0.0


def test_refused_calls_and_prune_calls_show_nothing() -> None:
    turns = [shows("c1", status=ToolStatus.ERROR), shows("c2", tool="prune_chunks")]
    assert shown_chunks(attempt("t", turns=turns)) == set()


def test_streaks_run_across_turns_until_another_tool() -> None:
    turns = [prunes(2), prunes(2), shows("c1"), prunes(1)]
    assert prune_streaks(tools_called(attempt("t", turns=turns))) == [4, 1]


@pytest.mark.parametrize("answer", [None, "c1", ["c1"], {"chunk_ids": "c1"}, {"chunk_ids": None}, {"chunk_ids": []}, 7])
def test_an_answer_of_another_shape_scores_no_f_beta(answer: object) -> None:
    scored = SEARCH.score(attempt("t", agent="search", task=TASK, turns=[shows("c1")], answer=answer))
    assert scored.components["f_beta"].value == 0.0
    assert scored.total == pytest.approx(0.3 * 0.5)


def test_items_that_are_not_ids_count_as_wrong() -> None:
    turns = [shows("c1", "c2")]
    clean = attempt("t", agent="search", task=TASK, turns=turns, answer={"chunk_ids": ["c1", "c2"]})
    mixed = attempt("t", agent="search", task=TASK, turns=turns, answer={"chunk_ids": ["c1", "c2", 5, {"a": []}]})
    assert SEARCH.score(mixed).components["f_beta"].value < SEARCH.score(clean).components["f_beta"].value


@pytest.mark.parametrize("result", [None, "text", [1], {"chunk_ids": 3}, {"text": "x"}])
def test_tool_results_of_another_shape_show_nothing(result: object) -> None:
    turn = shows("c1")
    odd = turn.model_copy(update={"tools": [turn.tools[0].model_copy(update={"result": result})]})
    assert shown_chunks(attempt("t", turns=[odd])) == set()


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({}, "no_targets"),
        ({"targets": [], "answer_chunks": ["c1"]}, "no_targets"),
        ({"targets": "c1", "answer_chunks": ["c1"]}, "no_targets"),
        ({"targets": [1], "answer_chunks": ["c1"]}, "no_targets"),
        ({"targets": ["c1"]}, "no_answer_chunks"),
    ],
)
def test_a_task_without_targets_is_unscored(task: dict[str, object], reason: str) -> None:
    scored = SEARCH.score(attempt("t", agent="search", task=task, answer={"chunk_ids": ["c1"]}))
    assert (scored.total, scored.unscored) == (None, reason)


def test_the_answers_recall_can_be_recorded_without_a_change_of_the_total() -> None:
    done = attempt("a", agent="search", task=TASK, turns=[shows("c1", "c2")], answer={"chunk_ids": ["c1", "c9"]})
    plain, recorded = SEARCH.score(done), SEARCH_RECALLS.score(done)
    assert recorded.total == plain.total
    assert recorded.components["output_recall"].value == 0.5
    assert "output_recall" not in plain.components


def test_what_was_pruned_is_recorded_without_a_change_of_the_total() -> None:
    pruned = [Turn(sampled_tokens=1, tools=prunes(1).tools, pruned_ids=ids) for ids in (["x", "c1"], ["y"])]
    turns = [shows("c1", "c2", "x"), *pruned]
    done = attempt("a", agent="search", task=TASK, turns=turns, answer={"chunk_ids": ["c1"]}, version=0)
    found = SEARCH_PRUNING.score(done)
    values = {name: found.components[name].value for name in ("chunks_pruned", "evidence_pruned", "longest_streak")}
    assert values == {"chunks_pruned": 3, "evidence_pruned": 1, "longest_streak": 2}
    assert all(found.components[name].weight == 0 for name in values)
    assert found.total == SEARCH_ANNEALED.score(done).total


def test_an_evaluation_is_scored_at_the_last_beta_whatever_its_version() -> None:
    def scored(purpose: Purpose, version: int) -> float:
        done = attempt("a", agent="search", task=TASK, turns=[shows("c1")], purpose=purpose, version=version)
        return SEARCH_PRUNING.score(done).components["beta"].value

    assert [scored(Purpose.TRAIN, version) for version in (0, 20, 40)] == [4.0, 3.0, 2.0]
    assert [scored(Purpose.EVALUATE, version) for version in (0, 20, 40)] == [2.0, 2.0, 2.0]


def test_a_program_that_reports_in_text_is_scored_as_one_whose_tools_are_recorded() -> None:
    def said(text: str) -> Turn:
        return Turn(messages=[{"role": "user", "content": "c9"}, {"role": "assistant", "content": text}])

    tools = [shows("c1", "x"), prunes(4), *[Turn(sampled_tokens=1)] * 66]
    texts = [said(" search_corpus ada"), *[said(" prune_chunks x")] * 4, said(""), *[Turn(sampled_tokens=1)] * 62]
    recorded = attempt("t", agent="search", task=TASK, turns=tools, answer={"chunk_ids": ["c1", "x", "c2"]})
    answer = {"chunk_ids": ["c1", "x", "c2"], "retrieved": ["c1", "x"]}
    reported = attempt("t", agent="search-program", task=TASK, turns=texts, answer=answer)
    assert len(tools) == len(texts)
    assert REWARDS_OF_AGENTS.of(reported) is SEARCH_PROGRAM
    scored = SEARCH_PROGRAM.score(reported)
    assert scored == SEARCH.score(recorded)
    assert scored.components["prune_penalty"].value == pytest.approx(0.1)
    assert scored.components["turn_penalty"].value > 0


@pytest.mark.parametrize("answer", [None, "answer c1", {"retrieved": "c1"}, {"chunk_ids": ["c1"]}, ["c1"]])
def test_a_program_that_reports_nothing_readable_has_retrieved_nothing(answer: object) -> None:
    turns = [Turn(messages=[{"role": "assistant", "content": None}]), Turn(messages=[])]
    done = attempt("t", agent="search-program", task=TASK, turns=turns, answer=answer)
    assert SEARCH_PROGRAM.score(done).total == 0.0
