"""Writers: a step's metrics to TensorBoard and W&B, each on a thread of its own, none of which can hold training up."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from headrace.trainer.learning.metric_registry import metric_named
from headrace.trainer.progress.progress import Progress
from headrace.trainer.progress.settings import WriterSettings

_log = logging.getLogger(__name__)

_WAITING_STEPS = 1000
"""Steps that a writer may be behind; what is beyond is dropped and counted."""
_CLOSING_S = 20.0
"""Seconds that a writer has at the end for what it has not written yet."""


class Writer(Protocol):
    """One destination."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step; may block, may raise."""

    def close(self) -> None:
        """Finish what was begun."""


def grouped(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics under ``<subject>/<name>``, by which both tools make sections: ``off-policy/kl_k3``."""
    subjects = {name: metric_named(name) for name in metrics}
    return {
        f"{metric.subject.lower().replace(' ', '-') if metric else 'other'}/{name}": metrics[name]
        for name, metric in subjects.items()
    }


class Aside:
    """A watcher that lets a writer work on a thread of its own: it may be slow or fail, and training goes on."""

    def __init__(self, name: str, make: Callable[[], Writer]) -> None:
        """``make`` opens the writer, on the thread; ``name`` is what failures are reported under."""
        self._name = name
        self._make = make
        self._steps: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(_WAITING_STEPS)
        self._thread = threading.Thread(target=self._work, name=f"{name}-writer", daemon=True)
        self._thread.start()
        self.dropped = 0
        """Steps that were not written."""

    def changed(self, progress: Progress) -> None:
        """Nothing: writers keep steps alone."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand a step over."""
        try:
            self._steps.put_nowait((step, dict(metrics)))
        except queue.Full:
            self._drop(f"{_WAITING_STEPS} steps wait to be written")

    def close(self) -> None:
        """Write what waits, for at most :data:`_CLOSING_S` seconds."""
        with suppress(queue.Full):
            self._steps.put(None, timeout=_CLOSING_S)
        self._thread.join(_CLOSING_S)
        if self._thread.is_alive():
            _log.warning("%s did not finish within %.0f s: what it had not written is lost", self._name, _CLOSING_S)

    def _work(self) -> None:
        writer: Writer | None = None
        while (item := self._steps.get()) is not None:
            try:
                writer = writer or self._make()
                writer.write(*item)
            except Exception as error:  # noqa: BLE001  whatever it is, training goes on
                self._drop(f"{type(error).__name__}: {error}")
        try:
            if writer is not None:
                writer.close()
        except Exception as error:  # noqa: BLE001  as above
            _log.warning("%s could not be closed: %s: %s", self._name, type(error).__name__, error)

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # the first, and ever fewer of a long row
            _log.warning("%s: %d steps not written so far: %s", self._name, self.dropped, why)


@contextmanager
def open_writers(settings: WriterSettings, run: str, configuration: Mapping[str, Any]) -> Iterator[list[Aside]]:
    """The writers that ``settings`` ask for, closed at the end. Raises ``ModuleNotFoundError`` for an extra that is
    not installed; everything else that goes wrong with them is reported and harms nobody."""
    writers: list[Aside] = []
    if settings.tensorboard_dir is not None:
        from headrace.trainer.progress.tensorboard_writer import TensorboardWriter

        folder = settings.tensorboard_dir.expanduser() / run
        writers.append(Aside("tensorboard", lambda: TensorboardWriter(folder)))
    if settings.wandb_project is not None:
        from headrace.trainer.progress.wandb_writer import WandbWriter

        writers.append(Aside("wandb", lambda: WandbWriter(settings, run, configuration)))
    try:
        yield writers
    finally:
        for writer in writers:
            writer.close()
