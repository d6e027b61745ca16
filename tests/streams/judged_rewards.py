"""Reward specs with feedback and judges, as a user would write them, for the tests of the score worker."""

from collections.abc import Sequence

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.judge import Endpoint, Judge, Reply, Rubric
from headrace.streams.rewards.spec import Feedback, RewardSpec, judged, reward

WINDOW_MS = 60_000


@reward(weight=1.0)
def liked(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
    """Sum of the feedback's values."""
    return sum(each.value for each in feedback)


LIKED = RewardSpec("liked", 1, (liked,), feedback_window_ms=WINDOW_MS)
"""Waits a minute of stream time for feedback."""

HASTY = RewardSpec("hasty", 1, (liked,), feedback_window_ms=1_000)
"""Waits a second."""

HELPFUL = Judge(
    "helpful",
    (Rubric("task", "The task is done."), Rubric("user", "The user got what they asked for.")),
    model="policy",
    reply=Reply.NUMBER,
    endpoint=Endpoint.COMPLETIONS,
    max_chars=200,
    timeout_s=60,
)

JUDGED = RewardSpec("judged", 1, (liked, judged("helpful", HELPFUL, weight=1.0)), maximum=None)
"""Calls a judge immediately; feedback makes revisions."""
