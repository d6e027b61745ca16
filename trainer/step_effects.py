"""The effects of a step, in order: a trainer that dies after any of them resumes without loss or repetition.

A callback is called after each effect: tests kill the process there, and progress is shown from there.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Effect(StrEnum):
    """An effect that has just happened."""

    POSITION_WRITTEN = "position_written"
    """The position is on disk: which groups a step will be trained on, what was rejected, what was skipped."""
    POSITION_PUBLISHED = "position_published"
    """The position's announcements are published."""
    TRAINED = "trained"
    """The learner has taken the step, in memory."""
    MODEL_WRITTEN = "model_written"
    """The policy's files are in the unfinished checkpoint."""
    OPTIMIZER_WRITTEN = "optimizer_written"
    """The optimiser's files are in it, too."""
    STATE_WRITTEN = "state_written"
    """Offsets, announcements and all hashes are in it, too."""
    CHECKPOINTED = "checkpointed"
    """The checkpoint is visible: from here on the step counts."""
    WEIGHTS_UPLOADED = "weights_uploaded"
    """The weights are in the object store."""
    UPLOADED = "uploaded"
    """Their manifest is in the object store."""
    BEGUN = "begun"
    """The transaction of the announcements is open and empty."""
    SENT = "sent"
    """Records and offsets are in the transaction."""
    ANNOUNCED = "announced"
    """The transaction is committed."""


StepEffectCallback: TypeAlias = Callable[[Effect, int], None]
"""Called after each effect with the version being made; after some of them by the learner's thread."""

EffectCallback: TypeAlias = Callable[[Effect], None]
"""Called after each effect of a version that the caller knows."""


def ignore_effect(*_: object) -> None:
    """The callback of a caller that needs no notification."""
