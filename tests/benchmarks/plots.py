"""The figures as pictures: ours in one colour, peers in another, upper limits in grey."""

import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.contender import Sample
from tests.benchmarks.latency import ENDS
from tests.benchmarks.report import quantile

Figures = dict[str, Any]

OURS, PEER, LIMIT = "#228833", "#4477aa", "#bbbbbb"


def draw(figures: Figures, folder: Path) -> None:
    """Write a PNG for each measurement that has one."""
    for name, picture in PICTURES.items():
        if name in figures:
            picture(figures[name], folder / f"{name}.png")


def throughput(figures: Figures, path: Path) -> None:
    """Bars of the medians, with one dot per round."""
    rows = {name: [Sample(**sample) for sample in samples] for name, samples in figures["samples"].items()}
    order = list(rows)[::-1]
    figure = Figure(figsize=(11, 4.6), dpi=130, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, title, rate in (
        (panels[0], "a second", lambda one: one.per_s / 1e3),
        (panels[1], "a core-second", lambda one: one.per_core_s / 1e3),
    ):
        dots = {name: [rate(one) for one in rows[name]] for name in order}
        _bars(axes, dots, [figures["titles"][name] for name in order], "{:.0f}")
        axes.set_title(f"thousands of events {title}", loc="left")
    figure.savefig(path)


def latency(figures: Figures, path: Path) -> None:
    """The cumulative share of groups by latency, to each end."""
    figure = Figure(figsize=(9, 4), dpi=130, layout="constrained")
    axes = figure.subplots()
    for (name, seconds), colour in zip(figures["latencies_s"].items(), (OURS, PEER), strict=True):
        shares = [(rank + 1) / len(seconds) for rank in range(len(seconds))]
        axes.plot(seconds, shares, color=colour, linewidth=2, label=f"to the {ENDS[name]}")
        for share, quantile_name in ((0.5, "p50"), (0.99, "p99")):
            at = quantile(seconds, share)
            axes.plot([at], [share], "o", color=colour)
            text = f"{quantile_name}  {at:.2f} s"
            axes.annotate(text, (at, share), xytext=(8, -12), textcoords="offset points", color=colour)
    axes.set_title(f"from a group's last event, at {figures['rate'] / 1e3:.0f} k events/s", loc="left")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share of the groups")
    axes.set_xlim(0, max(1.0, *(seconds[-1] for seconds in figures["latencies_s"].values())) * 1.05)
    axes.set_ylim(0, 1.03)
    axes.legend(frameon=False)
    _plain(axes)
    axes.grid(alpha=0.25)
    figure.savefig(path)


def recovery(figures: Figures, path: Path) -> None:
    """Bars of the medians, with one dot per round."""
    order = sorted(figures["seconds"], key=lambda name: -statistics.median(figures["seconds"][name]))
    figure = Figure(figsize=(9, 2.8), dpi=130, layout="constrained")
    axes = figure.subplots()
    _bars(
        axes,
        {name: figures["seconds"][name] for name in order},
        [figures["titles"][name] for name in order],
        "{:.1f} s",
    )
    axes.set_title(f"seconds from kill -9 to new trajectories, {figures['open_events']:,} events open", loc="left")
    figure.savefig(path)


PICTURES = {"throughput": throughput, "latency": latency, "recovery": recovery}


def _bars(axes: Axes, dots: dict[str, list[float]], titles: list[str], form: str) -> None:
    """Horizontal bars in the order of ``dots``, the last on top. A limit far beyond all contenders is cut off."""
    edge = 1.3 * max(value for name, values in dots.items() if _colour(name) != LIMIT for value in values)
    for place, (name, values) in enumerate(dots.items()):
        middle, cut = statistics.median(values), statistics.median(values) > edge
        axes.barh(place, min(middle, edge), color=_colour(name), height=0.7)
        if cut:
            axes.annotate(
                f"{form.format(middle)} ▸",
                (edge, place),
                xytext=(-6, 0),
                textcoords="offset points",
                va="center",
                ha="right",
            )
            continue
        if len(values) > 1:
            axes.plot(values, [place] * len(values), "o", color="black", alpha=0.45, markersize=3)
        axes.annotate(form.format(middle), (max(values), place), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(titles)), titles)
    axes.set_xlim(0, edge * 1.1)  # room for the figure next to the longest bar
    _plain(axes)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


def _colour(name: str) -> str:
    if name.startswith("headrace"):
        return OURS
    return LIMIT if name.startswith("bare") else PEER


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
