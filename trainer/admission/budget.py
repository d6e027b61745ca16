"""The budget: how much samplers may have under way, as the trainer grants it. Pure."""

from headrace.schemas.records.step import Budget
from headrace.trainer.config import TrainerConfig


def budget_at(version: int, config: TrainerConfig) -> Budget:
    """The budget while policy ``version`` is trained: (η + 1) · B groups, and none once the last step is trained.

    η is ``max_steps_ahead``, else ``max_staleness``: a group begun within this budget is trained at most η steps after
    it was begun, if groups are trained in the order in which they were begun (Fu et al. 2025, AReaL).
    """
    ahead = config.max_staleness if config.max_steps_ahead is None else config.max_steps_ahead
    finished = config.steps is not None and version >= config.steps
    return Budget(
        run=config.run,
        version=version,
        groups_per_step=config.groups_per_step,
        max_steps_ahead=ahead,
        max_groups=0 if finished else (ahead + 1) * config.groups_per_step,
    )
