"""The effects of a step, in their order: a trainer may die after any of them and goes on as if it had not.

Each is told to who asks (``reached``) once it has happened: tests kill the process there, progress is shown from there.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Effect(StrEnum):
    """What has just happened."""

    POSITION_WRITTEN = "position_written"
    """The position is on disk: which groups a step will be trained on, what was rejected, what was skipped."""
    POSITION_PUBLISHED = "position_published"
    """The position's announcements are published."""
    TRAINED = "trained"
    """The learner has taken the step, in memory."""
    MODEL_WRITTEN = "model_written"
    """The policy's files are in the unfinished checkpoint."""
    OPTIMIZER_WRITTEN = "optimizer_written"
    """The optimiser's files are."""
    STATE_WRITTEN = "state_written"
    """So are offsets, announcements and the hashes of everything."""
    CHECKPOINTED = "checkpointed"
    """The checkpoint has appeared: from here on the step counts."""
    WEIGHTS_UPLOADED = "weights_uploaded"
    """The weights are in the object store."""
    UPLOADED = "uploaded"
    """So is their manifest."""
    BEGUN = "begun"
    """The transaction of the announcement is open, nothing is in it."""
    SENT = "sent"
    """Records and offsets are in the transaction."""
    ANNOUNCED = "announced"
    """The transaction is committed."""


StepEffectCallback: TypeAlias = Callable[[Effect, int], None]
"""Called after each effect with the version that it is part of making; after some by the thread that learns."""

EffectCallback: TypeAlias = Callable[[Effect], None]
"""The same where the version is understood."""


def ignore_effect(*_: object) -> None:
    """The callback of a caller that does not need to know."""
