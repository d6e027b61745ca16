"""A trajectory's score."""

from typing import ClassVar

from headrace.schemas.bounds import Name, PositiveCount, Total, UnixMs
from headrace.schemas.events import EndStatus, Purpose, Role
from headrace.schemas.finite import RewardValue
from headrace.schemas.model import Part, Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect


class Component(Part):
    """One term of a reward."""

    value: RewardValue
    """Raw value."""
    weight: RewardValue
    """Its weight at the time, after any schedule."""
    details: dict[str, float] = {}
    """What the value was made of, where one number hides something: a judge's score by rubric."""


class Reward(Record):
    """A trajectory's score under one version of one reward spec."""

    TYPE: ClassVar[str] = "headrace.trajectory.scored.v1"

    trajectory_id: Name
    """The trajectory."""
    trajectory: Reference
    """Where its record stands in ``trajectories``."""
    agent: Name = ""
    """Name of the agent; empty where the start is missing."""
    run: Name = ""
    """Training run; empty where the start is missing."""
    task_id: Name | None = None
    """Task."""
    group_id: Name | None = None
    """Group."""
    group_size: PositiveCount | None = None
    """Expected members."""
    cohort_key: Name | None = None
    """Groups single attempts in production, where no prompt is tried twice."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or measurement."""
    role: Role = Role.TRAINABLE
    """Trainable or frozen."""
    tenant: Name | None = None
    """Whose data it is."""
    spec: Name
    """Reward spec, with its version: ``search@1``."""
    components: dict[str, Component] = {}
    """Every term."""
    total: RewardValue | None
    """The reward; ``None`` where it could not be computed."""
    maximum: float | None = None
    """Largest possible total, where the spec knows one: dashboards normalise by it."""
    unscored: str | None = None
    """Why there is no total."""
    revision: Total = 0
    """0 for the first; feedback that came after the window makes another of the same trajectory and spec."""
    feedback: list[Reference] = []
    """Where the feedback that it rests on stands in ``feedback``, in order."""
    defects: list[Defect] = []
    """Labels of the trajectory."""
    oldest_version: Total | None = None
    """Oldest policy version among its tokens."""
    newest_version: Total | None = None
    """Newest policy version among its tokens."""
    sampled_tokens: Total = 0
    """Tokens sampled."""
    turns: Total = 0
    """Model calls, and one more where a tool was called before the first."""
    status: EndStatus | None = None
    """How it ended."""
    ended_ms: UnixMs
    """When its last event happened, Unix milliseconds (log time)."""
