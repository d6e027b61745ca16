"""The position: where a trainer got to since its checkpoint, in one small file that is replaced whole.

    00000412/position.json      sha256 of the next line
                                {"version": 412, "revision": 2, "offsets": …, "pending": […], "announcements": […]}

A checkpoint appears once a step is taken. What is decided in between (these groups are trained next, those members are
rejected, that step was skipped) stands here *before* it is published or begun, so that a restart decides the same.
The log knows which revision was published: the offsets that are committed with it carry ``412.2``.
"""

import hashlib
import os

from pydantic import NonNegativeInt

from headrace.schemas.model import Part
from headrace.schemas.records.step import TrainedGroup
from headrace.schemas.rollouts import RolloutCounts
from headrace.trainer.announcements.announcement import Announcement, PublishedPosition
from headrace.trainer.checkpoints.checkpoint import (
    POSITION_FILE,
    POSITION_PARTIAL,
    Checkpoint,
    CheckpointError,
    CheckpointState,
    disk_trouble,
    sync,
)


class Position(Part):
    """Where the trainer stands."""

    version: NonNegativeInt
    """The policy that is trained."""
    revision: NonNegativeInt = 0
    """How often the position moved since the checkpoint; 0 is the checkpoint's own."""
    offsets: dict[int, NonNegativeInt]
    """Partition of ``training`` → offset of the first record that was not looked at."""
    pending: list[TrainedGroup] = []
    """Groups before the offsets that were admitted and have no fate yet, with the members that were."""
    rejected_ages: list[int] = []
    """Versions of each trajectory that was rejected since the last step."""
    lost: NonNegativeInt = 0
    """Records of ``training`` that were gone before they were read, since the last step."""
    rollouts: RolloutCounts | None = None
    """What the records of ``training`` that were looked at since the last step tell of all rollouts; ``None`` where
    they tell nothing, and in positions from before this was kept."""
    attempts: NonNegativeInt = 0
    """Processes that began to train the pending groups."""
    skipped: NonNegativeInt = 0
    """Steps skipped since the checkpoint."""
    config_sha256: str = ""
    """Settings under which attempts and skipped steps were counted."""
    announcements: list[Announcement] = []
    """What is published of this revision."""

    @property
    def as_published(self) -> PublishedPosition:
        """What the log knows once the announcements are published."""
        return PublishedPosition(self.version, self.revision)


def position_of(state: CheckpointState) -> Position:
    """The position in which a checkpoint was made."""
    return Position(version=state.version, offsets=state.offsets)


def write_position(checkpoint: Checkpoint, position: Position) -> None:
    """Replace the position beside ``checkpoint``: afterwards the disk has the new one, before it the old one.

    Raises ``CheckpointNotWritten`` where the disk does not take it; the old one stands then.
    """
    content = position.model_dump_json()
    partial = checkpoint.path / POSITION_PARTIAL
    with disk_trouble(checkpoint.path.parent):
        with partial.open("w") as file:
            file.write(f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(checkpoint.path / POSITION_FILE)
        sync(checkpoint.path)


def read_position(checkpoint: Checkpoint, published: PublishedPosition | None, config_sha256: str) -> Position:
    """The position that a trainer goes on from: that beside ``checkpoint``, else the checkpoint's own.

    ``published`` is what the log knows of this version, if anything. Under other settings attempts and skipped steps
    start anew. Raises :class:`CheckpointError` where the log knows more than the disk.
    """
    file = checkpoint.path / POSITION_FILE
    position, problem = position_of(checkpoint.state), "is missing"
    if file.exists():
        sha256, _, content = file.read_bytes().partition(b"\n")
        if hashlib.sha256(content.rstrip(b"\n")).hexdigest().encode() == sha256:
            position, problem = Position.model_validate_json(content), "is older"
        else:
            problem = "is damaged"
    if published is not None and published.version == position.version and published.revision > position.revision:
        raise CheckpointError(
            f"{file} {problem}: the log knows revision {published.revision} of version {published.version}; restore "
            "it, or choose another run"
        )
    if position.config_sha256 != config_sha256:
        return position.model_copy(update={"attempts": 0, "skipped": 0, "config_sha256": config_sha256})
    return position
