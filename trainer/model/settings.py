"""Which model a run trains, and how it is loaded."""

from dataclasses import dataclass
from pathlib import Path

from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.model.lora import LoraSettings


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What loading the policy and its reference needs to know."""

    base_dir: Path
    """Hugging Face directory of the base model: version 0."""
    device: str
    """Torch device."""
    dtype: str
    """Type that passes compute in and weights are published in: ``float32`` or ``bfloat16``."""
    lora: LoraSettings
    """Adapters to train in place of all weights."""
    layers: LayerSettings
    """What a pass trades for what."""
    seed: int
    """Seed of the adapters' first weights."""
    needs_reference: bool
    """Whether the frozen base model is loaded too, for the KL penalty."""
