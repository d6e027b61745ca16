"""The models of a run as its settings want them: the policy that is trained, and the base model that it stays near."""

from pathlib import Path

from transformers import PreTrainedModel

from headrace.trainer.model.layers import prepare_layers
from headrace.trainer.model.load import load_model
from headrace.trainer.model.lora import add_adapters
from headrace.trainer.model.settings import ModelSettings


def load_policy(settings: ModelSettings, published: Path | None = None) -> PreTrainedModel:
    """The policy to train: the base model, or the one that a checkpoint holds as it was ``published``.

    What is trained is float32 whatever ``dtype`` says; with adapters, the frozen rest is of that type. Weights that the
    published ones do not hold (those rounded away, adapters) come back with the optimiser's state: ``Learner``.
    """
    if not settings.lora.rank:
        model = load_model(published or settings.base_dir, device=settings.device)
    else:
        model = load_model(settings.base_dir, device=settings.device, dtype=settings.dtype)
        add_adapters(model, settings.lora, seed=settings.seed)
    prepare_layers(model, settings.layers)
    return model


def load_reference(settings: ModelSettings) -> PreTrainedModel | None:
    """The frozen base model, where the KL penalty needs it."""
    if not settings.needs_reference:
        return None
    return load_model(settings.base_dir, device=settings.device, dtype=settings.dtype)
