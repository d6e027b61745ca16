"""The figures of the trainer's benchmark as a page and a plot."""

import json
import statistics
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.plots import LIMIT, OURS, PEER
from tests.benchmarks.report import measured_on, table_of
from tests.benchmarks.trainer.contenders import PEERS, TITLES

Figures = dict[str, Any]

FIGURES, TABLE, PLOT = "trainer.json", "trainer.md", "trainer.png"

_COLOURS = {"headrace": OURS, "trl": PEER, "padded": LIMIT}
_TURNS = """Each contender performs the same complete optimiser step: forward, Dr. GRPO's loss, backward, clip, AdamW
    and its own metrics. TRL runs unmodified, as `GRPOTrainer.train()`, with recorded rollouts in place of generation;
    the plain step is what a careful engineer would write with transformers. Each contender was tried with several
    divisions of the batch (tokens per pass, sequences per micro-batch) and shown with its fastest. Loss and gradient
    norm of the first step agree to the digits shown. Memory is the largest amount that a step needs beyond the loaded
    process."""


def write(figures: dict[str, Figures], out: Path) -> None:
    """Figures, table and plot into ``out``."""
    (out / FIGURES).write_text(json.dumps(figures, indent=1) + "\n")
    (out / TABLE).write_text(markdown(figures))
    draw(figures, out / PLOT)


def markdown(figures: dict[str, Figures]) -> str:
    """The page."""
    head = ["# Speed of the trainer, next to its peers", textwrap.fill(" ".join(_TURNS.split()), 120)]
    return "\n\n".join([*head, f"![speed]({PLOT})", *(_section(shape) for shape in figures.values())]) + "\n"


def median(shape: Figures, contender: str, column: str) -> float:
    """Medians over the rounds."""
    return statistics.median(sample[column] for sample in shape["samples"][contender])


def _section(shape: Figures) -> str:
    ours_wall, ours_cpu = (median(shape, "headrace", column) for column in ("wall_s", "cpu_s"))
    rows = []
    for name in PEERS:
        wall, cpu = median(shape, name, "wall_s"), median(shape, name, "cpu_s")
        first = shape["first"][name]
        rows.append(
            [
                TITLES[name],
                f"{shape['tokens'] / wall:,.0f}",
                f"{shape['trajectories'] / wall:.1f}",
                "" if name == "headrace" else f"{wall / ours_wall:.2f} ×",
                "" if name == "headrace" else f"{cpu / ours_cpu:.2f} ×",
                f"{shape['peak_mib'][name]:,.0f}",
                str(shape["divisions"][name]),
                f"{first['loss']:.5f}",
                f"{first['grad_norm']:.5f}",
            ]
        )
    columns = [
        "",
        "tokens/s",
        "trajectories/s",
        "headrace ÷ row, wall",
        "headrace ÷ row, CPU",
        "MiB",
        "division",
        "loss",
        "norm",
    ]
    text = f"""{shape["weights"] / 1e6:,.1f} M weights; {shape["trajectories"]} trajectories of {shape["tokens"]:,}
        tokens, {shape["sampled"]:,} of them sampled, the longest of {shape["longest"]:,}. Medians of
        {len(shape["samples"]["headrace"])} interleaved steps; threads per contender: {shape["threads"]}."""
    spent = ", ".join(f"{purpose} {share:.0%}" for purpose, share in shape["profile"].items() if share >= 0.005)
    table = table_of(columns, rows)
    paragraphs = [text, f"Time of headrace's step (torch.profiler): {spent}.", measured_on(shape)]
    before, *after = (textwrap.fill(" ".join(paragraph.split()), 120) for paragraph in paragraphs)
    return "\n\n".join([f"## {shape['title']}", before, table, *after])


def draw(figures: dict[str, Figures], path: Path) -> None:
    """Tokens per second and memory of each contender as multiples of TRL's, by shape."""
    figure = Figure(figsize=(11, 1.2 + 1.1 * len(figures)), dpi=130, layout="constrained")
    speed, memory = figure.subplots(1, 2, sharey=True)
    for place, shape in enumerate(reversed(figures.values())):
        for offset, name in enumerate(reversed(PEERS)):
            at = place + (offset - 1) * 0.27
            trl, walls = median(shape, "trl", "wall_s"), [sample["wall_s"] for sample in shape["samples"][name]]
            _bar(speed, at, trl / statistics.median(walls), name)
            speed.plot(
                [trl / wall for wall in walls], [at] * len(walls), "o", color="black", alpha=0.45, markersize=2.5
            )
            _bar(memory, at, shape["peak_mib"][name] / shape["peak_mib"]["trl"], name)
    speed.set_yticks(range(len(figures)), [textwrap.fill(shape["title"], 32) for shape in reversed(figures.values())])
    for axes, title in ((speed, "tokens per second, TRL = 1"), (memory, "memory of a step, TRL = 1")):
        axes.set_title(title, loc="left")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", alpha=0.25)
        axes.set_axisbelow(True)
    handles = [speed.barh([0], [0], color=_COLOURS[name], label=TITLES[name]) for name in PEERS]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


def _bar(axes: Axes, at: float, value: float, name: str) -> None:
    axes.barh(at, value, height=0.25, color=_COLOURS[name])
    axes.annotate(f"{value:.2f}", (value, at), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
