"""Saving: writes a learner's current policy as a checkpoint, together with the records that publish it."""

from collections.abc import Sequence

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.weights import Manifest
from headrace.trainer.announcements.announcement import Announcement, announcement
from headrace.trainer.checkpoints.checkpoint import (
    MODEL_FOLDER,
    OPTIMIZER_FOLDER,
    Checkpoint,
    CheckpointState,
    CheckpointWriter,
    disk_errors,
)
from headrace.trainer.checkpoints.settings import CheckpointSettings
from headrace.trainer.learning.learner import Learner
from headrace.trainer.model.published import published_names
from headrace.trainer.step_effects import Effect, EffectCallback, ignore_effect
from headrace.trainer.weights.canary import with_parent
from headrace.trainer.weights.publish import make_manifest, make_pointer, manifest_bytes, tokenizer_in
from headrace.trainer.weights.published import MANIFEST_FILE, WEIGHTS_FILE
from headrace.trainer.weights.signing import SigningKey


def save_checkpoint(
    learner: Learner,
    settings: CheckpointSettings,
    store: ObjectStore,
    key: SigningKey,
    *,
    version: int,
    offsets: dict[int, int],
    alarms: dict[str, int],
    announcements: Sequence[Announcement],
    grad_norms: Sequence[float] = (),
    parent: Manifest | None = None,
    on_effect: EffectCallback = ignore_effect,
) -> Checkpoint:
    """Make policy ``version`` durable; its ``Weights`` record, signed with ``key``, is published after
    ``announcements``. ``parent`` is the manifest of the version that it was trained from.

    Raises ``TrainingDiverged`` if the policy holds values that are not finite, ``CheckpointNotWritten`` if it cannot be
    written. In both cases earlier checkpoints are unchanged.
    """
    learner.check_weights()
    # The same tokens throughout a run: this version's log-probabilities of them are compared with the next one's.
    canaries = with_parent(learner.canaries(seed=settings.canary_seed), parent.canaries if parent else ())
    writer = CheckpointWriter(settings.folder, version, on_effect)
    with disk_errors(settings.folder):
        learner.write_model(writer.partial / MODEL_FOLDER)
        on_effect(Effect.MODEL_WRITTEN)
        learner.write_optimizer(writer.partial / OPTIMIZER_FOLDER)
        on_effect(Effect.OPTIMIZER_WRITTEN)
        manifest = make_manifest(
            writer.partial / MODEL_FOLDER / WEIGHTS_FILE,
            run=settings.run,
            version=version,
            parent=version - 1 if version else None,
            tensors=len(published_names(learner.model)),
            canaries=canaries,
            dtype=settings.dtype,
            exact=learner.exact_canaries,
            tokenizer=tokenizer_in(writer.partial / MODEL_FOLDER, settings.model_name),
        )
        (writer.partial / MANIFEST_FILE).write_bytes(manifest_bytes(manifest))
    pointer = announcement(make_pointer(store, manifest, step=version, key=key), run=settings.run)
    state = CheckpointState(
        run=settings.run,
        version=version,
        offsets=offsets,
        alarms=alarms,
        announcements=[*announcements, pointer],
        grad_norms=list(grad_norms),
        config_sha256=settings.config_sha256,
    )
    return writer.commit(state, keep=settings.keep)
