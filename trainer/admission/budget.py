"""The budget: the groups that samplers may have in flight, granted by the trainer. Pure."""

from dataclasses import dataclass

from headrace.schemas.records.step import Budget


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """Settings from which a run's budget follows."""

    run: str
    """Training run."""
    groups_per_step: int
    """B: groups of an optimiser step."""
    max_steps_ahead: int
    """η: off-policy steps. Samplers may have begun the groups of this many steps beyond the next one."""
    steps: int | None
    """Steps after which training ends; ``None``: never."""


def budget_at(version: int, settings: BudgetSettings) -> Budget:
    """Returns the budget while policy ``version`` is trained: (η + 1) · B groups, and 0 after the last step.

    A group begun within this budget is at most η steps old when it is trained, if groups are trained in the order in
    which they were begun (AReaL, Fu et al. 2025).
    """
    ahead, finished = settings.max_steps_ahead, settings.steps is not None and version >= settings.steps
    return Budget(
        run=settings.run,
        version=version,
        groups_per_step=settings.groups_per_step,
        max_steps_ahead=ahead,
        max_groups=0 if finished else (ahead + 1) * settings.groups_per_step,
    )
