"""Resuming: loads a learner with the state that a checkpoint holds."""

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
    """Returns a learner that resumes from ``checkpoint``, which is verified already, or begins with the base model.

    Every rank calls it. Raises ``ValueError`` if the checkpoint is of another model or optimiser.
    """
    # No device can hold all of a sharded model: it is loaded into the host's memory and moved to the device in shards.
    loaded = settings.model if ranks.count == 1 else replace(settings.model, device="cpu")
    model = load_policy(loaded, checkpoint / MODEL_FOLDER if checkpoint else None)
    learner = make(model, settings, load_reference(loaded), ranks)
    if checkpoint:
        learner.read_optimizer(checkpoint / OPTIMIZER_FOLDER)
    return learner
