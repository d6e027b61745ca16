"""Toggle (Kimi K2.5): length pressure for tasks that are mastered, and none for others.

    phase 0   a reward counts only if its group's mean accuracy is below λ, or the response is within the task's budget
    phase 1   every reward counts unchanged

The phase is ⌊t/m⌋ mod 2 of the policy version t. A task's budget is a percentile of the lengths of its correct
responses, estimated once at the start and then fixed; a task without a correct response has no budget. Where no task is
repeated, budgets by task source take their place. Toggle needs the whole group, so a group policy applies it, and not a
reward spec. λ, m and the percentile are not published; the values are headrace's choice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

SOLVED = 1.0
"""Outcome from which a response is correct."""


@dataclass(frozen=True, slots=True)
class Toggle:
    """The settings of one run."""

    period: int = 10
    """m: policy versions per phase."""
    accuracy: float = 0.5
    """λ: mean accuracy of a group from which on its task counts as mastered."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """Task → longest response that keeps its reward, in sampled tokens, from :func:`length_budgets`."""
    source_budgets: Mapping[str, int] = field(default_factory=dict)
    """Task source → the same, for its tasks that have no budget of their own."""

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period is {self.period}: a phase lasts at least 1 version")
        if not 0 < self.accuracy <= 1:
            raise ValueError(f"accuracy is {self.accuracy}: it must be above 0 and at most 1")
        for name, budgets in (("budgets", self.budgets), ("source_budgets", self.source_budgets)):
            if negative := [each for each, budget in budgets.items() if budget < 0]:
                raise ValueError(f"{name} are negative for {', '.join(sorted(negative)[:5])}")

    def budget(self, task_id: str, source: str = "") -> int | None:
        """Returns the longest response to the task that keeps its reward, in sampled tokens; ``None``: any does."""
        return self.budgets.get(task_id, self.source_budgets.get(source))

    def limits(self, version: int) -> bool:
        """Whether policy ``version`` is in phase 0, in which the budget applies."""
        return version // self.period % 2 == 0


def toggled(
    rewards: Sequence[float],
    lengths: Sequence[int],
    *,
    task_id: str,
    source: str = "",
    version: int,
    toggle: Toggle,
    correct: Sequence[float] | None = None,
) -> list[float]:
    """Returns the rewards of one group (G,): unchanged, or 0 for responses over their task's budget.

    ``lengths`` (G,) are in sampled tokens; ``source`` is the task's; ``version`` is the group's policy version.
    ``correct`` (G,) in [0, 1] gives the accuracy of each response, if rewards do not. Raises ``ValueError`` if the
    lengths of the inputs differ.
    """
    accuracies = rewards if correct is None else correct
    if not len(rewards) == len(lengths) == len(accuracies):
        raise ValueError(
            f"{len(rewards)} rewards, {len(lengths)} lengths and {len(accuracies)} accuracies of one group"
        )
    budget = toggle.budget(task_id, source)
    if not rewards or budget is None or not toggle.limits(version):
        return list(rewards)
    if math.fsum(accuracies) / len(accuracies) < toggle.accuracy:
        return list(rewards)
    return [reward if length <= budget else 0.0 for reward, length in zip(rewards, lengths, strict=True)]


def length_budgets(
    responses: Iterable[tuple[str, float, int]], *, percentile: float, solved: float = SOLVED
) -> dict[str, int]:
    """Returns task → the ``percentile``-th percentile of the lengths of its correct responses, if it has any.

    ``responses`` are (task, outcome, length in sampled tokens). Uses the nearest-rank percentile, so that a budget is
    an observed length: the smallest that at least ``percentile`` % of the correct responses do not exceed.
    """
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile is {percentile}: it must be above 0 and at most 100")
    lengths: dict[str, list[int]] = {}
    for task_id, outcome, length in responses:
        if outcome >= solved:
            lengths.setdefault(task_id, []).append(length)
    return {
        # Exact: 14 / 100 * 50 is above 7 in floats.
        task_id: sorted(seen)[math.ceil(Fraction(str(percentile)) * len(seen) / 100) - 1]
        for task_id, seen in sorted(lengths.items())
    }
