"""Settings of the writers: plain values."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class WandbMode(StrEnum):
    """Where W&B keeps a run."""

    OFFLINE = "offline"
    """In a folder, for ``wandb sync``."""
    ONLINE = "online"
    """At its server, as WANDB_API_KEY and WANDB_BASE_URL say."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Where else a step's metrics go; the ``steps`` topic has them in any case."""

    tensorboard_dir: Path | None = None
    """Folder of TensorBoard's event files, one folder a run; unset: none. Needs the extra ``tensorboard``."""
    wandb_project: str | None = None
    """Project at W&B; unset: none. Needs the extra ``wandb``."""
    wandb_mode: WandbMode = WandbMode.OFFLINE
    """Where the run is kept."""
    wandb_dir: Path = Path(".headrace")
    """Folder in which W&B makes its own."""
