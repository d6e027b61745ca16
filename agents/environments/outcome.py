"""What became of a rollout → the end of its session, which is the end of the trajectory.

    RolloutResult(rewards={"correct": Part(1.0), "short": Part(0.5, weight=0.2)}, stop="agent_completed")
    → {"status": "completed", "outcome": 1.1, "answer": {"rewards": {"correct": [1.0, 1.0], "short": [0.5, 0.2]}, …}}

The outcome is the environment's reward, unchanged: the sum of its weighted parts. A rollout that failed in a way that
the policy can bring about has the outcome ``failed_outcome``, so that failing is no way out; one that failed for other
reasons has none, and is rejected as ``unscored``. In both cases ``answer.failure`` says what happened.
"""

import json
import math
from typing import Any

from headrace.agents.environments.environment import Cause, Failure, RolloutResult, failed
from headrace.schemas.finite import MAX_REWARD

MAX_BYTES = 16_000
"""Room for the parts of a reward in an answer, and for the metrics, as JSON; what has none is counted (``omitted``)."""

MAX_LABEL = 200
"""Longest name or label, in characters."""

MAX_MESSAGE = 2_000
"""Longest error message, in characters."""


def reward_of(result: RolloutResult) -> float:
    """Return Σ score · weight."""
    return math.fsum(part.score * part.weight for part in result.rewards.values())


def checked(result: RolloutResult) -> RolloutResult:
    """Return ``result``, or a failure if its reward is missing or is no number that a trajectory can have."""
    if result.failure is not None:
        return result
    if not result.rewards:
        return failed(Cause.INFRASTRUCTURE, "no_reward", "the environment gave no reward", result.metrics)
    wrong = {
        name: part
        for name, part in result.rewards.items()
        if not all(math.isfinite(each) and abs(each) <= MAX_REWARD for each in (part.score, part.weight))
    }
    if wrong:
        shown = ", ".join(f"{name[:MAX_LABEL]} {part.score} with weight {part.weight}" for name, part in wrong.items())
        return failed(Cause.ROLLOUT, "reward_not_finite", f"no usable reward: {shown}", result.metrics)
    if abs(reward_of(result)) > MAX_REWARD:
        return failed(Cause.ROLLOUT, "reward_not_finite", f"the reward is {reward_of(result):g}", result.metrics)
    return result


def end_of_session(result: RolloutResult, failed_outcome: float) -> dict[str, Any]:
    """Return the body of ``POST /sessions/…/end`` for a checked result."""
    answer: dict[str, Any] = {"stop": result.stop[:MAX_LABEL]}
    rewards = _bounded({name: [part.score, part.weight] for name, part in result.rewards.items()})
    metrics = _bounded({name: value for name, value in result.metrics.items() if math.isfinite(value)})
    answer |= {name: each for name, each in (("rewards", rewards), ("metrics", metrics)) if each}
    if omitted := len(result.rewards) - len(rewards) + len(result.metrics) - len(metrics):
        answer["omitted"] = omitted
    if result.failure is not None:
        answer["failure"] = _failure(result.failure)
    return {"status": result.status.value, "outcome": outcome_of(result, failed_outcome), "answer": answer}


def outcome_of(result: RolloutResult, failed_outcome: float) -> float | None:
    """Return the trajectory's outcome; ``None`` if it has none."""
    if result.failure is None:
        return reward_of(result)
    return failed_outcome if result.failure.cause is Cause.ROLLOUT else None


def _failure(failure: Failure) -> dict[str, str]:
    return {
        "cause": failure.cause.value,
        "label": failure.label[:MAX_LABEL],
        "message": failure.message[:MAX_MESSAGE],
    }


def _bounded(values: dict[str, Any]) -> dict[str, Any]:
    """Return the leading values that fit."""
    found, size = dict[str, Any](), 0
    for name, value in values.items():
        size += len(json.dumps([name[:MAX_LABEL], value]))  # ASCII: no shorter than UTF-8
        if size > MAX_BYTES:
            break
        found[name[:MAX_LABEL]] = value
    return found
