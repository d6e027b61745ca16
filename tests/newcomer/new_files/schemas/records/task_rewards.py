"""A histogram of a task's rewards."""

from typing import ClassVar

from pydantic import Field

from headrace.schemas.bounds import Name, Total, UnixMs
from headrace.schemas.model import Record


class TaskRewards(Record):
    """How many rewards of which size a task has had, in one partition of ``rewards``."""

    TYPE: ClassVar[str] = "headrace.task.rewards.v1"

    task_id: Name = Field(examples=["ada-works"])
    """Task."""
    partition: Total = Field(examples=[2])
    """Partition of ``rewards``. A task's groups may be in several: add their histograms."""
    count: Total = Field(examples=[3])
    """Rewards."""
    total: float = Field(examples=[1.9])
    """Sum of the rewards."""
    squares: float = Field(examples=[1.81])
    """Sum of their squares."""
    tenths: list[Total] = Field(examples=[[1, 0, 0, 0, 0, 0, 0, 0, 0, 2]])
    """Rewards in each tenth of [0, 1]. The first also holds those below 0, the last those above 1."""
    last_ms: UnixMs = Field(examples=[1_795_260_266_912])
    """Stream time of the latest reward, Unix milliseconds."""
