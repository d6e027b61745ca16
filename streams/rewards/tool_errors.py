"""Penalties for tool calls that failed by the policy's own fault.

Not for those that failed by the world's or ours: a policy that is punished for them learns to avoid tools that are
slow today. And a broken call is a labelled outcome and never a filter: where invalid samples were discarded, failing
never scored, and a policy learnt to break its calls.
"""

from headrace.schemas.events import ToolErrorClass
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import Term, Weight

OWN_FAULT = frozenset({ToolErrorClass.INVALID_ARGUMENTS, ToolErrorClass.REFUSED})
"""Error classes that a better policy would not have met."""

WORST = 10
"""Failures from which the penalty is full. A count and not a share: a share would fall with every needless call."""


def own_failures(trajectory: Trajectory) -> int:
    """Tool calls that failed by the policy's fault."""
    return sum(use.error_class in OWN_FAULT for turn in trajectory.turns for use in turn.tools)


def tool_error_penalty(*, weight: Weight, worst: int = WORST, name: str = "tool_errors") -> Term:
    """``min(failures, worst) / worst`` as a component, in [0, 1]; ``weight`` is negative for a penalty."""
    if worst < 1:
        raise ValueError(f"worst is {worst}: it must be at least 1")

    def share(trajectory: Trajectory) -> float:
        """Tool calls that failed by the policy's fault, as a share of the worst; in [0, 1]."""
        return min(own_failures(trajectory), worst) / worst

    return Term(name, share, weight)
