"""The settings of a sampler.

RolloutConfig("localhost:9092", "http://localhost:8000", "search-7", curriculum=CurriculumSettings(raise_at=0.6))
"""

from dataclasses import dataclass
from pathlib import Path

from headrace.agents.open_groups import ZeroVariance
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.agents.rollouts.tasks import TASKS_PER_SEED, training_number


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Settings of a sampler."""

    bootstrap: str
    """Kafka address."""
    vllm_url: str
    """Address of the inference engine."""
    run: str
    """Training run."""
    sampler: str = "sampler"
    """Name of this sampler among those of the run. A restarted one keeps it, and completes its groups. Samplers that
    run at the same time need different names, and different seeds or ``first_task``, so that no task repeats."""
    seed: int = 0
    """Selects the training tasks: each seed has a million of its own, none used by the base model's demonstrations."""
    first_task: int = 0
    """Number of tasks of the seed to skip. Those that the run attempted are skipped anyway, as far as retention keeps
    their events."""
    tasks: int | None = None
    """Number of tasks to use; ``None``: all of the seed."""
    epochs: int = 1
    """How often each task may be attempted by a group; the sampler ends after the last."""
    curriculum: CurriculumSettings | None = None
    """From easy to hard tasks by pass rate; ``None``: the system's usual mixture."""
    zero_variance: ZeroVariance = ZeroVariance.REFILL
    """What becomes of the place of a group without a gradient."""
    restore_within_s: float = 300.0
    """Age in seconds up to which half-done groups of an ended sampler are completed. Shorter than the workers'
    ``group_timeout_s``, after which a group is closed."""
    group_size: int = 8
    """Attempts at each task."""
    concurrency: int = 64
    """Attempts in flight."""
    max_groups: int = 64
    """Largest number of open groups (neither trained nor rejected), in addition to the trainer's budget."""
    share: float = 1.0
    """This sampler's share of the trainer's budget; the shares of all samplers of a run should add up to 1."""
    sandboxes: Path | None = None
    """Folder of a system's sandboxes. There, a snapshot is taken after every turn and kept, so that attempts can be
    continued from the middle; ``None``: a temporary folder, without snapshots of turns."""
    max_failures: int = 32
    """Number of consecutive attempts that fail because of the engine or their sandbox before the sampler gives up."""

    def __post_init__(self) -> None:
        training_number(self.seed, self.first_task)
        for name in ("group_size", "concurrency", "max_groups", "epochs", "max_failures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}: it must be above 0 and at most 1")
        if not 1 <= self.tasks_used <= TASKS_PER_SEED - self.first_task:
            raise ValueError(
                f"tasks is {self.tasks}: expected 1 to {TASKS_PER_SEED - self.first_task:,}, which is what the seed "
                "has after first_task"
            )
        if self.restore_within_s < 0:
            raise ValueError(f"restore_within_s is {self.restore_within_s}: it must be 0 or more")
        if not self.sampler:
            raise ValueError("sampler is empty: expected a name")

    @property
    def tasks_used(self) -> int:
        """Number of tasks that are used."""
        return TASKS_PER_SEED - self.first_task if self.tasks is None else self.tasks

    def task_at(self, position: int) -> tuple[int, int] | None:
        """Return epoch and number of the ``position``-th group's task; ``None`` after the last epoch."""
        epoch, number = divmod(position, self.tasks_used)
        return None if epoch >= self.epochs else (epoch, training_number(self.seed, self.first_task + number))
