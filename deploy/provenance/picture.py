"""Draws a lineage: what a version was trained on, or the path of a trajectory to the weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.provenance.trace_boxes import TraceRow, rows
from headrace.deploy.provenance.trace_page import fate
from headrace.schemas.safe_text import plain_text
from headrace.trainer.provenance.contributions import GONE, Dimension
from headrace.trainer.provenance.trace import Trace
from headrace.trainer.provenance.version_lineage import VersionLineage
from headrace.trainer.provenance.versions import spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#4477aa", "#66aabb", "#228833", "#a5b83b", "#ddaa33", "#ee8866", "#aa3377", "#7777aa")
_REST, _GONE, _INK, _FAINT = "#c4c8cc", "#f3d6d6", "#222222", "#8a8f94"
_BAD = "#cc1133"
_MAX_VALUES = len(_COLOURS)
_MAX_AGES = 5
_MAX_BARS = 400
"""Most steps that are drawn: the latest ones; the title gives their number."""
_LEGIBLE = 0.011
"""Width of a character as a share of the chart's width."""


def draw(found: VersionLineage | Trace, path: Path) -> None:
    """Write a picture of ``found``; the format is that of the file name's ending."""
    from matplotlib.figure import Figure

    if isinstance(found, VersionLineage):
        figure = Figure(figsize=(12, 7.4), dpi=120, layout="constrained")
        steps, shares = figure.subplots(2, 1, height_ratios=(1, 1.15))
        _steps(steps, found)
        _shares(shares, found)
        total = found.shares.total
        title = (
            f"Version {found.version} of run {found.run}: {total.trajectories:,} trajectories, {total.tokens:,} tokens"
        )
    else:
        paths = rows(found)
        width, height = 2.5 * max(len(each.boxes) for each in paths), 0.7 + 1.75 * len(paths)
        figure = Figure(figsize=(max(width, 7.5), height), dpi=120, layout="constrained")
        _flow(figure.subplots(), paths)
        title = f"Trajectory {found.trajectory_id}: {fate(found)}"
    figure.suptitle(plain_text(title), x=0.01, ha="left", fontsize=13, color=_INK)
    figure.savefig(path)


def age_colours(lineage: VersionLineage) -> dict[str, str]:
    """Returns a colour for each age of tokens in ``lineage``, in versions; all ages from the fifth on share one."""
    known = sorted({int(age) for row in lineage.steps for age in row.ages if age.isdecimal()})
    return {str(age): _COLOURS[min(number, _MAX_AGES - 1)] for number, age in enumerate(known)}


def _age(key: str) -> float:
    return int(key) if key.isdecimal() else float("inf")


def _steps(axes: "Axes", lineage: VersionLineage) -> None:
    """Draw the tokens of each step by their age, and the mean reward."""
    from matplotlib.ticker import MaxNLocator

    drawn = lineage.steps[-_MAX_BARS:]
    versions = [row.version for row in drawn]
    known = sorted(int(age) for age in age_colours(lineage))
    bottom = [0.0] * len(drawn)
    for number, age in enumerate(known[:_MAX_AGES]):
        last = number == _MAX_AGES - 1 and len(known) > _MAX_AGES
        ages = {str(each) for each in known[number:]} if last else {str(age)}
        heights = [float(sum(row.ages.get(each, 0) for each in ages)) for row in drawn]
        label = "fresh" if age == 0 else f"{age}{' and more' if last else ''} version{'s' if age > 1 else ''} old"
        axes.bar(versions, heights, bottom=bottom, width=0.86, color=_COLOURS[number], label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    gone = [float(row.ages.get(GONE, 0)) for row in drawn]
    if any(gone):
        axes.bar(
            versions, gone, bottom=bottom, width=0.86, color=_GONE, hatch="///", edgecolor=_BAD, linewidth=0, label=GONE
        )
    rewards = [(row.version, row.reward_mean) for row in drawn if row.reward_mean is not None]
    if rewards:
        right = axes.twinx()
        right.plot(
            *zip(*rewards, strict=True), color=_INK, linewidth=1.4, marker="o", markersize=3, label="mean reward"
        )
        right.set_ylabel("mean reward")
        right.spines[["top"]].set_visible(False)
    axes.set_xlabel(
        f"version (each bar is the step that made it); descendants: {spans(lineage.descendants) or 'none yet'}"
    )
    axes.set_ylabel("tokens trained")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dropped = len(lineage.steps) - len(drawn)
    axes.set_title(
        f"Steps of its ancestry{f' (the last {len(drawn)} steps)' if dropped else ''}", loc="left", fontsize=11
    )
    axes.spines[["top"]].set_visible(False)
    if drawn:
        axes.legend(frameon=False, fontsize=9, ncols=6, loc="lower right", bbox_to_anchor=(1.0, 1.0))
        axes.margins(x=0.01)


def _shares(axes: "Axes", lineage: VersionLineage) -> None:
    """Draw one bar per dimension, divided by the share of tokens."""
    dimensions = [each for each in Dimension if lineage.shares.table(each)]
    ages = age_colours(lineage)
    for y, dimension in enumerate(dimensions):
        table = lineage.shares.table(dimension)
        known = [row for row in table if row.key != GONE]
        parts = [(row.key, row.share, _COLOURS[i]) for i, row in enumerate(known[:_MAX_VALUES])]
        if dimension is Dimension.AGE:
            parts = sorted(
                ((key, share, ages.get(key, _REST)) for key, share, _ in parts), key=lambda part: _age(part[0])
            )
        if rest := known[_MAX_VALUES:]:
            parts.append((f"{len(rest):,} others", sum(row.share for row in rest), _REST))
        parts += [(GONE, row.share, _GONE) for row in table if row.key == GONE]
        left = 0.0
        for key, share, colour in parts:
            hatch = "///" if colour == _GONE else None
            axes.barh(y, share, left=left, height=0.72, color=colour, edgecolor="white", linewidth=1, hatch=hatch)
            name = "gone" if key == GONE else key
            text = f"{name}  {100 * share:.0f} %"
            room = int(share / _LEGIBLE)
            if room >= 4:
                ink = _INK if colour in (_GONE, _REST, "#a5b83b", "#ddaa33", "#66aabb", "#ee8866") else "white"
                # Names often start the same and differ at the end, so the end is shown.
                fitting = text if len(text) <= room else name if len(name) <= room else f"…{name[1 - room :]}"
                axes.text(left + share / 2, y, plain_text(fitting), ha="center", va="center", color=ink, fontsize=9)
            left += share
    axes.set_yticks(
        range(len(dimensions)), ["age\n(versions)" if each is Dimension.AGE else each.value for each in dimensions]
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title("Shares of its tokens", loc="left", fontsize=11)


def _flow(axes: "Axes", paths: list[TraceRow]) -> None:
    """Draw a row of boxes with arrows between them for each trajectory."""
    from matplotlib.patches import FancyBboxPatch

    columns = max(3, *(len(each.boxes) for each in paths))
    for number, row in enumerate(paths):
        y = -1.25 * number
        axes.text(0, y + 1.0, plain_text(row.heading), va="center", fontsize=9, color=_FAINT)
        for column, box in enumerate(row.boxes):
            edge = _BAD if box.is_bad else _COLOURS[column % len(_COLOURS)]
            axes.add_patch(
                FancyBboxPatch(
                    (column, y), 0.84, 0.9, boxstyle="round,pad=0,rounding_size=0.04", linewidth=1.8, edgecolor=edge,
                    facecolor="#fff7f7" if box.is_bad else "white", linestyle="--" if box.is_missing else "-",
                )
            )  # fmt: skip
            ink = _BAD if box.is_bad else _INK
            axes.text(
                column + 0.05, y + 0.8, plain_text(box.title), va="center", fontsize=11, fontweight="bold", color=ink
            )
            axes.text(
                column + 0.05,
                y + 0.66,
                plain_text(box.place),
                va="center",
                fontsize=8,
                color=_FAINT,
                family="monospace",
            )
            axes.text(
                column + 0.05,
                y + 0.56,
                "\n".join(map(plain_text, box.lines)),
                va="top",
                fontsize=8.5,
                color=_INK,
                linespacing=1.3,
            )
            if column:
                axes.annotate(
                    "", (column - 0.005, y + 0.45), (column - 0.155, y + 0.45),
                    arrowprops={"arrowstyle": "-|>", "color": _FAINT, "linewidth": 1.4},
                )  # fmt: skip
    axes.set_xlim(-0.05, columns - 0.1)
    axes.set_ylim(-1.25 * (len(paths) - 1) - 0.1, 1.0)
    axes.set_axis_off()
