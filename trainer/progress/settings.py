"""Settings of the metric writers."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class WandbMode(StrEnum):
    """Where W&B stores a run."""

    OFFLINE = "offline"
    """In a local folder, for ``wandb sync``."""
    ONLINE = "online"
    """On its server, set by WANDB_API_KEY and WANDB_BASE_URL."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Further destinations of a step's metrics, in addition to the topic ``steps``."""

    tensorboard_dir: Path | None = None
    """Folder of TensorBoard's event files, one subfolder per run; unset: none. Needs the extra ``tensorboard``."""
    wandb_project: str | None = None
    """W&B project; unset: none. Needs the extra ``wandb``."""
    wandb_mode: WandbMode = WandbMode.OFFLINE
    """Where W&B stores the run: ``offline`` or ``online``."""
    wandb_dir: Path = Path(".headrace")
    """Folder in which W&B creates its own folder."""
