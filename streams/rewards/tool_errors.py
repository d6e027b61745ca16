"""Penalties, and hints, for tool calls that failed through the policy's own fault.

Failures caused by the environment are not penalised: the policy would learn to avoid tools that happen to be slow. A
failed call is a labelled outcome and never a filter: if invalid samples are discarded, failing has no cost, and a
policy learns to break its calls.
"""

from collections.abc import Sequence

from headrace.schemas.events import ToolErrorClass
from headrace.schemas.records.reward import Hint
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.hints import HintFunction
from headrace.streams.rewards.spec import Term, Weight

OWN_FAULT = frozenset({ToolErrorClass.INVALID_ARGUMENTS, ToolErrorClass.REFUSED})
"""Error classes that a better policy avoids."""

WORST = 10
"""Number of failures at which the penalty is full. A share instead of a count would fall with every needless call."""


def own_failures(trajectory: Trajectory) -> int:
    """Returns the number of tool calls that failed through the policy's fault."""
    return sum(use.error_class in OWN_FAULT for turn in trajectory.turns for use in turn.tools)


def tool_error_penalty(*, weight: Weight, worst: int = WORST, name: str = "tool_errors") -> Term:
    """Returns ``min(failures, worst) / worst`` as a component, in [0, 1]; ``weight`` is negative for a penalty."""
    if worst < 1:
        raise ValueError(f"worst is {worst}: it must be at least 1")

    def share(trajectory: Trajectory) -> float:
        """Tool calls that failed through the policy's fault, as a share of ``worst``; in [0, 1]."""
        return min(own_failures(trajectory), worst) / worst

    return Term(name, share, weight)


def tool_error_hints(token_ids: Sequence[int], *, gap: int = 0, source: str = "tool_error") -> HintFunction:
    """Returns the function that gives the hint ``token_ids`` to every turn with a tool call that failed through the
    policy's own fault; fields as in :class:`Hint`."""
    template = Hint(turn=0, token_ids=list(token_ids), gap=gap, source=source)  # raises here if it is out of bounds

    def hints(trajectory: Trajectory) -> list[Hint]:
        return [
            template.model_copy(update={"turn": number})
            for number, turn in enumerate(trajectory.turns)
            if any(use.error_class in OWN_FAULT for use in turn.tools)
        ]

    return hints
