"""Resuming: a learner that goes on from a checkpoint as if it had never stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel

from headrace.trainer.checkpoints.checkpoint import MODEL_FOLDER, OPTIMIZER_FOLDER
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.settings import LearnerSettings
from headrace.trainer.model.policy import load_policy, load_reference
from headrace.trainer.parallel.ranks import ALONE, Ranks

MakeLearner = Callable[[PreTrainedModel, LearnerSettings, PreTrainedModel | None, Ranks], Learner]


def resume_learner(
    settings: LearnerSettings, checkpoint: Path | None, ranks: Ranks = ALONE, *, make: MakeLearner = Learner
) -> Learner:
    """A learner that goes on from the checkpoint at ``checkpoint``, verified, or begins with the base model.

    Of several ranks each calls it. Raises ``ValueError`` where the checkpoint is of another model or optimiser.
    """
    # Sharded, no device holds the whole model: it is loaded into the host's memory and goes to the device in shards.
    loaded = settings.model if ranks.count == 1 else replace(settings.model, device="cpu")
    model = load_policy(loaded, checkpoint / MODEL_FOLDER if checkpoint else None)
    learner = make(model, settings, load_reference(loaded), ranks)
    if checkpoint:
        learner.read_optimizer(checkpoint / OPTIMIZER_FOLDER)
    return learner
