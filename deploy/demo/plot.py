"""Draws the reward curve."""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.demo.summary import REWARD_SHARE, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TRAIN, _SAMPLED, _GREEDY = "#4477aa", "#ee6677", "#228833"


def draw(summary: Summary, path: Path) -> None:
    """Write a PNG with the training reward by policy version, and the held-out reward before and after."""
    drawn(summary).savefig(path)


def drawn(summary: Summary) -> "Figure":
    """Returns the picture of :func:`draw`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), dpi=130, layout="constrained")
    axes = figure.subplots()
    points = summary.reward_by_version
    versions = [point.version for point in points]
    # The area of a dot is proportional to its number of trajectories.
    axes.scatter(
        versions,
        [point.mean for point in points],
        s=[4 + point.trajectories / 4 for point in points],
        color=_TRAIN,
        alpha=0.35,
        label="reward of training rollouts, mean of a version (area: trajectories)",
    )
    axes.plot(versions, _smooth(summary), color=_TRAIN, linewidth=2, label="weighted mean over 5 versions")
    held = summary.heldout
    last = max(summary.steps, 1)
    for name, before, after, colour in (
        ("sampled", held.sampled_before, held.sampled_after, _SAMPLED),
        ("greedy", held.greedy_before, held.greedy_after, _GREEDY),
    ):
        axes.plot([0, last], [before, after], "D--", color=colour, linewidth=1, markersize=7)
        axes.plot([], [], "D--", color=colour, label=f"held-out tasks, {name}: {before:.2f} → {after:.2f}")
    title = "control: advantages shuffled inside their groups" if summary.control else "learning from the event log"
    if summary.arm is not None:
        title += f", arm {summary.arm}"
    if summary.through_gateway:
        title += ", a program on OpenAI's client"
    axes.set_title(f"{title} (seed {summary.seed}, {summary.steps} steps)", loc="left")
    axes.set_xlabel("policy version")
    axes.set_ylabel(REWARD_SHARE if summary.measure == REWARD_SHARE else "share of the maximum")
    axes.set_ylim(-0.02, 1.02)  # marks at 0 and 1 are whole
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    # Below the axes, where no curve passes: rewards may be anywhere between 0 and 1.
    measured = None if summary.measure == REWARD_SHARE else f"held-out tasks: {summary.measure}"
    figure.legend(
        loc="outside lower center", ncols=2, frameon=False, fontsize="small", title=measured, title_fontsize="small"
    )
    return figure


def _smooth(summary: Summary, reach: int = 2) -> list[float]:
    """Returns the mean over neighbouring versions, weighted by their trajectories."""
    points = summary.reward_by_version
    curve = []
    for index in range(len(points)):
        near = points[max(0, index - reach) : index + reach + 1]
        total = sum(point.trajectories for point in near)
        curve.append(sum(point.mean * point.trajectories for point in near) / total)
    return curve
