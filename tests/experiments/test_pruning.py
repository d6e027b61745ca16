"""The short form of ``pruning.py``: what budgets allow, the curriculum, and a run of two steps."""

from collections import Counter
from pathlib import Path

import pytest

from headrace.agents.search.tasks import Split, hops_of, make_task, split_of
from headrace.agents.search.vocabulary import TOKEN_IDS
from tests.experiments import pruning
from tests.experiments.pruning import ARMS, BUDGETS, LIMITS, WITH, WITHOUT


def test_every_budget_can_be_met_with_pruning_and_three_hops_not_without() -> None:
    for limits in BUDGETS:
        found = pruning.allowed(limits, 6)
        assert min(found.reward.values()) == pytest.approx(1.0)
        assert min(found.answered.values()) == 1
        for bold in (False, True):
            assert pruning.allowed(pruning.replace(limits, pruning=False), 6, bold=bold).answered[3] == 0


def test_under_the_tightest_budget_two_hops_need_a_prune_as_well() -> None:
    assert pruning.allowed(ARMS[WITHOUT], 6).answered[2] < 0.4
    assert ARMS[WITH] == LIMITS


def test_searching_on_without_an_answer_earns_more_than_stopping_in_time() -> None:
    without = pruning.replace(BUDGETS[0], pruning=False)
    assert pruning.allowed(without, 6, bold=True).reward[3] > pruning.allowed(without, 6).reward[3] + 0.1


def test_the_curriculum_goes_from_few_hops_to_many() -> None:
    first, last = (
        Counter(hops_of(pruning.training_task(number, version, seed=0)) for number in range(200))
        for version in (0, 999)
    )
    assert first[3] == 0
    assert 70 < last[3] < 130
    assert last[2] < first[2]


def test_seeds_train_on_different_tasks_none_of_which_is_held_out() -> None:
    tasks = [{pruning.training_task(number, 0, seed) for number in range(40)} for seed in (0, 1)]
    assert not tasks[0] & tasks[1]
    assert {split_of(make_task(each).question) for each in tasks[0]} == {Split.TRAIN}


def test_held_out_tasks_have_as_many_of_each_number_of_hops() -> None:
    assert Counter(map(hops_of, pruning.held_out_ids(5))) == {1: 5, 2: 5, 3: 5}


def test_without_pruning_the_warm_up_demonstrates_no_prune() -> None:
    prune = TOKEN_IDS["prune_chunks"]
    for arm, limits in ARMS.items():
        examples = pruning.warm_up_examples(limits, 60)
        chosen = [token for each in examples for token, mine in zip(each.token_ids, each.mask, strict=True) if mine]
        assert (prune in chosen) == (arm == WITH)


def test_a_run_is_kept_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def warmed_up(limits: pruning.Limits) -> object:
        made.append("warmed up")
        return pruning.load_model(pruning.BASE)

    run = pruning.run
    monkeypatch.setattr(pruning, "warmed_up", warmed_up)
    monkeypatch.setattr(pruning, "run", lambda *args, **_: run(*args, steps=1, groups=2, per_hops=2))
    first = pruning.results(tmp_path, seeds=1)
    assert pruning.results(tmp_path, seeds=1) == first
    assert made == ["warmed up"] * len(ARMS)
    for curve in first.values():
        assert [each["version"] for each in curve["held_out"]] == [0, 1]
        assert curve["steps"][0]["groups"] <= 2
    assert not any(each["pruned"] for each in first[WITHOUT, 0]["steps"])
