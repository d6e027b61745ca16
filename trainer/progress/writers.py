"""Writers: send a step's metrics to TensorBoard and W&B, each on a thread of its own, without blocking training."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from headrace.trainer.progress.progress import Progress
from headrace.trainer.progress.settings import WriterSettings

_log = logging.getLogger(__name__)

_WAITING_STEPS = 1000
"""Steps that a writer may be behind; further ones are dropped and counted."""
_CLOSING_S = 20.0
"""Seconds that a writer has at the end to write its queued steps."""


class Writer(Protocol):
    """One destination of metrics."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step; may block and may raise."""

    def close(self) -> None:
        """Flush and close the destination."""


class BackgroundWriter:
    """A watcher that runs a writer on a thread of its own; a slow or failing writer does not affect training."""

    def __init__(self, name: str, make: Callable[[], Writer]) -> None:
        """``make`` opens the writer, on the thread; failures are reported under ``name``."""
        self._name = name
        self._make = make
        self._steps: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_WAITING_STEPS)
        self._thread = threading.Thread(target=self._work, name=f"{name}-writer", daemon=True)
        self._thread.start()
        self.dropped = 0
        """Number of steps that were not written."""

    def changed(self, progress: Progress) -> None:
        """Do nothing: writers receive steps only."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue a step."""
        try:
            self._steps.put_nowait((step, dict(metrics)))
        except queue.Full:
            self._drop(f"{_WAITING_STEPS} steps wait to be written")

    def close(self) -> None:
        """Write the queued steps, for at most :data:`_CLOSING_S` seconds."""
        with suppress(queue.Full):
            self._steps.put(None, timeout=_CLOSING_S)
        self._thread.join(_CLOSING_S)
        if self._thread.is_alive():
            _log.warning(
                "%s did not finish within %.0f s: the steps that it had not written are lost", self._name, _CLOSING_S
            )

    def _work(self) -> None:
        writer: Writer | None = None
        while (item := self._steps.get()) is not None:
            try:
                writer = writer or self._make()
                writer.write(*item)
            except Exception as error:  # noqa: BLE001  no error of a writer may stop training
                self._drop(f"{type(error).__name__}: {error}")
        try:
            if writer is not None:
                writer.close()
        except Exception as error:  # noqa: BLE001  as above
            _log.warning("%s could not be closed: %s: %s", self._name, type(error).__name__, error)

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # log at powers of two
            _log.warning("%s: %d steps not written so far: %s", self._name, self.dropped, why)


@contextmanager
def open_writers(
    settings: WriterSettings, run: str, configuration: Mapping[str, Any]
) -> Iterator[list[BackgroundWriter]]:
    """Open the writers of ``settings``, and close them at the end. Raises ``ModuleNotFoundError`` for an extra that is
    not installed; all other errors of writers are only logged."""
    writers: list[BackgroundWriter] = []
    if settings.tensorboard_dir is not None:
        from headrace.trainer.progress.tensorboard_writer import TensorboardWriter

        folder = settings.tensorboard_dir.expanduser() / run
        writers.append(BackgroundWriter("tensorboard", lambda: TensorboardWriter(folder)))
    if settings.wandb_project is not None:
        from headrace.trainer.progress.wandb_writer import WandbWriter

        writers.append(BackgroundWriter("wandb", lambda: WandbWriter(settings, run, configuration)))
    try:
        yield writers
    finally:
        for writer in writers:
            writer.close()
