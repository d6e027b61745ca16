"""Reward specs as a user would write them; tests score history with them, live and in replays."""

from collections.abc import Sequence

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import Feedback, RewardSpec, reward


@reward(weight=1.0)
def votes(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
    """Sum of the feedback's values."""
    return sum(each.value for each in feedback)


@reward(weight=1.0)
def brevity(trajectory: Trajectory) -> float:
    """One over the number of turns, in (0, 1]."""
    return 1.0 / len(trajectory.turns)


VOTES = RewardSpec("votes", 1, (votes,), feedback_window_ms=2_000)
"""Waits two seconds of stream time for feedback."""

BREVITY = RewardSpec("brevity", 1, (brevity,), maximum=1.0)
"""Rewards fewer turns."""
