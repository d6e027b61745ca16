"""Every reward gets exactly one fate, the same for any order and repetition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.envelope import from_headers
from headrace.schemas.events import EndStatus, Purpose, Role
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.topics import REJECTED, TRAINING
from headrace.streams.grouping.group import cohort_of, expire, group, output_message
from headrace.streams.grouping.group_decision import Outputs
from headrace.streams.grouping.group_policy import DEFAULT_POLICY, MAX_GROUP_SIZE, GroupBy, GroupPolicy, Incomplete
from headrace.streams.grouping.group_state import GroupState
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import START_MS, rewarded


def fold(rewards: list[Reward], policy: GroupPolicy = DEFAULT_POLICY) -> tuple[GroupState | None, Outputs]:
    """Fold ``rewards`` into one group; returns the final state and all outputs."""
    state: GroupState | None = None
    outputs: Outputs = []
    for reward in rewards:
        state, more = group(state, reward, policy=policy)
        outputs += more
    return state, outputs


def reasons(outputs: Outputs) -> dict[str, Reason]:
    return {output.trajectory_id: output.reason for output in outputs if isinstance(output, Rejection)}


def test_a_group_waits_for_its_size() -> None:
    state, outputs = fold([rewarded("a", 0.0)])
    assert outputs == []
    assert state is not None
    assert list(state.members) == ["a"]


def test_advantages_are_rewards_minus_the_mean() -> None:
    _, outputs = fold([rewarded("b", 1.0, size=4, offset=1), *(rewarded(name, 0.0, size=4) for name in "dca")])
    (training,) = outputs
    assert isinstance(training, TrainingGroup)
    assert [member.trajectory_id for member in training.members] == ["a", "b", "c", "d"]
    assert [member.advantage for member in training.members] == [-0.25, 0.75, -0.25, -0.25]
    assert (training.baseline, training.baseline_value, training.scored) == ("mean", 0.25, 4)
    assert (training.run, training.task_id, training.spec) == ("r", "task-of-g", "outcome@1")
    assert training.members[1].trajectory.offset == 1
    assert training.oldest_version == 3


@pytest.mark.parametrize(
    ("totals", "reason"),
    [
        ((1.0, 1.0), Reason.ALL_SUCCESS),
        ((0.0, 0.0), Reason.ALL_FAIL),
        ((0.5, 0.5), Reason.ALL_EQUAL),
        ((0.1 + 0.2, 0.3), Reason.ALL_EQUAL),
        ((1.0 - 1e-7, 1.0), Reason.ALL_SUCCESS),
        ((0.0, 1e-7), Reason.ALL_FAIL),
    ],
)
def test_equal_rewards_carry_no_gradient(totals: tuple[float, float], reason: Reason) -> None:
    _, outputs = fold([rewarded("a", totals[0]), rewarded("b", totals[1])])
    assert reasons(outputs) == {"a": reason, "b": reason}
    assert len(outputs) == 2


def test_a_group_of_one_has_no_variance() -> None:
    assert reasons(fold([rewarded("a", 0.5, size=1)])[1]) == {"a": Reason.ALL_EQUAL}


def test_a_defective_member_counts_for_the_baseline_and_is_not_trained() -> None:
    rewards = [
        rewarded("a", 1.0, size=3, defects=[Defect.TRUNCATED_SAMPLING, Defect.NO_CONSENT]),
        rewarded("b", 0.0, size=3),
        rewarded("c", 0.5, size=3),
    ]
    _, outputs = fold(rewards)
    training = outputs[0]
    assert isinstance(training, TrainingGroup)
    assert [member.trajectory_id for member in training.members] == ["b", "c"]
    assert (training.baseline_value, training.scored) == (0.5, 3)
    assert reasons(outputs) == {"a": Reason.TRUNCATED_SAMPLING}


def test_a_member_without_a_total_is_rejected_by_its_defect_or_as_unscored() -> None:
    rewards = [
        rewarded("a", 1.0, size=4, defects=[Defect.NO_END]),
        rewarded("b", None, size=4),
        rewarded("c", 0.0, size=4),
        rewarded("d", 1.0, size=4),
    ]
    _, outputs = fold(rewards)
    training = outputs[0]
    assert isinstance(training, TrainingGroup)
    assert [member.advantage for member in training.members] == [-0.5, 0.5]
    assert reasons(outputs) == {"a": Reason.NO_END, "b": Reason.UNSCORED}


def test_without_trainable_members_there_is_no_group() -> None:
    bad = [Defect.NO_TOKEN_IDS]
    _, outputs = fold([rewarded("a", 0.0, defects=bad), rewarded("b", 1.0, defects=bad)])
    assert reasons(outputs) == {"a": Reason.NO_TOKEN_IDS, "b": Reason.NO_TOKEN_IDS}
    assert len(outputs) == 2


def test_zero_variance_takes_precedence_over_defects() -> None:
    bad = [Defect.NO_TOKEN_IDS]
    _, outputs = fold([rewarded("a", 0.0, defects=bad), rewarded("b", 0.0, defects=bad)])
    assert reasons(outputs) == {"a": Reason.ALL_FAIL, "b": Reason.ALL_FAIL}


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (rewarded("a", purpose=Purpose.EVALUATE), Reason.EVALUATION),
        (rewarded("a", purpose=Purpose.EVALUATE, role=Role.FROZEN, group=None), Reason.EVALUATION),
        (rewarded("a", role=Role.FROZEN, defects=[Defect.FROZEN_ROLE]), Reason.FROZEN_ROLE),
        (rewarded("a").model_copy(update={"status": EndStatus.RESTARTED}), Reason.RESTARTED),
        (rewarded("a", group=None), Reason.NO_GROUP),
        (rewarded("a", group=""), Reason.NO_GROUP),
        (rewarded("a", started=False, defects=[Defect.NO_START]), Reason.NO_START),
        (rewarded("a", size=MAX_GROUP_SIZE + 1), Reason.OVERSIZE),
    ],
)
def test_some_rewards_join_no_group(reward: Reward, reason: Reason) -> None:
    state, outputs = group(None, reward)
    assert state is None
    assert reasons(outputs) == {"a": reason}


def test_a_replaced_attempt_does_not_count_as_a_member_of_its_group() -> None:
    replaced = rewarded("x", 0.0).model_copy(update={"status": EndStatus.RESTARTED})
    _, outputs = fold([rewarded("a", 0.0), replaced, rewarded("b", 1.0)])
    assert reasons(outputs) == {"x": Reason.RESTARTED}
    [formed] = [output for output in outputs if isinstance(output, TrainingGroup)]
    assert [member.trajectory_id for member in formed.members] == ["a", "b"]
    assert formed.scored == 2


@pytest.mark.parametrize("foreign", [{"run": "other"}, {"tenant": "other"}, {"tenant": ""}])
def test_a_reward_of_another_run_or_tenant_does_not_mix_in(foreign: dict[str, str]) -> None:
    """The first member in log order determines the group's run and tenant."""
    own, other = rewarded("a", 0.0), rewarded("b", 1.0).model_copy(update=foreign)
    state, outputs = fold([own, other])
    assert reasons(outputs) == {"b": Reason.FOREIGN_GROUP}
    assert state is not None
    assert set(state.members) == {"a"}
    state, outputs = fold([other, own])
    assert reasons(outputs) == {"a": Reason.FOREIGN_GROUP}
    assert state is not None
    assert set(state.members) == {"b"}


def test_a_closed_group_rejects_a_foreign_reward_as_foreign() -> None:
    own = [rewarded(name, float(n), size=2) for n, name in enumerate("ab")]
    other = rewarded("c", 1.0, size=2).model_copy(update={"tenant": "other"})
    _, outputs = fold([*own, other])
    assert reasons(outputs) == {"c": Reason.FOREIGN_GROUP}


def test_tenants_share_no_cohort() -> None:
    policy = GroupPolicy(by=GroupBy.COHORT, size=2)
    alike = rewarded("a", 0.0).model_copy(update={"group_id": None, "group_size": None, "cohort_key": "eu"})
    assert cohort_of(alike, policy) == ("r", alike.spec, "eu")
    assert cohort_of(alike.model_copy(update={"tenant": "x"}), policy) == ("r", alike.spec, "eu", "x")


def test_totals_of_two_specs_are_not_compared() -> None:
    rewards = [rewarded("a", 0.0, size=3), rewarded("b", 1.0, size=3)]
    later = rewarded("c", 1.0, size=3).model_copy(update={"spec": "outcome@2"})
    _, outputs = fold([*rewards, later])
    assert reasons(outputs) == {"c": Reason.UNSCORED}


def test_a_late_member_is_rejected_and_a_known_one_ignored() -> None:
    state, _ = fold([rewarded("a", 0.0), rewarded("b", 1.0)])
    assert group(state, rewarded("a", 0.0, offset=99)) == (state, [])
    assert reasons(group(state, rewarded("c", 0.0))[1]) == {"c": Reason.LATE_FOR_GROUP}


def test_a_repeated_trajectory_is_not_a_second_member() -> None:
    state, outputs = fold([rewarded("a", 0.0), rewarded("a", 1.0, offset=99)])
    assert outputs == []
    assert state is not None
    assert [member.total for member in state.members.values()] == [0.0]


def test_the_size_may_come_with_a_later_member() -> None:
    _, outputs = fold([rewarded("a", 0.0, size=None), rewarded("b", 1.0, size=2)])
    assert isinstance(outputs[0], TrainingGroup)


def test_an_incomplete_group_expires_at_its_deadline_and_not_before() -> None:
    state, _ = fold([rewarded("b", 0.0, size=3), rewarded("a", 1.0, size=3)])
    assert state is not None
    assert expire(state, START_MS + 599, 600) == (state, [])
    closed, rejections = expire(state, START_MS + 5000, 600)
    assert list(reasons(rejections).items()) == [("a", Reason.INCOMPLETE_GROUP), ("b", Reason.INCOMPLETE_GROUP)]
    assert closed.closed_ms == START_MS + 600
    assert expire(closed, START_MS + 9000, 600) == (closed, [])
    assert reasons(group(closed, rewarded("c", 1.0))[1]) == {"c": Reason.LATE_FOR_GROUP}


def revised(reward: Reward, total: float, revision: int = 1) -> Reward:
    return reward.model_copy(update={"total": total, "revision": revision})


def test_a_revision_replaces_the_reward_while_the_group_is_open() -> None:
    first = rewarded("a", 0.0)
    _, outputs = fold([first, revised(first, 0.25), revised(first, 0.5, 2), revised(first, 0.25), rewarded("b", 1.0)])
    (training,) = outputs
    assert isinstance(training, TrainingGroup)
    assert [member.reward for member in training.members] == [0.5, 1.0]


@pytest.mark.parametrize(
    "before",
    [
        [],
        [rewarded("a", 0.0), rewarded("b", 1.0)],
        [rewarded("c", 0.0), rewarded("b", 1.0)],
        [rewarded("c", 0.0)],
        [rewarded("a", purpose=Purpose.EVALUATE)],
    ],
    ids=["group forgotten", "member of a closed group", "was late", "rejected from elsewhere", "rejected at once"],
)
def test_a_revision_is_not_a_second_fate(before: list[Reward]) -> None:
    state, _ = fold(before)
    late = revised(rewarded("a", 0.0, purpose=before[-1].purpose if before else Purpose.TRAIN), 1.0)
    assert group(state, late) == (state, [])


SHRINK = GroupPolicy(incomplete=Incomplete.SHRINK, min_members=2)


def test_an_incomplete_group_may_shrink_to_the_members_that_came() -> None:
    state, _ = fold([rewarded("b", 0.0, size=4), rewarded("a", 1.0, size=4), rewarded("c", None, size=4)], SHRINK)
    assert state is not None
    closed, outputs = expire(state, START_MS + 600, 600, SHRINK)
    training = outputs[0]
    assert isinstance(training, TrainingGroup)
    assert [(member.trajectory_id, member.advantage) for member in training.members] == [("a", 0.5), ("b", -0.5)]
    assert (training.expected, training.scored) == (4, 2)
    assert reasons(outputs) == {"c": Reason.UNSCORED}
    assert reasons(group(closed, rewarded("d", 1.0), policy=SHRINK)[1]) == {"d": Reason.LATE_FOR_GROUP}


def test_a_group_does_not_shrink_below_its_smallest_size() -> None:
    state, _ = fold([rewarded("a", 0.0, size=4), rewarded("b", None, size=4)], SHRINK)
    assert state is not None
    _, outputs = expire(state, START_MS + 600, 600, SHRINK)
    assert reasons(outputs) == {"a": Reason.INCOMPLETE_GROUP, "b": Reason.INCOMPLETE_GROUP}


def test_a_policy_may_set_size_and_timeout() -> None:
    policy = GroupPolicy(size=2, within_s=5)
    _, outputs = fold([rewarded("a", 0.0, size=None), rewarded("b", 1.0, size=None)], policy)
    assert isinstance(outputs[0], TrainingGroup)
    state, _ = fold([rewarded("a", 0.0, size=None)], policy)
    assert state is not None
    assert expire(state, START_MS + 4999, 600, policy) == (state, [])
    assert reasons(expire(state, START_MS + 5000, 600, policy)[1]) == {"a": Reason.INCOMPLETE_GROUP}


def test_outputs_go_to_their_topics_under_stable_ids() -> None:
    _, outputs = fold([rewarded("a", 0.0, size=3), rewarded("b", 1.0, size=3), rewarded("c", None, size=3)])
    sent = [(output_message(output, 7), output_message(output, 7)) for output in outputs]
    assert [first[0] for first, _ in sent] == [TRAINING, REJECTED]
    assert all(first == again for first, again in sent)
    envelopes = [from_headers(first[1].headers) for first, _ in sent]
    assert [envelope.subject for envelope in envelopes] == ["g", "c"]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, b"g"),
        ({"cohort_key": "eu"}, b"g"),
        ({"group_id": None, "cohort_key": "eu"}, b"eu"),
        ({"group_id": None}, b"a"),
    ],
)
def test_rewards_of_one_group_have_one_key(fields: dict[str, str | None], key: bytes) -> None:
    assert reward_message(rewarded("a").model_copy(update=fields)).key == key


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Reward], list[Reward]]:
    """The rewards of one group in order, and the same in another order with some of them repeated."""
    size = draw(st.integers(1, 6))
    rewards = [
        rewarded(
            f"t{number}",
            draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
            size=size,
            offset=number,
            defects=draw(st.lists(st.sampled_from(list(Defect)), max_size=2)),
            version=draw(st.sampled_from([None, 1, 2])),
        )
        for number in range(size)
    ]
    repeated = draw(st.lists(st.sampled_from(rewards), max_size=4))
    return rewards, draw(st.permutations([*rewards, *repeated]))


@given(histories())
def test_order_and_repetition_change_nothing(history: tuple[list[Reward], list[Reward]]) -> None:
    in_order, shuffled = history
    assert fold(shuffled)[1] == fold(in_order)[1]


@given(histories())
def test_every_reward_has_exactly_one_fate(history: tuple[list[Reward], list[Reward]]) -> None:
    rewards, shuffled = history
    fates: list[str] = []
    for output in fold(shuffled)[1]:
        if isinstance(output, TrainingGroup):
            fates += [member.trajectory_id for member in output.members]
            assert output.members, "a group without members carries no gradient"
        else:
            fates.append(output.trajectory_id)
    assert sorted(fates) == sorted(reward.trajectory_id for reward in rewards)


@given(histories())
def test_advantages_of_all_scored_members_would_sum_to_zero(history: tuple[list[Reward], list[Reward]]) -> None:
    for output in fold(history[0])[1]:
        if isinstance(output, TrainingGroup):
            scored = [reward.total for reward in history[0] if reward.total is not None]
            assert sum(total - output.baseline_value for total in scored) == pytest.approx(0, abs=1e-9)
            assert all(member.advantage == member.reward - output.baseline_value for member in output.members)
