import statistics
from dataclasses import replace

import pytest

from headrace.trainer.batches.advantages import scale_advantages, shuffle_advantages
from tests.trainer.builders import admitted, segment, trajectory


def group(advantages, reward_std):
    names = [f"t{number}" for number in range(len(advantages))]
    made = admitted("g", *(trajectory(name, segment("cS")) for name in names), advantages=advantages)
    return replace(made, reward_std=reward_std)


def advantages_of(group):
    return [resolved.member.advantage for resolved in group.members]


def test_advantages_are_divided_by_the_standard_deviation_of_the_groups_rewards():
    rewards = [0.0, 0.0, 1.0]
    (scaled,) = scale_advantages([group([-1 / 3, 2 / 3], statistics.stdev(rewards))], "group_std")
    assert advantages_of(scaled) == pytest.approx([-0.57735, 1.15470], rel=1e-5)
    assert scaled.members[0].member.reward == 1.0


@pytest.mark.parametrize("reward_std", [None, 0.0, 1e-9])
def test_a_group_of_one_or_of_equal_rewards_has_nothing_to_divide_by(reward_std):
    one = group([0.75], reward_std)
    assert scale_advantages([one], "group_std") == [one]


def test_unscaled_advantages_are_those_of_the_record():
    one = group([0.75, -0.25], 0.5)
    assert scale_advantages([one], "none") == [one]


def test_the_control_deals_the_same_advantages_to_other_members():
    given = [float(number) for number in range(8)]
    one = group(given, None)
    (shuffled,) = shuffle_advantages([one], seed=1, step=1)
    assert sorted(advantages_of(shuffled)) == given
    assert advantages_of(shuffled) != given
    names = [resolved.member.trajectory_id for resolved in shuffled.members]
    assert names == [f"t{number}" for number in range(8)]
    assert shuffle_advantages([one], seed=1, step=1) == [shuffled]
    assert shuffle_advantages([one], seed=1, step=2) != [shuffled]
