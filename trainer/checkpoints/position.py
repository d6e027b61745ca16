"""The position: a trainer's progress since its checkpoint, in one small file that is replaced atomically.

    00000412/position.json      sha256 of the next line
                                {"version": 412, "revision": 2, "offsets": …, "pending": […], "announcements": […]}

A checkpoint is written after each step. Decisions between two checkpoints (which groups are trained next, which members
are rejected, which step was skipped) are stored here *before* they are published or acted on, so that a restarted
trainer decides the same. The log records which revision was published: the offsets that are committed with it carry
``412.2``.
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
    disk_errors,
    sync,
)


class Position(Part):
    """A trainer's position in its run."""

    version: NonNegativeInt
    """Version of the policy that is trained."""
    revision: NonNegativeInt = 0
    """Number of changes of the position since the checkpoint; 0 is the checkpoint's own position."""
    offsets: dict[int, NonNegativeInt]
    """Partition of ``training`` → offset of the first record that has not been processed."""
    pending: list[TrainedGroup] = []
    """Admitted, untrained groups whose records precede ``offsets``, with their admitted members."""
    rejected_ages: list[int] = []
    """Age in versions of each trajectory that was rejected since the last step."""
    lost: NonNegativeInt = 0
    """Records of ``training`` that were deleted before they were read, since the last step."""
    rollouts: RolloutCounts | None = None
    """Counts of rollouts that the ``training`` records processed since the last step report; ``None`` if they
    report none, and in positions written before this field existed."""
    attempts: NonNegativeInt = 0
    """Number of processes that began to train the pending groups."""
    skipped: NonNegativeInt = 0
    """Steps skipped since the checkpoint."""
    config_sha256: str = ""
    """Hash of the settings under which attempts and skipped steps were counted."""
    announcements: list[Announcement] = []
    """Records that publish this revision."""

    @property
    def as_published(self) -> PublishedPosition:
        """The position that the log holds once the announcements are published."""
        return PublishedPosition(self.version, self.revision)


def position_of(state: CheckpointState) -> Position:
    """Returns the position at which a checkpoint was written."""
    return Position(version=state.version, offsets=state.offsets)


def write_position(checkpoint: Checkpoint, position: Position) -> None:
    """Replace the position of ``checkpoint`` atomically and durably.

    Raises ``CheckpointNotWritten`` if it cannot be written; the old position is kept then.
    """
    content = position.model_dump_json()
    partial = checkpoint.path / POSITION_PARTIAL
    with disk_errors(checkpoint.path.parent):
        with partial.open("w") as file:
            file.write(f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(checkpoint.path / POSITION_FILE)
        sync(checkpoint.path)


def read_position(checkpoint: Checkpoint, published: PublishedPosition | None, config_sha256: str) -> Position:
    """Returns the position from which a trainer resumes: the file of ``checkpoint``, else the checkpoint's own
    position.

    ``published`` is the position in the log, if there is one. After a change of settings attempts and skipped steps are
    counted from 0. Raises :class:`CheckpointError` if the log is ahead of the disk.
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
            f"{file} {problem}: the log holds revision {published.revision} of version {published.version}; restore "
            "it, or choose another run"
        )
    if position.config_sha256 != config_sha256:
        return position.model_copy(update={"attempts": 0, "skipped": 0, "config_sha256": config_sha256})
    return position
