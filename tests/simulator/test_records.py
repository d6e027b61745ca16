"""Calls become segments, and groups are decided, as in the streams."""

import pytest

from headrace.schemas.records.group import Reason
from headrace.streams.grouping.group_policy import GroupPolicy
from headrace.trainer.batches.batch import AdmittedGroup
from tests.simulator.records import assembled, decided_group, segments_of
from tests.simulator.sampling import Call

GREW = (Call((5, 6), (7, 1), (-0.5, -0.25)), Call((5, 6, 7, 1, 8), (9,), (-1.0,)))
REWRITTEN = (*GREW, Call((5, 8), (3, 1), (-2.0, -0.125)))


def test_a_context_that_grew_is_one_segment() -> None:
    [segment] = segments_of(GREW, version=3)
    assert segment.token_ids.tolist() == [5, 6, 7, 1, 8, 9]
    assert list(segment.loss_mask) == [0, 0, 1, 1, 0, 1]
    assert segment.logprobs is not None
    assert segment.logprobs.tolist() == [-0.5, -0.25, -1.0]


def test_a_rewritten_context_is_a_segment_of_its_own() -> None:
    trajectory = assembled("t", REWRITTEN, version=3)
    assert [segment.token_ids.tolist() for segment in trajectory.segments] == [[5, 6, 7, 1, 8, 9], [5, 8, 3, 1]]
    assert trajectory.versions == [3]
    assert trajectory.sampled_tokens == 5


def test_a_groups_advantages_are_its_rewards_less_their_mean() -> None:
    group = decided_group("g", [assembled(name, GREW, version=3) for name in "ab"], [0.0, 1.0], GroupPolicy())
    assert isinstance(group, AdmittedGroup)
    assert [each.member.advantage for each in group.members] == [-0.5, 0.5]
    assert group.reward_std == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("reward", "reason"), [(0.0, Reason.ALL_FAIL), (0.5, Reason.ALL_EQUAL), (2.0, Reason.ALL_SUCCESS)]
)
def test_a_group_of_equal_rewards_has_no_gradient_and_a_reason(reward: float, reason: Reason) -> None:
    members = [assembled(name, GREW, version=3) for name in "ab"]
    assert decided_group("g", members, [reward, reward], GroupPolicy(), maximum=2.0) is reason
