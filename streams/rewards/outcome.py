"""The reward of agents whose environment gives a verifiable outcome: the recorded outcome."""

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import RewardSpec, Unscorable, reward


@reward(weight=1.0)
def outcome(trajectory: Trajectory) -> float:
    """``trajectory.ended.outcome``, unchanged; unscorable (``no_outcome``) if the environment gave none."""
    if trajectory.outcome is None:
        raise Unscorable("no_outcome")
    return trajectory.outcome


OUTCOME = RewardSpec("outcome", 1, (outcome,), maximum=1.0, minimum=-1.0)
"""``outcome@1``: total = outcome, from −1 to 1; 1 is success."""
