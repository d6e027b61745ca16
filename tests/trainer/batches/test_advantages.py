from dataclasses import replace

import numpy as np
import pytest

from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect
from headrace.streams.grouping.baselines import Baseline
from headrace.streams.grouping.group import group as group_rewards
from headrace.streams.grouping.group_policy import DEFAULT_POLICY, GroupPolicy
from headrace.trainer.admission.admission import AdmissionRules, admit
from headrace.trainer.batches.advantages import members_std, reward_std, scale_advantages, shuffle_advantages
from tests.streams.attempts import rewarded
from tests.trainer.builders import AT, admitted, member, segment, training_group, trajectory


def group(advantages, reward_std):
    names = [f"t{number}" for number in range(len(advantages))]
    made = admitted("g", *(trajectory(name, segment("cS")) for name in names), advantages=advantages)
    return replace(made, reward_std=reward_std)


def advantages_of(group):
    return [resolved.member.advantage for resolved in group.members]


def trained_by_grpo(totals, untrainable=(), policy=DEFAULT_POLICY):
    """Returns the advantages that the loss uses, by member of a group whose rewards are ``totals``."""
    state, outputs = None, []
    for name, total in totals.items():
        defects = [Defect.NO_CONSENT] if name in untrainable else []
        state, outputs = group_rewards(
            state, rewarded(name, total, size=len(totals), defects=defects, run="run"), policy=policy
        )
    (record,) = [output for output in outputs if isinstance(output, TrainingGroup)]
    members = [
        each.model_copy(update={"trajectory": Reference(partition=0, offset=n)})
        for n, each in enumerate(record.members)
    ]
    record = record.model_copy(update={"members": members})
    places = {(0, n): trajectory(each.trajectory_id, segment("cSS")) for n, each in enumerate(members)}
    rules = AdmissionRules(run="run", max_staleness=9, vocabulary_size=50, max_positions=99)
    admitted_group, rejections = admit(record, AT, places, rules, 5)
    assert not rejections
    (scaled,) = scale_advantages([admitted_group], "group_std")
    return dict(zip((one.member.trajectory_id for one in scaled.members), advantages_of(scaled), strict=True)), record


@pytest.mark.parametrize("untrainable", [(), ("a",), ("a", "c")])
def test_advantages_are_divided_by_the_deviation_of_the_rewards_that_made_the_mean(untrainable):
    totals = {"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.51}
    found, _ = trained_by_grpo(totals, untrainable)
    rewards = np.array(list(totals.values()))
    expected = (rewards - rewards.mean()) / rewards.std(ddof=1)
    assert found == pytest.approx(
        {name: each for name, each in zip(totals, expected, strict=True) if name not in untrainable}, rel=1e-4
    )


def test_leave_one_out_is_divided_by_the_same_deviation():
    totals = {"a": 0.0, "b": 0.5, "c": 0.51}
    found, _ = trained_by_grpo(totals, ("a",), GroupPolicy(baseline=Baseline.LEAVE_ONE_OUT))
    rewards = np.array(list(totals.values()))
    expected = (rewards - rewards.mean()) * 3 / 2 / rewards.std(ddof=1)
    assert [found["b"], found["c"]] == pytest.approx(expected[1:].tolist(), rel=1e-4)


@pytest.mark.parametrize("untrainable", [("a",), ("d",), ("a", "d")])
def test_an_old_record_gives_the_smallest_deviation_that_its_mean_allows(untrainable):
    totals = {"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.51}
    _, record = trained_by_grpo(totals, untrainable)
    old = record.model_copy(update={"reward_std": None})
    exact = float(np.std(list(totals.values()), ddof=1))
    if len(untrainable) == 1:
        assert reward_std(old) == pytest.approx(exact)
    assert 0.35 < reward_std(old) <= exact + 1e-12


def test_an_old_record_with_a_threshold_counts_its_members_alone():
    members = [member(trajectory(name, segment("cS")), reward=reward) for name, reward in (("a", 0.0), ("b", 1.0))]
    old = training_group("g", members).model_copy(update={"scored": 5, "baseline": "threshold"})
    assert reward_std(old) == members_std(old) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("reward_std", [None, 0.0, 1e-9])
def test_a_group_of_one_or_of_equal_rewards_is_not_divided(reward_std):
    one = group([0.75], reward_std)
    assert scale_advantages([one], "group_std") == [one]


def test_unscaled_advantages_are_those_of_the_record():
    one = group([0.75, -0.25], 0.5)
    assert scale_advantages([one], "none") == [one]


def test_the_control_permutes_the_advantages_among_the_members():
    given = [float(number) for number in range(8)]
    one = group(given, None)
    (shuffled,) = shuffle_advantages([one], seed=1, step=1)
    assert sorted(advantages_of(shuffled)) == given
    assert advantages_of(shuffled) != given
    names = [resolved.member.trajectory_id for resolved in shuffled.members]
    assert names == [f"t{number}" for number in range(8)]
    assert shuffle_advantages([one], seed=1, step=1) == [shuffled]
    assert shuffle_advantages([one], seed=1, step=2) != [shuffled]
