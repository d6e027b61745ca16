"""TensorBoard: one event file per process, in the run's folder."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from headrace.trainer.progress.sections import grouped


class TensorboardWriter:
    """Writes scalars by step; a resumed run adds a file to its folder."""

    def __init__(self, folder: Path) -> None:
        """Writes into ``folder``."""
        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric."""
        for name, value in grouped(metrics).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
