"""The decision on a complete group under each baseline, and the reasons why a member does not train."""

import pytest

from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.streams.grouping.baselines import Baseline, RunningMean
from headrace.streams.grouping.group import alone, group
from headrace.streams.grouping.group_decision import Outputs
from headrace.streams.grouping.group_policy import GroupBy, GroupPolicy
from headrace.streams.rewards.toggle import Toggle
from tests.streams.attempts import START_MS, rewarded


def decided(policy: GroupPolicy, *totals: float | None, **fields: object) -> Outputs:
    """The fates of a group of ``totals``; members are a, b, c …"""
    state, outputs = None, []
    for name, total in zip("abcdefgh", totals, strict=False):
        state, outputs = group(state, rewarded(name, total, size=len(totals), **fields), policy=policy)
    return outputs


def advantages(outputs: Outputs) -> list[float]:
    (training,) = [output for output in outputs if isinstance(output, TrainingGroup)]
    return [member.advantage for member in training.members]


def reasons(outputs: Outputs) -> list[Reason]:
    return [output.reason for output in outputs if isinstance(output, Rejection)]


def test_leave_one_out_compares_each_member_with_the_others() -> None:
    outputs = decided(GroupPolicy(baseline=Baseline.LEAVE_ONE_OUT), 1.0, 0.0, 0.5)
    (training,) = outputs
    assert isinstance(training, TrainingGroup)
    assert advantages(outputs) == [0.75, -0.75, 0.0]
    assert [member.baseline for member in training.members] == [0.25, 0.75, 0.5]
    assert (training.baseline, training.baseline_value) == ("leave_one_out", 0.5)


@pytest.mark.parametrize("baseline", [Baseline.MEAN, Baseline.LEAVE_ONE_OUT])
def test_the_record_holds_the_deviation_of_all_rewards_in_the_mean(baseline: Baseline) -> None:
    (training,) = decided(GroupPolicy(baseline=baseline), 1.0, 0.0, 0.5)
    assert isinstance(training, TrainingGroup)
    assert training.reward_std == pytest.approx(0.5)  # of (1, 0, ½): squares add up to ½, over n − 1 = 2
    state, outputs = None, []
    for name, total, defects in (("a", 1.0, []), ("b", 0.0, [Defect.NO_CONSENT]), ("c", 0.5, []), ("d", None, [])):
        state, outputs = group(state, rewarded(name, total, size=4, defects=defects), policy=GroupPolicy())
    (training,) = [output for output in outputs if isinstance(output, TrainingGroup)]
    assert [member.trajectory_id for member in training.members] == ["a", "c"]
    assert (training.scored, training.reward_std) == (3, pytest.approx(0.5))


def test_the_mean_baseline_is_not_stored_per_member() -> None:
    (training,) = decided(GroupPolicy(), 1.0, 0.0)
    assert isinstance(training, TrainingGroup)
    assert [member.baseline for member in training.members] == [None, None]


def test_equal_rewards_above_a_threshold_all_train() -> None:
    outputs = decided(GroupPolicy(baseline=Baseline.THRESHOLD, threshold=0.25), 1.0, 1.0)
    assert advantages(outputs) == [0.75, 0.75]


def test_rewards_at_the_threshold_have_no_gradient() -> None:
    assert reasons(decided(GroupPolicy(baseline=Baseline.THRESHOLD), 0.0, 0.0)) == [Reason.ALL_EQUAL] * 2


@pytest.mark.parametrize("baseline", [Baseline.MEAN, Baseline.LEAVE_ONE_OUT])
def test_a_wider_tolerance_treats_more_rewards_as_equal(baseline: Baseline) -> None:
    assert advantages(decided(GroupPolicy(baseline=baseline), 0.5, 0.55))
    assert reasons(decided(GroupPolicy(baseline=baseline, tolerance=0.1), 0.5, 0.55)) == [Reason.ALL_EQUAL] * 2


TOGGLE = GroupPolicy(toggle=Toggle(period=5, accuracy=0.5, budgets={"task-of-g": 1}))


def test_in_a_budget_phase_a_reward_over_its_budget_is_zero() -> None:
    assert reasons(decided(TOGGLE, 1.0, 1.0, 0.0, version=3)) == [Reason.ALL_FAIL] * 3
    assert advantages(decided(TOGGLE, 1.0, 1.0, 0.0, version=5)) == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert advantages(decided(TOGGLE, 1.0, 0.0, 0.0, version=3)) == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_a_budget_for_a_task_source_holds_for_its_tasks() -> None:
    policy = GroupPolicy(toggle=Toggle(period=5, accuracy=0.5, source_budgets={"wide": 1}))
    assert reasons(decided(policy, 1.0, 1.0, 0.0, version=3, task={"source": "wide"})) == [Reason.ALL_FAIL] * 3
    assert reasons(decided(policy, 1.0, 1.0, 0.0, version=3, task={"source": "deep"})) == []


RUNNING = GroupPolicy(by=GroupBy.COHORT, baseline=Baseline.RUNNING, warmup=2)


def in_cohort(trajectory_id: str, total: float | None, **fields: object) -> Reward:
    reward = rewarded(trajectory_id, total, group=None, size=None)
    return reward.model_copy(update={"task_id": "t", "cohort_key": "eu"} | fields)


def mean_of(*rewards: float) -> RunningMean:
    found = RunningMean(("r", "outcome@1", "eu"))
    for reward in rewards:
        found = found.after(reward, None)
    return found


def test_a_single_reward_is_compared_with_earlier_ones() -> None:
    mean, state, outputs = alone(mean_of(0.0, 1.0), in_cohort("a", 1.0), RUNNING, now_ms=START_MS)
    (training,) = outputs
    assert isinstance(training, TrainingGroup)
    assert advantages(outputs) == [0.5]
    assert (training.baseline, training.baseline_value, training.cohort_key) == ("running", 0.5, "eu")
    assert (training.task_id, training.expected, training.scored, training.reward_std) == ("t", 1, 1, None)
    assert mean == mean_of(0.0, 1.0, 1.0)
    assert state is not None
    assert state.closed == ("a",)


@pytest.mark.parametrize(
    ("before", "reward", "reason", "counts"),
    [
        ((1.0,), in_cohort("a", 0.0), Reason.NO_BASELINE, True),
        ((1.0, 1.0), in_cohort("a", 1.0), Reason.ALL_SUCCESS, True),
        ((0.0, 0.0), in_cohort("a", 0.0), Reason.ALL_FAIL, True),
        ((0.5, 0.5), in_cohort("a", 0.5), Reason.ALL_EQUAL, True),
        ((0.0, 1.0), in_cohort("a", None), Reason.UNSCORED, False),
        ((0.0, 1.0), in_cohort("a", 1.0, defects=[Defect.NO_CONSENT]), Reason.NO_CONSENT, True),
        ((0.0, 1.0), in_cohort("a", 1.0, sampled_tokens=0), Reason.NOTHING_SAMPLED, True),
        ((0.0, 1.0), in_cohort("a", 1.0, oldest_version=None), Reason.UNKNOWN_VERSION, True),
        ((0.0, 1.0), in_cohort("a", 1.0, cohort_key=None), Reason.NO_GROUP, False),
    ],
)
def test_reasons_why_a_single_reward_does_not_train(
    before: tuple[float, ...], reward: Reward, reason: Reason, counts: bool
) -> None:
    mean, _, outputs = alone(mean_of(*before), reward, RUNNING, now_ms=START_MS)
    assert reasons(outputs) == [reason]
    assert mean == (mean_of(*before, reward.total or 0.0) if counts else mean_of(*before))


@pytest.mark.parametrize(("before", "trains"), [(15, False), (16, True)])
def test_a_running_mean_counts_from_its_sixteenth_reward_by_default(before: int, trains: bool) -> None:
    policy = GroupPolicy(by=GroupBy.COHORT, baseline=Baseline.RUNNING)
    _, _, outputs = alone(mean_of(*[0.0] * before), in_cohort("a", 1.0), policy, now_ms=START_MS)
    assert reasons(outputs) == ([] if trains else [Reason.NO_BASELINE])


def test_a_revision_alone_changes_nothing() -> None:
    assert alone(mean_of(0.0, 1.0), in_cohort("a", 1.0, revision=1), RUNNING, now_ms=START_MS) == (
        mean_of(0.0, 1.0),
        None,
        [],
    )


def test_a_group_by_id_has_the_mean_of_its_members_under_a_running_policy() -> None:
    (training,) = decided(RUNNING, 1.0, 0.0)
    assert isinstance(training, TrainingGroup)
    assert (training.baseline, training.baseline_value) == ("mean", 0.5)
