"""Saving: a learner's present policy as a checkpoint, together with all that must be said of it."""

from collections.abc import Sequence

from headrace.schemas.records import Weights
from headrace.trainer.announce import Announcement, announcement
from headrace.trainer.checkpoints.checkpoint import Checkpoint, CheckpointState, CheckpointWriter
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.weights.publish import make_manifest, make_pointer
from headrace.trainer.weights.store import ObjectStore


def save_checkpoint(
    learner: Learner,
    config: TrainerConfig,
    store: ObjectStore,
    *,
    version: int,
    offsets: dict[int, int],
    said: Sequence[Announcement],
) -> Checkpoint:
    """Make policy ``version`` durable; its ``Weights`` record is said after ``said``.

    Raises ``TrainingDiverged`` where the policy's log-probabilities are not numbers.
    """
    writer = CheckpointWriter(config.checkpoint_dir, version)
    weights = writer.write_model(learner.model, tokenizer_from=config.model_dir)
    manifest = make_manifest(
        weights,
        run=config.run,
        version=version,
        parent=version - 1 if version else None,
        tensors=len(learner.model.state_dict()),
        canaries=learner.canaries(seed=version),
    )
    pointer: Weights = make_pointer(store, manifest, step=version)
    state = CheckpointState(
        run=config.run,
        version=version,
        offsets=offsets,
        announcements=[*said, announcement(pointer, run=config.run)],
    )
    return writer.commit(state, manifest, learner.optimizer_tensors(), keep=config.keep_checkpoints)
