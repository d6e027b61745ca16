"""Loads the models of a run: the policy that is trained, and the reference of the KL penalty."""

from pathlib import Path

from transformers import PreTrainedModel

from headrace.trainer.model.layers import prepare_layers
from headrace.trainer.model.load import load_model
from headrace.trainer.model.lora import add_adapters
from headrace.trainer.model.settings import ModelSettings


def load_policy(settings: ModelSettings, published: Path | None = None) -> PreTrainedModel:
    """Load the policy to train: the base model, or a checkpoint's model, as it was ``published``.

    Trained weights are float32 for any ``dtype``; with adapters, the frozen weights are of that type. Weights that the
    published model lacks (the unrounded ones, adapters) are restored with the optimiser's state: ``Learner``.
    """
    if not settings.lora.rank:
        model = load_model(published or settings.base_dir, device=settings.device)
    else:
        model = load_model(settings.base_dir, device=settings.device, dtype=settings.dtype)
        add_adapters(model, settings.lora, seed=settings.seed)
    prepare_layers(model, settings.layers)
    return model


def load_reference(settings: ModelSettings) -> PreTrainedModel | None:
    """Load the frozen base model, if the KL penalty needs it."""
    if not settings.needs_reference:
        return None
    return load_model(settings.base_dir, device=settings.device, dtype=settings.dtype)
