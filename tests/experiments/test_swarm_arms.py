"""The short form: a run learns its outcome, and λ follows the schedule."""

import pytest

from headrace.agents.swarm.tasks import Source
from headrace.streams.rewards.swarm import SHORT_ANNEALED_AT
from tests.experiments.swarm_arms import NAMES, Run, kept, last, run


def test_the_deep_outcome_is_learnt_within_a_few_steps_without_shaping() -> None:
    learnt = run("none", 0, steps=8, held_out_tasks=64, groups=8)
    assert learnt.greedy_before.keys() >= {f"{source} outcome" for source in Source}
    before, after = (values["deep outcome"] + values["wide outcome"] for values in (learnt.before, learnt.after))
    assert after > before
    assert [step["λ1"] for step in learnt.steps] == [0.0] * 8


def test_lambda_falls_linearly_and_ends_at_the_planned_version() -> None:
    learnt = run("annealed", 0, steps=2, held_out_tasks=8, groups=2)
    assert [step["λ1"] for step in learnt.steps] == pytest.approx([0.3, 0.3 * (1 - 1 / SHORT_ANNEALED_AT)])
    assert learnt.before["λ1"] > learnt.after["λ1"] > 0


def test_the_last_steps_are_averaged_where_a_value_occurs() -> None:
    values = Run("none", 0, steps=[{"reward": 1.0}, {"reward": 2.0, "wide finished": 0.5}, {"reward": 4.0}])
    assert last(values, "reward", 2) == 3.0
    assert last(values, "wide finished") == 0.5
    assert last(values, "deep finished") == 0.0


def test_a_finished_run_is_read_and_not_repeated(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    calls = []

    def once(arm: str, seed: int, steps: int) -> Run:
        calls.append(arm)
        return Run(arm, seed, steps=[{"reward": 1.0}])

    monkeypatch.setattr("tests.experiments.swarm_arms.run", once)
    first = [kept(tmp_path, arm, 1, 5) for arm in NAMES]
    assert [kept(tmp_path, arm, 1, 5) for arm in NAMES] == first
    assert calls == list(NAMES)
