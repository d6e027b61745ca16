"""Settings of checkpoints: their folder, and the facts of the run that each one stores."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Settings for writing a checkpoint."""

    run: str
    """Training run."""
    folder: Path
    """Folder of this run's checkpoints: ``checkpoint_dir``."""
    keep: int
    """Newest checkpoints kept on disk."""
    canary_seed: int
    """Seed of the canaries' tokens, the same throughout a run."""
    dtype: str
    """Type that weights are published in."""
    model_name: str
    """Name of the base model's folder, under which its tokenizer is published."""
    config_sha256: str
    """Hash of the settings that decide what is learnt."""
