"""The trace of a trajectory: the places of all records about it, its fate, and the versions that it influenced. Pure.

event → trajectory → rewards → group → step → version → every version that was trained from it
                            └→ rejected, with the reason
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.group import Member, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.trainer.provenance.evidence import Found, MissingRecord
from headrace.trainer.provenance.versions import VersionGraph


class TrajectoryFate(StrEnum):
    """The fate of a trajectory."""

    TRAINED = "trained"
    """Trained in a step."""
    REJECTED = "rejected"
    """Rejected, with a reason."""
    UNTRAINED = "untrained"
    """Pending: in a group that waits for a step."""
    UNGROUPED = "ungrouped"
    """Pending: scored, not grouped yet."""
    UNSCORED = "unscored"
    """Pending: assembled, not scored yet."""
    OPEN = "open"
    """Pending: not assembled yet."""
    UNKNOWN = "unknown"
    """The log holds nothing about it."""


@dataclass(frozen=True, slots=True)
class EventFound:
    """An event, and whether it is part of its trajectory."""

    id: str
    """Its ``ce_id``."""
    type: str
    """Its type."""
    trajectory_id: str
    """The trajectory that it is about."""
    sequence: int | None
    """Its number in the trajectory."""
    time_ms: int
    """When it happened, Unix milliseconds."""
    place: tuple[int, int]
    """Partition and offset in ``events``."""
    dead: DeadLetterError | None = None
    """Why it is a dead letter, and no part of its trajectory; ``None``: it is not."""


@dataclass(frozen=True, slots=True)
class EventsLeft:
    """The events of a trajectory that ``events`` still holds."""

    partition: int
    """Partition of ``events``."""
    first: int
    """Offset of its first event."""
    last: int
    """Offset of its last event."""
    begin: int
    """The partition's current first offset."""

    @property
    def state(self) -> str:
        """``there``, ``partly expired`` or ``expired``."""
        if self.first >= self.begin:
            return "there"
        return "partly expired" if self.last >= self.begin else "expired"


@dataclass(frozen=True, slots=True)
class TrainedIn:
    """A step that trained the trajectory."""

    step: Found[Step]
    """The step's record."""
    group_id: str
    """The group that it was in."""
    descendants: Sequence[int]
    """Versions trained from the one that the step made."""

    @property
    def version(self) -> int:
        """The version that the step made."""
        return self.step.record.version


@dataclass(slots=True)
class Trace:
    """Everything in the log about one trajectory. A missing link is a ``MissingRecord``."""

    trajectory_id: str
    """The trajectory."""
    event: EventFound | None = None
    """The event that was searched for, if any."""
    trajectory: Found[Trajectory] | MissingRecord | None = None
    """Its record; ``None`` if it is not assembled yet."""
    events: EventsLeft | None = None
    """Its events; ``None`` if its record is missing."""
    rewards: list[Found[Reward]] = field(default_factory=list)
    """Its scores: one per spec, and one more per revision."""
    groups: list[Found[TrainingGroup] | MissingRecord] = field(default_factory=list)
    """Its groups."""
    rejections: list[Found[Rejection]] = field(default_factory=list)
    """Its rejections, with their reasons."""
    steps: list[TrainedIn] = field(default_factory=list)
    """Steps that trained it: at most one, unless something is wrong."""
    parent: "Trace | None" = None
    """The trajectory of the orchestrator that observed this sub-agent's output, or that this one continues."""

    @property
    def fate(self) -> TrajectoryFate:
        """The fate of the trajectory."""
        if self.steps:
            return TrajectoryFate.TRAINED
        if self.rejections:
            return TrajectoryFate.REJECTED
        if self.groups:
            return TrajectoryFate.UNTRAINED
        if self.rewards:
            return TrajectoryFate.UNGROUPED
        if isinstance(self.trajectory, Found):
            return TrajectoryFate.UNSCORED
        return TrajectoryFate.OPEN if self.event is not None else TrajectoryFate.UNKNOWN

    @property
    def touched(self) -> list[int]:
        """Versions that it influenced, ascending: those of its steps, and all that were trained from them."""
        return sorted({version for each in self.steps for version in (each.version, *each.descendants)})

    @property
    def member(self) -> Member | None:
        """The trajectory as a member of its group; ``None`` if the group's record is missing."""
        for group in self.groups:
            if isinstance(group, Found):
                for member in group.record.members:
                    if member.trajectory_id == self.trajectory_id:
                        return member
        return None


def trained_in(step: Found[Step], trajectory_id: str, graph: VersionGraph) -> TrainedIn | None:
    """Returns how ``step`` trained the trajectory; ``None`` if it did not."""
    for group in step.record.groups:
        if trajectory_id in group.trajectory_ids:
            return TrainedIn(step, group.group_id, graph.descendants(step.record.version))
    return None
