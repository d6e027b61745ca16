"""A page of an experiment: its claim, its numbers and its picture, into ``trainer/experiments``."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[2] / "trainer" / "experiments"
COLOURS = ("#cc3311", "#0077bb", "#009988", "#ee7733", "#555555")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    lines = [head, [":--", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(name: str, title: str, paragraphs: Sequence[str], figure: "Figure") -> None:
    """``NAME.md`` and ``NAME.png``."""
    FOLDER.mkdir(exist_ok=True)
    figure.savefig(FOLDER / f"{name}.png")
    command = f"Made by `python -m tests.experiments.{name}`; the short form is `tests/experiments/test_{name}.py`."
    page = "\n\n".join([f"# {title}", *paragraphs, f"![{title}]({name}.png)", command])
    (FOLDER / f"{name}.md").write_text(page + "\n")


def new_figure() -> "Figure":
    """A figure for two axes side by side."""
    from matplotlib.figure import Figure

    return Figure(figsize=(10, 4), dpi=120, layout="constrained")
