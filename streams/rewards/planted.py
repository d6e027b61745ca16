"""The reward of simulated attempts, which `headrace watch plant NAME --live` sends: real terms of made-up data.

    task {"source": "tickets", "simulated": {"quality": 0.8, "judged": 0.9, "disagreement": 0.1}}
    outcome 1, 3 sub-agents
        → answer 1 · 1.0, judged 0.9 · 0.5, parallel 0.3 · λ, quality 0.8 · 0.5

Outcome and sub-agents are those of the trajectory. What nobody computes here (a judge's verdict, the share of the
evidence that was found) stands in the task's data, where the simulation has written it.
"""

from collections.abc import Mapping
from typing import Any

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.judge import DISAGREEMENT
from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.schedule import Schedule, linear
from headrace.streams.rewards.spec import RewardSpec, Term, Unscorable, reward

SIMULATED = "simulated"
"""Field of a task's data with what the simulation drew."""
DISCARDED = "discarded"
"""Field of :data:`SIMULATED`, true if the attempt cannot be scored; then also the reason for no total."""
NOT_SIMULATED = "not_simulated"
"""Reason for no total: the task has no such field."""

LAMBDA = linear(0.3, 0.0, until=400)
"""λ, the weight of the shaping term."""
STOPS_AT = 50
"""Version from which λ of ``planted-unannealed@1`` no longer declines."""
MAXIMUM = 2.3
"""Largest total: answer 1, quality 0.5, judged 0.5, parallel 0.3."""


def _simulated(trajectory: Trajectory) -> Mapping[str, Any]:
    """Returns what the simulation drew. Raises :class:`Unscorable` if the attempt is not simulated."""
    found = trajectory.started.task.get(SIMULATED) if trajectory.started else None
    if not isinstance(found, dict):
        raise Unscorable(NOT_SIMULATED)
    return found


def _spread(trajectory: Trajectory) -> Mapping[str, float]:
    """Returns the largest difference between the rubrics of the simulated judge, in [0, 1]."""
    return {DISAGREEMENT: float(_simulated(trajectory)[DISAGREEMENT])}


@reward(weight=1.0)
def answer(trajectory: Trajectory) -> float:
    """The outcome; unscorable (``discarded``) if the simulated harness discards the attempt."""
    if _simulated(trajectory).get(DISCARDED):
        raise Unscorable(DISCARDED)
    return float(outcome(trajectory))


@reward(weight=0.5, details=_spread)
def judged(trajectory: Trajectory) -> float:
    """Verdict of the simulated judge, in [0, 1]."""
    return float(_simulated(trajectory)["judged"])


@reward(weight=0.5)
def quality(trajectory: Trajectory) -> float:
    """Share of the evidence that was found, in [0, 1]."""
    return float(_simulated(trajectory)["quality"])


def _parallel(weight: Schedule) -> Term:
    @reward(weight=weight)
    def parallel(trajectory: Trajectory) -> float:
        """A tenth for each sub-agent that was started, at most 1."""
        return min(trajectory.subagents_assigned, 10) / 10

    return parallel


PLANTED = RewardSpec("planted", 1, (answer, judged, _parallel(LAMBDA), quality), maximum=MAXIMUM, minimum=0.0)
"""``planted@1``: λ declines to 0 until version 400."""
PLANTED_UNANNEALED = RewardSpec(
    "planted-unannealed",
    1,
    (answer, judged, _parallel(linear(LAMBDA.first, LAMBDA.at(STOPS_AT), until=STOPS_AT)), quality),
    maximum=MAXIMUM,
    minimum=0.0,
)
"""``planted-unannealed@1``: λ stops to decline at version 50, the mistake that the monitor ``anneal`` looks for."""
