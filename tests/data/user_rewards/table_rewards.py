"""The reward of an agent that books tables: a package of its own, as a user would write it."""

from collections.abc import Sequence

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.schedule import linear
from headrace.streams.rewards.spec import Feedback, RewardSpec, Unscorable, reward
from headrace.streams.rewards.tool_errors import tool_error_penalty


@reward(weight=linear(0.5, 0.0, until=100))
def expected_tools(trajectory: Trajectory) -> float:
    """Share of the tools that the task needs which were called; in [0, 1]. Shaping: it comes down to nothing."""
    info = trajectory.started.task.get("info") if trajectory.started else None
    expected = set(info.get("expected", ())) if isinstance(info, dict) else set()
    if not expected:
        raise Unscorable("no_expected_tools")
    return len(expected & {use.tool for turn in trajectory.turns for use in turn.tools}) / len(expected)


@reward(weight=0.25)
def guest_came(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
    """1 where the guests came, −1 where they did not, 0 where nobody knows."""
    shown_up = [given.value for given in feedback if given.signal == "shown_up"]
    return 0.0 if not shown_up else 1.0 if shown_up[-1] > 0 else -1.0


TABLES = RewardSpec(
    "tables",
    1,
    (outcome, expected_tools, guest_came, tool_error_penalty(weight=-0.2)),
    maximum=1.75,
    feedback_window_ms=4 * 3_600_000,
)
