"""W&B: one run there for each of ours, gone on with after a restart."""

from collections.abc import Mapping
from typing import Any

import wandb

from headrace.trainer.progress.settings import WriterSettings
from headrace.trainer.progress.writers import grouped


class WandbWriter:
    """Logs metrics by step."""

    def __init__(self, settings: WriterSettings, run: str, configuration: Mapping[str, Any]) -> None:
        """Opens the run ``run``; ``configuration`` is shown beside it."""
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
            # The process is the trainer's: its console, its signals and its machine's figures stay its own.
            settings=wandb.Settings(console="off", silent=True, disable_git=True, x_disable_stats=True),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point a metric. W&B ignores a step that it has."""
        self._run.log(grouped(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
