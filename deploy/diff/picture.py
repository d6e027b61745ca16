"""Draws a comparison: rewards before and after, their changes, signs of advantages, and groups."""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.schemas.safe_text import plain_text
from headrace.streams.diff.diff import ABSENT, Diff
from headrace.streams.diff.side import TRAINED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BOTH, _ENTERS, _LEAVES, _NEITHER = "#4477aa", "#228833", "#ee6677", "#bbbbbb"
_FATES = (
    ("not trained, before and after", _NEITHER),
    ("trained, before and after", _BOTH),
    ("trained only after", _ENTERS),
    ("trained only before", _LEAVES),
)
_REVERSED = "#cc1133"
_MAX_DOTS = 20_000
"""Approximate maximum of dots in the scatter plot; of more trajectories only every n-th is drawn."""


def draw(found: Diff, path: Path) -> None:
    """Write a picture of ``found``; the format is that of the file name's ending."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.5), dpi=120, layout="constrained")
    scatter, changes, signs, groups = figure.subplots(2, 2).flat
    _scatter(scatter, found)
    _changes(changes, found)
    _signs(signs, found)
    _groups(groups, found)
    specs = " → ".join(", ".join(specs) for specs in found.specs)
    figure.suptitle(
        plain_text(f"{found.before} → {found.after}   ({specs};  {found.compared:,} trajectories)"),
        x=0.01,
        ha="left",
        fontsize=13,
    )
    figure.savefig(path)


def _scatter(axes: "Axes", found: Diff) -> None:
    """Draw the reward before and after; each dot is a trajectory."""
    if found.points:
        every = [value for old, new, *_ in found.points for value in (old, new)]
        width = max(every) - min(every) or 1.0
        ends = [min(every) - 0.06 * width, max(every) + 0.06 * width]
        axes.plot(ends, ends, color="#888888", linewidth=0.8, linestyle=":", zorder=0)
        step = -(-len(found.points) // _MAX_DOTS)
        for kind, colour in _FATES:
            dots = [(old, new) for old, new, was, now in found.points if _kind(was, now) == kind]
            if not dots:
                continue
            # Many rewards have few distinct values: jitter shows equal ones as a cloud.
            shown = [(old, new, number) for number, (old, new) in enumerate(dots)][::step]
            axes.scatter(
                [old + 0.05 * width * _jitter(number, 0.6180339887) for old, _, number in shown],
                [new + 0.05 * width * _jitter(number, 0.7548776662) for _, new, number in shown],
                s=9,
                color=colour,
                alpha=0.45,
                linewidths=0,
            )
            axes.scatter([], [], s=30, color=colour, label=f"{kind} ({len(dots):,})")
        axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none", fontsize=9)
    ranks = ", ".join(
        f"{name} {value:.2f}" for name, value in (("ρ", found.spearman), ("τ", found.kendall)) if value is not None
    )
    axes.set_title(f"Rewards{f'   ({ranks})' if ranks else ''}", loc="left")
    _plain(axes, f"reward, {found.before}", f"reward, {found.after}")


def _jitter(number: int, step: float) -> float:
    """Returns a deterministic offset in [−0.5, 0.5), evenly spread over consecutive numbers."""
    return (number * step) % 1.0 - 0.5


def _changes(axes: "Axes", found: Diff) -> None:
    from matplotlib.ticker import MaxNLocator

    changes = [new - old for old, new, *_ in found.points]
    if changes:
        reach = max(map(abs, changes)) or 1.0
        axes.hist(changes, bins=41, range=(-reach, reach), color=_BOTH, alpha=0.8)
        mean = sum(changes) / len(changes)
        axes.axvline(mean, color=_LEAVES, linewidth=1.5, label=f"mean {mean:+.3f}".replace("-", "−"))
        axes.axvline(0, color="#888888", linewidth=0.8, linestyle=":")
        axes.legend(frameon=False)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"Changes of rewards   ({found.changed:,} of {len(changes):,} changed)", loc="left")
    _plain(axes, "after − before", "trajectories")


def _signs(axes: "Axes", found: Diff) -> None:
    """Draw a matrix: how many advantages of each sign before have each sign after."""
    kinds = ("+", "0", "−", ABSENT)
    names = ("+", "0", "−", "not\ntrained")
    counts = [[found.signs.get((was, now), 0) for now in kinds] for was in kinds]
    most = max(map(max, counts)) or 1
    axes.imshow([[count**0.5 for count in row] for row in counts], cmap="Blues", vmin=0, vmax=1.15 * most**0.5)
    for y, row in enumerate(counts):
        for x, count in enumerate(row):
            is_flip = {kinds[x], kinds[y]} == {"+", "−"}
            colour = _REVERSED if is_flip and count else "white" if count > 0.45 * most else "#222222"
            weight = "bold" if is_flip and count else "normal"
            axes.text(x, y, f"{count:,}" if count else "·", ha="center", va="center", color=colour, fontweight=weight)
    axes.set_xticks(range(4), names)
    axes.set_yticks(range(4), names)
    axes.tick_params(length=0)
    axes.set_title(f"Signs of advantages   ({found.flips:,} reversed)", loc="left")
    axes.set_xlabel("after")
    axes.set_ylabel("before")
    axes.spines[:].set_visible(False)


def _groups(axes: "Axes", found: Diff) -> None:
    """Draw groups that enter the filter to the right and groups that leave it to the left, by the reason for which they
    carry no gradient on the other side."""
    reasons = sorted(
        {*found.entering, *found.leaving}, key=lambda r: found.entering.get(r, 0) + found.leaving.get(r, 0)
    )
    entering, leaving = ([side.get(reason, 0) for reason in reasons] for side in (found.entering, found.leaving))
    stay = found.groups.get((TRAINED, TRAINED), 0)
    axes.set_title(f"Groups that carry a gradient   ({stay:,} stay)", loc="left")
    if not reasons:
        axes.text(0.5, 0.5, "no group enters or leaves", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    names = [plain_text(reason.replace("zero_variance_", "").replace("_", " ")) for reason in reasons]
    for counts, colour, label in ((entering, _ENTERS, "enter"), ([-count for count in leaving], _LEAVES, "leave")):
        bars = axes.barh(names, counts, color=colour, height=0.6, label=f"{label} ({sum(map(abs, counts)):,})")
        axes.bar_label(bars, [f"{abs(count):,}" if count else "" for count in counts], padding=4)
    reach = 1.2 * max(*entering, *leaving)
    axes.set_xlim(-reach if any(leaving) else -0.04 * reach, reach if any(entering) else 0.04 * reach)
    axes.set_ylim(-0.8, max(len(reasons), 3) + 0.3)
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")
    axes.legend(frameon=False, loc="upper right")
    _plain(axes, "groups", "reason for no gradient")


def _kind(was: str, now: str) -> str:
    return _FATES[
        {(False, False): 0, (True, True): 1, (False, True): 2, (True, False): 3}[was == TRAINED, now == TRAINED]
    ][0]


def _plain(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.2)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
