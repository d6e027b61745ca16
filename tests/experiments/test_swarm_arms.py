"""The short form: a run learns its outcomes, and λ follows the schedule."""

from statistics import fmean

import pytest

from headrace.agents.swarm.tasks import Source
from headrace.streams.rewards.swarm import SHORT_ANNEALED_AT
from tests.experiments.swarm_arms import NAMES, kept, run
from tests.experiments.swarm_arms_page import Run


def test_outcomes_are_learnt_within_25_steps_while_shaping_is_annealed() -> None:
    learnt = run("annealed", 0, steps=25, held_out_tasks=48)
    before, after = (sum(each[f"{source} outcome"] for source in Source) for each in (learnt.before, learnt.after))
    assert after > before + 0.2
    assert learnt.greedy_after["deep outcome"] > learnt.greedy_before["deep outcome"] + 0.1
    first, last = (fmean(each["reward"] for each in steps) for steps in (learnt.steps[:5], learnt.steps[-5:]))
    assert last > first + 0.04


def test_without_shaping_its_weight_is_0_and_it_is_recorded_all_the_same() -> None:
    learnt = run("none", 0, steps=1, held_out_tasks=8, groups=2)
    assert learnt.steps[0]["λ1"] == learnt.steps[0]["λ2"] == 0
    assert learnt.before["wide parallel"] > 0


def test_lambda_falls_linearly_and_ends_at_the_planned_version() -> None:
    learnt = run("annealed", 0, steps=2, held_out_tasks=8, groups=2)
    assert [step["λ1"] for step in learnt.steps] == pytest.approx([0.3, 0.3 * (1 - 1 / SHORT_ANNEALED_AT)])
    assert learnt.before["λ1"] > learnt.after["λ1"] > 0


def test_a_finished_run_is_read_and_not_repeated(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    calls = []

    def once(arm: str, seed: int, steps: int) -> Run:
        calls.append(arm)
        return Run(arm, seed, steps=[{"reward": 1.0}])

    monkeypatch.setattr("tests.experiments.swarm_arms.run", once)
    first = [kept(tmp_path, arm, 1, 5) for arm in NAMES]
    assert [kept(tmp_path, arm, 1, 5) for arm in NAMES] == first
    assert calls == list(NAMES)
