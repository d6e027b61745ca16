"""Progress on a terminal: a small panel that shows whether the trainer learns, starves or is slow."""

import math
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.trainer.learning.metric_registry import METRICS
from headrace.trainer.progress.lines import compact, warnings
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.progress import Progress

_FIGURES = (
    (("reward_mean", "reward"), ("loss", "loss"), ("entropy", "entropy"), ("grad_norm", "grad norm")),
    (("mismatch_kl", "mismatch KL"), ("effective_sample_size", "ESS"), ("kl_k3", "KL k3"),
     ("staleness_p95", "staleness p95")),
    (("tokens_per_second", "tokens/s"), ("tokens_trained", "tokens"), ("rejected", "rejected"),
     ("learning_rate", "learning rate")),
)  # fmt: skip
_BARS = "▁▂▃▄▅▆▇█"
_STEPS_SHOWN = 60


def sparkline(values: list[float]) -> str:
    """Returns values as blocks of eight heights; a value that is not finite is a gap."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    return "".join(_BARS[round(7 * (v - low) / span)] if math.isfinite(v) else " " for v in values)


def render(progress: Progress, rewards: list[float], title: str) -> RenderableType:
    """Returns the panel of the current progress."""
    rows: list[RenderableType] = []
    if progress.metrics:
        rows.append(Text.assemble(("reward  ", "dim"), (sparkline(rewards), "green")))
        figures = Table.grid(padding=(0, 3))
        for line in _FIGURES:
            cells: list[RenderableType] = []
            for name, label in line:
                if name in progress.metrics:
                    value = progress.metrics[name]
                    beyond = name in METRICS and METRICS[name].warns(value)
                    cells.append(
                        Text.assemble((f"{label} ", "dim"), (compact(value), "bold red" if beyond else "bold"))
                    )
            figures.add_row(*cells)
        rows.append(figures)
    rows += [_now(progress), _outlook(progress)]
    if progress.outage:
        rows.append(Text(f"waiting for {progress.outage_s:.0f} s: {progress.outage}", "bold red"))
    rows += [Text(f"warning: {warning}", "red") for warning in warnings(progress.metrics).values()]
    return Panel(Group(*rows), title=title, title_align="left", border_style="dim")


def _now(progress: Progress) -> RenderableType:
    """Returns the current phase and its progress."""
    line = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [Text(f"version {progress.version}, {progress.phase}", "bold")]
    if progress.phase == Phase.WAITING:
        cells += [
            ProgressBar(total=max(progress.wanted, 1), completed=progress.groups, width=24),
            Text(f"{progress.groups} of {progress.wanted} groups"),
        ]
    line.add_row(*cells, Text(f"{progress.since_s:.1f} s", "dim"))
    return line


def _outlook(progress: Progress) -> Text:
    """Returns the estimated time of the next weights, and the bottleneck."""
    soon, verdict = progress.next_weights_s, progress.pace.verdict()
    style = "yellow" if verdict.startswith(("starved", "delayed")) else "dim"
    when = "next weights: not known yet" if soon is None else f"next weights in about {soon:.0f} s"
    return Text.assemble((when, "dim"), ("; " if verdict else "", "dim"), (verdict, style))


class LivePanel:
    """A watcher that shows the panel on ``console`` while it is entered; log lines scroll above it."""

    def __init__(self, console: Console, title: str) -> None:
        """A panel titled ``title``."""
        self._title = title
        self._progress: Progress | None = None
        self._rewards: deque[float] = deque(maxlen=_STEPS_SHOWN)
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=False)

    def __enter__(self) -> "LivePanel":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def changed(self, progress: Progress) -> None:
        """Keep ``progress``; the panel refreshes itself."""
        self._progress = progress

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the reward for the sparkline."""
        self._rewards.append(metrics.get("reward_mean", math.nan))

    def _render(self) -> RenderableType:
        if self._progress is None:
            return Panel(Text("loading the model"), title=self._title, title_align="left", border_style="dim")
        return render(self._progress, [*self._rewards], self._title)
