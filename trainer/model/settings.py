"""Settings of the model that a run trains."""

from dataclasses import dataclass
from pathlib import Path

from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings for loading the policy and its reference."""

    base_dir: Path
    """Hugging Face directory of the base model: version 0."""
    device: str
    """Torch device."""
    dtype: str
    """Type in which passes compute and weights are published: ``float32`` or ``bfloat16``."""
    lora: LoraSettings
    """Adapters to train instead of all weights."""
    layers: LayerSettings
    """How layers are computed."""
    seed: int
    """Seed of the adapters' initial weights."""
    needs_reference: bool
    """Whether the frozen base model is loaded too, for the KL penalty."""
