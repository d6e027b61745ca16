"""A run as a picture: faults over time; below them throughput, lag and, for a whole run, the ledger."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.faults import BROKER_KINDS, Kind
from tests.chaos.outcome import Outcome
from tests.chaos.watch import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SENT, _FOLDED, _LAG = "#4477aa", "#228833", "#ee6677"
_COLOURS = {
    Kind.KILL: "#cc3311",
    Kind.TERM: "#ee7733",
    Kind.FREEZE: "#0077bb",
    Kind.CUT: "#333333",
    Kind.STALL: "#009988",
    Kind.REFUSE: "#999933",
    Kind.REBALANCE: "#aa4499",
    Kind.BROKER_KILL: "#cc3311",
    Kind.BROKER_TERM: "#ee7733",
}
_PLACES = {
    "trained": "#228833",
    "rejected": "#999999",
    "untrained": "#ccbb44",
    "ungrouped": "#ee6677",
    "unscored": "#aa3377",
    "open": "#4477aa",
}
_SHORTEST_S = 0.6
"""Drawn length of an instantaneous fault."""
_BLIND_S = 3.0
"""Between samples further apart the broker was unavailable, and nothing is drawn."""


def draw(outcome: Outcome, path: Path) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    panels: list[tuple[Callable[[Outcome, Axes], None], float]] = [(_faults, 2), (_flow, 2), (_lag, 1.4)]
    if outcome.audit:
        panels.append((_ledger, 2))
    heights = [height for _, height in panels]
    figure = Figure(figsize=(13, 1.4 * sum(heights)), dpi=120, layout="constrained")
    drawn = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
    for (panel, _), axes in zip(panels, drawn, strict=True):
        panel(outcome, axes)
        for each in outcome.faults:
            if each.kind in BROKER_KINDS:
                axes.axvspan(each.began_s, each.ended_s, color="#bbbbbb", alpha=0.35, linewidth=0)
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    drawn[-1].set_xlabel("seconds")
    drawn[-1].set_xlim(0, outcome.seconds)
    seen = outcome.verdict.trajectories
    figure.suptitle(
        f"{outcome.verdict.events:,} events, {len(outcome.faults)} faults, seed {outcome.plan.seed}: of "
        f"{seen.expected:,} trajectories {seen.lost} lost, {seen.doubled} doubled, {seen.changed} changed"
    )
    figure.savefig(path)


def _faults(outcome: Outcome, axes: "Axes") -> None:
    targets = sorted({each.target for each in outcome.faults}, reverse=True)
    for each in outcome.faults:
        row = targets.index(each.target)
        width = max(_SHORTEST_S, each.ended_s - each.began_s)
        axes.barh(row, width, left=each.began_s, height=0.62, color=_COLOURS[each.kind], alpha=0.85)
        if each.fenced:
            axes.plot(each.ended_s, row, "k*", markersize=9)
    axes.set_yticks(range(len(targets)), targets)
    for kind in sorted({each.kind for each in outcome.faults} - BROKER_KINDS):
        axes.barh(0, 0, color=_COLOURS[kind], label=kind.value)
    axes.plot([], [], "k*", markersize=9, label="a zombie is refused")
    axes.legend(ncols=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=9)


def _flow(outcome: Outcome, axes: "Axes") -> None:
    for label, colour, count in (
        ("sent and acknowledged", _SENT, lambda sample: sample.acknowledged),
        ("folded and committed", _FOLDED, lambda sample: sum(sample.folded.values())),
    ):
        axes.plot(*_rates(outcome.samples, count), color=colour, linewidth=1.4, label=label)
    axes.set_ylabel("events/s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)


def _lag(outcome: Outcome, axes: "Axes") -> None:
    times = [sample.at_s for sample in outcome.samples]
    axes.fill_between(times, [sample.lag for sample in outcome.samples], color=_LAG, alpha=0.6, linewidth=0)
    axes.set_ylabel("events not folded")
    axes.set_ylim(bottom=0)


def _ledger(outcome: Outcome, axes: "Axes") -> None:
    entries = outcome.audit.entries if outcome.audit else []
    counts = [
        {"trained": each.ledger.trained, "rejected": each.ledger.rejected, **each.ledger.pending_by} for each in entries
    ]
    axes.stackplot(
        [each.at_s for each in entries],
        [[count[place] for count in counts] for place in _PLACES],
        labels=list(_PLACES),
        colors=list(_PLACES.values()),
        alpha=0.85,
    )
    for each in entries:
        if not each.ledger.adds_up:
            axes.axvline(each.at_s, color="black", linewidth=0.8)
    axes.set_ylabel("trajectories")
    axes.legend(loc="upper left", frameon=False, ncols=2)


def _rates(samples: list[Sample], count: Callable[[Sample], int]) -> tuple[list[float], list[float]]:
    """Middle of each pair of samples, and the rate per second between them."""
    times, rates = [], []
    for before, after in pairwise(samples):
        seconds = after.at_s - before.at_s
        times.append((before.at_s + after.at_s) / 2)
        rates.append((count(after) - count(before)) / seconds if seconds < _BLIND_S else math.nan)
    return times, rates
