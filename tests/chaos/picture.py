"""A run as a picture: faults over time, and under them what flowed and what was left to do."""

from itertools import pairwise
from pathlib import Path

from tests.chaos.faults import BROKER_KINDS, Kind
from tests.chaos.run import Outcome

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
_SHORTEST_S = 0.6
"""A fault of a moment is drawn so long."""


def draw(outcome: Outcome, path: Path) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), dpi=120, layout="constrained")
    faults, flow, lag = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1.4))
    targets = sorted({each.target for each in outcome.faults}, reverse=True)
    for each in outcome.faults:
        row = targets.index(each.target)
        width = max(_SHORTEST_S, each.ended_s - each.began_s)
        faults.barh(row, width, left=each.began_s, height=0.62, color=_COLOURS[each.kind], alpha=0.85)
        if each.fenced:
            faults.plot(each.ended_s, row, "k*", markersize=9)
    faults.set_yticks(range(len(targets)), targets)
    for kind in sorted({each.kind for each in outcome.faults} - BROKER_KINDS):
        faults.barh(0, 0, color=_COLOURS[kind], label=kind.value)
    faults.plot([], [], "k*", markersize=9, label="a zombie is refused")
    faults.legend(ncols=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=9)
    plan, verdict = outcome.plan, outcome.verdict
    figure.suptitle(
        f"{verdict.events:,} events, {len(outcome.faults)} faults, seed {plan.seed}: "
        f"of {verdict.trajectories.expected:,} trajectories {verdict.trajectories.lost} lost, "
        f"{verdict.trajectories.doubled} doubled, {verdict.trajectories.changed} changed"
    )
    for row, name in enumerate(("sent", "folded")):
        times, rates = _rates(outcome, name)
        flow.plot(
            times,
            rates,
            color=(_SENT, _FOLDED)[row],
            linewidth=1.4,
            label=f"{name} (and acknowledged)" if row == 0 else f"{name} and committed",
        )
    flow.set_ylabel("events/s")
    flow.legend(loc="upper right", frameon=False)
    lag.fill_between(
        [s.at_s for s in outcome.samples], [s.lag for s in outcome.samples], color=_LAG, alpha=0.6, linewidth=0
    )
    lag.set_ylabel("events not folded")
    lag.set_xlabel("seconds")
    for axes in (faults, flow, lag):
        for each in outcome.faults:
            if each.kind in BROKER_KINDS:
                axes.axvspan(each.began_s, each.ended_s, color="#bbbbbb", alpha=0.35, linewidth=0)
        axes.grid(alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (flow, lag):
        axes.set_ylim(bottom=0)
    lag.set_xlim(0, outcome.seconds)
    figure.savefig(path)


def _rates(outcome: Outcome, name: str) -> tuple[list[float], list[float]]:
    """Middle of each two looks, and events a second between them."""
    times, rates = [], []
    for before, after in pairwise(outcome.samples):
        if name == "sent":
            count = after.acknowledged - before.acknowledged
        else:
            count = sum(after.folded.values()) - sum(before.folded.values())
        times.append((before.at_s + after.at_s) / 2)
        rates.append(count / (after.at_s - before.at_s))
    return times, rates
