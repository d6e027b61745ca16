"""W&B: one W&B run per training run, continued after a restart."""

from collections.abc import Mapping
from typing import Any

import wandb

from headrace.trainer.progress.sections import grouped
from headrace.trainer.progress.settings import WriterSettings


class WandbWriter:
    """Logs metrics by step."""

    def __init__(self, settings: WriterSettings, run: str, configuration: Mapping[str, Any]) -> None:
        """Open the W&B run ``run``; ``configuration`` is stored with it."""
        folder = settings.wandb_dir.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=settings.wandb_project,
            id=run,
            name=run,
            resume="allow",
            mode=settings.wandb_mode.value,
            dir=folder,
            config=dict(configuration),
            # Leave console and signals to the trainer, and report no machine statistics.
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one point per metric. W&B ignores a step that it already has."""
        self._run.log(grouped(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
