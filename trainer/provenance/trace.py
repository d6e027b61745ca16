"""The trace of a trajectory: where everything made of it stands, its fate, and the versions that it touched. Pure.

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
    """What became of a trajectory."""

    TRAINED = "trained"
    """In a step."""
    REJECTED = "rejected"
    """Turned away, for a reason."""
    UNTRAINED = "untrained"
    """Pending: in a group that waits for its step."""
    UNGROUPED = "ungrouped"
    """Pending: scored, and in no group yet."""
    UNSCORED = "unscored"
    """Pending: assembled, without a reward yet."""
    OPEN = "open"
    """Pending: not assembled yet."""
    UNKNOWN = "unknown"
    """The log does not know it."""


@dataclass(frozen=True, slots=True)
class EventFound:
    """An event, and whether it became part of its trajectory."""

    id: str
    """Its ``ce_id``."""
    type: str
    """Its type."""
    trajectory_id: str
    """What it is about."""
    sequence: int | None
    """Its number in the trajectory."""
    time_ms: int
    """When it happened, Unix milliseconds."""
    place: tuple[int, int]
    """Partition and offset in ``events``."""
    dead: DeadLetterError | None = None
    """Why it was set aside as a dead letter, and is no part of its trajectory; ``None``: it was not."""


@dataclass(frozen=True, slots=True)
class EventsLeft:
    """What ``events`` still holds of a trajectory."""

    partition: int
    """Partition of ``events``."""
    first: int
    """Offset of its first event."""
    last: int
    """Offset of its last event."""
    begin: int
    """Where the partition begins now."""

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
    """Versions that were trained from the one that the step made."""

    @property
    def version(self) -> int:
        """The version that the step made."""
        return self.step.record.version


@dataclass(slots=True)
class Trace:
    """Everything that the log knows of one trajectory. A link that is not there is a ``MissingRecord``."""

    trajectory_id: str
    """The trajectory."""
    event: EventFound | None = None
    """The event that was asked for, if one was."""
    trajectory: Found[Trajectory] | MissingRecord | None = None
    """Its record; ``None`` where it is not assembled yet."""
    events: EventsLeft | None = None
    """Its events; ``None`` where its record does not say where they are."""
    rewards: list[Found[Reward]] = field(default_factory=list)
    """Its scores: one a spec, and one more for each revision."""
    groups: list[Found[TrainingGroup] | MissingRecord] = field(default_factory=list)
    """Groups that it is in."""
    rejections: list[Found[Rejection]] = field(default_factory=list)
    """Where and why it was turned away."""
    steps: list[TrainedIn] = field(default_factory=list)
    """Steps that trained it: one, if all is well."""
    parent: "Trace | None" = None
    """The orchestrator's trajectory, of which a sub-agent's output was an observation."""

    @property
    def fate(self) -> TrajectoryFate:
        """What became of it."""
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
        """Versions whose weights it is in, ascending: those of its steps, and all that were trained from them."""
        return sorted({version for each in self.steps for version in (each.version, *each.descendants)})

    @property
    def member(self) -> Member | None:
        """Its place in the group that was trained, or is to be; ``None`` where the group's record is not there."""
        for group in self.groups:
            if isinstance(group, Found):
                for member in group.record.members:
                    if member.trajectory_id == self.trajectory_id:
                        return member
        return None


def trained_in(step: Found[Step], trajectory_id: str, graph: VersionGraph) -> TrainedIn | None:
    """How ``step`` trained the trajectory; ``None`` where it did not."""
    for group in step.record.groups:
        if trajectory_id in group.trajectory_ids:
            return TrainedIn(step, group.group_id, graph.descendants(step.record.version))
    return None
