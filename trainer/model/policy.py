"""The models of a run as its settings want them: the policy that is trained, and the base model that it stays near."""

from pathlib import Path

from transformers import PreTrainedModel

from headrace.trainer.config import TrainerConfig
from headrace.trainer.model.layers import prepare_layers
from headrace.trainer.model.load import load_model
from headrace.trainer.model.lora import add_adapters


def load_policy(config: TrainerConfig, published: Path | None = None) -> PreTrainedModel:
    """The policy to train: the base model, or the one that a checkpoint holds as it was ``published``.

    What is trained is float32 whatever ``dtype`` says; with adapters, the frozen rest is of that type. Weights that the
    published ones do not hold (those rounded away, adapters) come back with the optimiser's state: ``Learner``.
    """
    if not config.lora.rank:
        model = load_model(published or config.model_dir, device=config.device)
    else:
        model = load_model(config.model_dir, device=config.device, dtype=config.dtype)
        add_adapters(model, config.lora, seed=config.seed)
    prepare_layers(model, config.layers)
    return model


def load_reference(config: TrainerConfig) -> PreTrainedModel | None:
    """The frozen base model, where the KL penalty needs it."""
    if not config.kl.needs_base:
        return None
    return load_model(config.model_dir, device=config.device, dtype=config.dtype)
