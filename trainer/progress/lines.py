"""Progress in a log: one line per step, and reminders while the trainer waits for groups."""

import logging
from collections.abc import Mapping

from headrace.trainer.learning.metric_registry import metric_named
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.progress import Progress

_log = logging.getLogger("headrace.trainer")

REMIND_S = 30.0
"""Interval in seconds of the reminders while the trainer waits for groups."""

_SHOWN = (
    ("reward_mean", "reward"), ("loss", "loss"), ("mismatch_kl", "mismatch KL"),
    ("effective_sample_size", "ESS"), ("staleness_p95", "staleness p95"), ("tokens_per_second", "tokens/s"),
)  # fmt: skip


def step_line(step: int, metrics: Mapping[str, float], progress: Progress) -> str:
    """Returns a line with a step's metrics, its seconds by phase, and the estimated time of the next weights."""
    figures = [f"{label} {compact(metrics[name])}" for name, label in _SHOWN if name in metrics]
    spent = [f"{metrics[f'seconds_{what}']:.2f} s {what}" for what in ("wait", "train") if f"seconds_{what}" in metrics]
    usual = sum(progress.pace.usual_s.values())
    return f"step {step}: {', '.join(figures)}; {' + '.join(spent)}; next weights in about {usual:.1f} s"


def waiting_line(progress: Progress) -> str:
    """Returns a line with the groups that are missing."""
    return (
        f"waiting for groups: {progress.groups} of {progress.wanted} after {progress.since_s:.0f} s, "
        f"policy version {progress.version}"
    )


def warnings(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns the metrics beyond their thresholds, by name, as text: ``effective_sample_size 0.21 (below 0.3)``."""
    found = ((name, value, metric_named(name)) for name, value in metrics.items())
    return {
        name: f"{name} {compact(value)} ({metric.threshold})"
        for name, value, metric in found
        if metric and metric.warns(value)
    }


def compact(value: float) -> str:
    """Returns a number in few characters: ``0.643``, ``-0.0123``, ``5.32k``, ``1.2e-06``."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


class Lines:
    """A watcher that logs progress."""

    def __init__(self) -> None:
        """Logs as ``headrace.trainer``."""
        self._progress = Progress()
        self._reminded = 0
        self._beyond: set[str] = set()

    def changed(self, progress: Progress) -> None:
        """Log a line every :data:`REMIND_S` seconds of waiting."""
        self._progress = progress
        reminders = int(progress.since_s // REMIND_S) if progress.phase == Phase.WAITING else 0
        if reminders > self._reminded:
            _log.info("%s", waiting_line(progress))
        self._reminded = reminders

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the step's line, and a warning for metrics that are newly beyond their thresholds."""
        _log.info("%s", step_line(step, metrics, self._progress))
        beyond = warnings(metrics)
        if news := [text for name, text in beyond.items() if name not in self._beyond]:
            _log.warning("step %d: %s", step, "; ".join(news))
        self._beyond = {*beyond}
