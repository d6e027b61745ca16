"""Saving: a learner's present policy as a checkpoint, together with all that must be said of it."""

from collections.abc import Sequence

from headrace.schemas.records.weights import Manifest
from headrace.trainer.announce import Announcement, announcement
from headrace.trainer.checkpoints.checkpoint import (
    MODEL_FOLDER,
    OPTIMIZER_FOLDER,
    Checkpoint,
    CheckpointState,
    CheckpointWriter,
    disk_trouble,
)
from headrace.trainer.config import TrainerConfig
from headrace.trainer.effects import Effect, Told, tell_nobody
from headrace.trainer.learning.learner import Learner
from headrace.trainer.model.published import published_names
from headrace.trainer.weights.canary import with_parent
from headrace.trainer.weights.publish import MANIFEST_FILE, WEIGHTS_FILE, make_manifest, make_pointer, manifest_bytes
from headrace.trainer.weights.signing import SigningKey
from headrace.trainer.weights.store import ObjectStore


def save_checkpoint(
    learner: Learner,
    config: TrainerConfig,
    store: ObjectStore,
    key: SigningKey,
    *,
    version: int,
    offsets: dict[int, int],
    alarms: dict[str, int],
    said: Sequence[Announcement],
    grad_norms: Sequence[float] = (),
    parent: Manifest | None = None,
    told: Told = tell_nobody,
) -> Checkpoint:
    """Make policy ``version`` durable; its ``Weights`` record, signed with ``key``, is said after ``said``.
    ``parent`` is the manifest of the version that it was trained from.

    Raises ``TrainingDiverged`` where the policy is not made of numbers, ``CheckpointNotWritten`` where the disk does
    not take it. Either way the checkpoints that stand are as they were.
    """
    learner.check_weights()
    # The same tokens throughout a run: what this version gives them is what the next one is compared with.
    canaries = with_parent(learner.canaries(seed=config.seed), parent.canaries if parent else ())
    writer = CheckpointWriter(config.checkpoint_dir, version, told)
    with disk_trouble(config.checkpoint_dir):
        learner.write_model(writer.partial / MODEL_FOLDER)
        told(Effect.MODEL_WRITTEN)
        learner.write_optimizer(writer.partial / OPTIMIZER_FOLDER)
        told(Effect.OPTIMIZER_WRITTEN)
        manifest = make_manifest(
            writer.partial / MODEL_FOLDER / WEIGHTS_FILE,
            run=config.run,
            version=version,
            parent=version - 1 if version else None,
            tensors=len(published_names(learner.model)),
            canaries=canaries,
            dtype=config.dtype,
            exact=learner.exact_canaries,
        )
        (writer.partial / MANIFEST_FILE).write_bytes(manifest_bytes(manifest))
    pointer = announcement(make_pointer(store, manifest, step=version, key=key), run=config.run)
    state = CheckpointState(
        run=config.run,
        version=version,
        offsets=offsets,
        alarms=alarms,
        announcements=[*said, pointer],
        grad_norms=list(grad_norms),
        config_sha256=config.sha256(),
    )
    return writer.commit(state, keep=config.keep_checkpoints)
