"""The budget: how much samplers may have under way, as the trainer grants it. Pure."""

from dataclasses import dataclass

from headrace.schemas.records.step import Budget


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What a run's budget is made of."""

    run: str
    """Training run."""
    groups_per_step: int
    """B: groups that an optimiser step waits for."""
    max_steps_ahead: int
    """η: steps' worth of groups beyond the next step's that samplers may have begun."""
    steps: int | None
    """Steps after which nothing is learnt any more; ``None``: never."""


def budget_at(version: int, settings: BudgetSettings) -> Budget:
    """The budget while policy ``version`` is trained: (η + 1) · B groups, and none once the last step is trained.

    A group begun within this budget is trained at most η steps after it was begun, if groups are trained in the order
    in which they were begun (Fu et al. 2025, AReaL).
    """
    ahead, finished = settings.max_steps_ahead, settings.steps is not None and version >= settings.steps
    return Budget(
        run=settings.run,
        version=version,
        groups_per_step=settings.groups_per_step,
        max_steps_ahead=ahead,
        max_groups=0 if finished else (ahead + 1) * settings.groups_per_step,
    )
