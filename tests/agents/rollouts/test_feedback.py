"""What becomes of groups, by records that may be repeated, late or missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.rollouts.curriculum import GroupResult
from headrace.agents.rollouts.feedback import DecidedGroup, GroupFate, GroupFeedback
from headrace.schemas.events import EndStatus, Purpose, Role
from headrace.schemas.model import Record
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward

SOMEWHERE = Reference(partition=0, offset=0)


def reward(trajectory_id: str, total: float | None = 1.0, group: str = "g", **fields: object) -> Reward:
    known = {"trajectory_id": trajectory_id, "trajectory": SOMEWHERE, "group_id": group, "spec": "s@1"}
    return Reward.model_validate({**known, "total": total, "maximum": 2.0, "ended_ms": 0, **fields})


def rejection(reason: Reason, group: str = "g", trajectory_id: str = "t") -> Rejection:
    return Rejection(
        trajectory_id=trajectory_id, trajectory=SOMEWHERE, stage=Stage.GROUP, reason=reason, group_id=group
    )


def formed(group: str = "g") -> TrainingGroup:
    member = Member(trajectory_id="t", trajectory=SOMEWHERE, reward=1, advantage=1, oldest_version=0, sampled_tokens=1)
    return TrainingGroup(
        group_id=group, run="r", task_id="t", spec="s@1", baseline="mean", baseline_value=0, scored=2,
        members=[member], oldest_version=0,
    )  # fmt: skip


def following(size: int = 2, level: int | None = 1) -> GroupFeedback:
    feedback = GroupFeedback()
    feedback.began("g", level=level, size=size)
    return feedback


def test_the_result_is_known_with_the_last_reward_and_told_once() -> None:
    feedback = following()
    assert feedback.add(reward("a", 1.0)) is None
    assert feedback.add(reward("b", 0.9)) == GroupResult(level=1, pass_rate=0.5, attempts=2)
    assert feedback.add(reward("b", 2.0, revision=1)) is None


@given(st.permutations([reward("a", 2.0), reward("b", 0.0), reward("c", 1.0), reward("a", 2.0), reward("c", 1.0)]))
def test_repetitions_and_order_change_nothing(records: list[Record]) -> None:
    feedback = following(size=3)
    found = [each for record in records if (each := feedback.add(record))]
    assert found == [GroupResult(level=1, pass_rate=2 / 3, attempts=3)]


def test_attempts_that_a_restart_cut_off_or_nobody_could_score_do_not_count() -> None:
    feedback = following()
    for record in (reward("a"), reward("x", status=EndStatus.RESTARTED), reward("y", None), reward("z", maximum=None)):
        assert feedback.add(record) is None
    assert feedback.add(reward("b")) == GroupResult(level=1, pass_rate=1.0, attempts=2)


def test_what_only_names_the_group_and_is_none_of_its_members_does_not_count() -> None:
    feedback = following()
    for fields in ({"purpose": Purpose.EVALUATE}, {"role": Role.FROZEN}):
        for trajectory_id in "xyz":
            assert feedback.add(reward(trajectory_id, 0.0, **fields)) is None
    for reason in (Reason.EVALUATION, Reason.FROZEN_ROLE, Reason.FOREIGN_GROUP, Reason.LATE_FOR_GROUP):
        assert feedback.add(rejection(reason)) is None
    assert feedback.add(formed()) == DecidedGroup(level=1, fate=GroupFate.GRADIENT)


def test_a_rejected_member_whose_rejection_is_read_first_is_not_the_fate_of_its_group() -> None:
    feedback = following()
    assert feedback.add(rejection(Reason.NO_LOGPROBS)) is None
    assert feedback.add(rejection(Reason.NO_LOGPROBS)) is None
    assert feedback.add(formed()) == DecidedGroup(level=1, fate=GroupFate.GRADIENT)


def test_a_group_whose_members_are_all_rejected_is_rejected() -> None:
    feedback = following()
    assert feedback.add(rejection(Reason.NO_LOGPROBS, trajectory_id="a")) is None
    fate = DecidedGroup(level=1, fate=GroupFate.REJECTED)
    assert feedback.add(rejection(Reason.UNSCORED, trajectory_id="b")) == fate


def test_what_is_remembered_of_a_group_is_bounded() -> None:
    feedback = following()
    for number in range(1_000):
        feedback.add(reward(f"t{number}"))
        feedback.add(rejection(Reason.NO_LOGPROBS, trajectory_id=f"t{number}"))
    assert max(len(feedback._groups["g"].passed), len(feedback._groups["g"].rejected)) <= 2


@pytest.mark.parametrize(
    ("record", "fate"),
    [
        (formed(), GroupFate.GRADIENT),
        (rejection(Reason.ALL_SUCCESS), GroupFate.ALL_SUCCESS),
        (rejection(Reason.ALL_FAIL), GroupFate.ALL_FAIL),
        (rejection(Reason.ALL_EQUAL), GroupFate.ALL_EQUAL),
        (rejection(Reason.INCOMPLETE_GROUP), GroupFate.REJECTED),
    ],
)
def test_a_group_has_one_fate(record: Record, fate: GroupFate) -> None:
    feedback = following()
    assert feedback.add(record) == DecidedGroup(level=1, fate=fate)
    assert feedback.add(record) is None
    assert feedback.add(rejection(Reason.STALE)) is None


def test_a_replaced_attempt_decides_nothing() -> None:
    feedback = following()
    assert feedback.add(rejection(Reason.RESTARTED)) is None
    assert feedback.add(formed()) == DecidedGroup(level=1, fate=GroupFate.GRADIENT)


def test_groups_of_others_are_ignored_and_the_oldest_forgotten() -> None:
    feedback = GroupFeedback(remembered=2)
    for group in ("old", "g", "h"):
        feedback.began(group, level=None, size=1)
    for record in (reward("a", group="other"), formed("other"), reward("a", group="old"), formed("old")):
        assert feedback.add(record) is None
    assert feedback.add(reward("a", group="h")) == GroupResult(level=None, pass_rate=1.0, attempts=1)
