"""Runs the trainer as a process: merges its settings from all sources, and trains until the process is stopped.

Both ``headrace train`` and the stack's ``headrace worker trainer`` use this module, with and without a file.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.deploy.configuration.reading import Layer, read_configuration, set_layer, sets, toml_layer
from headrace.deploy.configuration.settings import PREFIX, Settings, base_model_dir
from headrace.deploy.errors import StackError
from headrace.deploy.log_format import LogFormatter
from headrace.deploy.processes.process import Flow
from headrace.deploy.processes.ranks import job_ranks, leads, name_of_rank
from headrace.deploy.processes.telemetry import observe_progress_of
from headrace.deploy.processes.trainer_checks import report_known_errors, require_model_and_device, require_topics
from headrace.deploy.system.until_stopped import until_stopped
from headrace.schemas.safe_text import redacted_values

if TYPE_CHECKING:
    from headrace.trainer.config import TrainerConfig
    from headrace.trainer.progress.panel import LivePanel
    from headrace.trainer.progress.progress import Progress

_OPTION_OF_SETTING = {"kafka": "bootstrap", "run": "run", "model_dir": "model_dir", "store_url": "store_url"}
"""The trainer's option that corresponds to a setting of a process."""

MINIATURE_RATE = 8e-4
"""Learning rate for the base model that ships with headrace, as in the demo."""

_WHERE = {"bootstrap": f"--kafka HOST:PORT, {PREFIX}KAFKA, or bootstrap in the file"}
"""Where to set a required option, for the error message."""


class ProgressDisplay(StrEnum):
    """How progress is shown."""

    AUTO = "auto"
    """A panel on a terminal, otherwise lines."""
    PANEL = "panel"
    """A panel that is updated in place."""
    LINES = "lines"
    """One line per step in the log."""

    def uses_panel(self) -> bool:
        """Whether progress is shown as a panel on the current standard error."""
        return self == ProgressDisplay.PANEL or (self == ProgressDisplay.AUTO and sys.stderr.isatty())


def trainer_config(settings: Settings, file: Path | None = None, assignments: Sequence[str] = ()) -> "TrainerConfig":
    """Returns the trainer's configuration. In order of precedence: ``assignments`` (--set), ``settings`` that were set
    (command line, HEADRACE_*), ``file``, defaults under ``settings.data``.

    Raises :class:`StackError` that names every unknown, missing or wrong option and where it was set.
    """
    from_file = [toml_layer(file)] if file else []  # Before torch is imported, so that a wrong path fails fast.

    from headrace.trainer.config import TrainerConfig

    layers = [
        *from_file,
        Layer(f"{PREFIX}*", {_OPTION_OF_SETTING[name]: _plain(value) for name, value in _given(settings).items()}),
        Layer(f"--set trainer.…, {PREFIX}OPTIONS", settings.options.get("trainer", {})),
        set_layer(assignments),
    ]
    run = next((layer.values["run"] for layer in reversed(layers) if "run" in layer.values), settings.run)
    defaults = {
        "run": settings.run,
        "model_dir": str(settings.model_dir),
        "checkpoint_dir": str(settings.data / "checkpoints" / str(run)),
        "store_url": settings.objects,
        "signing_key": str(settings.signing_key),
    }
    config = read_configuration(TrainerConfig, [Layer("defaults", defaults), *layers], where=_WHERE)
    if not any(sets(layer, "optimizer", "learning_rate") for layer in layers):
        config = replace(config, optimizer=replace(config.optimizer, learning_rate=_rate_of(config)))
    paths = {name: getattr(config, name) for name in ("model_dir", "checkpoint_dir", "signing_key")}
    return replace(config, **{name: path.expanduser() for name, path in paths.items() if path is not None})


def _rate_of(config: "TrainerConfig") -> float:
    """Returns the default learning rate, which only the miniature base model has.

    Raises :class:`StackError` for any other model: 8e-4, at which the miniature learns, is hundreds of times too high
    for a model of billions of parameters.
    """
    if config.model_dir.expanduser() == base_model_dir():
        return MINIATURE_RATE
    raise StackError(
        f"optimizer.learning_rate is not set, and no single value suits every model. For {config.model_dir} start with "
        "1e-6 to train all weights (5e-7 for tens of billions of parameters), with 2e-5 for lora, with 1e-4 to 1e-3 "
        "below about ten million parameters. Set learning_rate under [optimizer] in the file, or use "
        "--set optimizer.learning_rate=1e-6."
    )


def trainer_flow() -> Flow:
    """Return the topics that a trainer reads and writes."""
    from headrace.schemas.topics import ALERTS, BUDGET, REJECTED, STEPS, TRAINING, TRAJECTORIES, WEIGHTS

    return Flow((TRAINING, TRAJECTORIES, ALERTS), (STEPS, WEIGHTS, BUDGET, REJECTED, ALERTS))


def train(
    settings: Settings,
    file: Path | None = None,
    assignments: Sequence[str] = (),
    *,
    show: ProgressDisplay = ProgressDisplay.LINES,
) -> int:
    """Train until the process is stopped by a signal; returns its exit status.

    Under ``torchrun`` rank 0 is the trainer and shows the progress; the other ranks compute their share. Raises
    :class:`StackError` for a wrong configuration, a missing resource, and errors that are known to end a trainer.
    """
    from headrace.trainer.loop import run_trainer

    config = trainer_config(settings, file, assignments)
    require_model_and_device(config)
    if leads():
        asyncio.run(require_topics(config.bootstrap, {topic.name for topic in trainer_flow().topics}))
    with report_known_errors(name_of_rank("trainer")), job_ranks(config) as ranks:
        if not ranks.leads:
            return until_stopped(partial(run_trainer, config, ranks=ranks))
        with shown_progress(config, show) as progress:
            observe_progress_of(settings, progress)
            return until_stopped(partial(run_trainer, config, progress=progress, ranks=ranks))


@contextmanager
def shown_progress(config: "TrainerConfig", show: ProgressDisplay) -> Iterator["Progress"]:
    """Open a trainer's progress with the display ``show`` and the writers that ``config`` specifies."""
    from headrace.deploy.configuration.shown import plain
    from headrace.trainer.progress.lines import Lines
    from headrace.trainer.progress.progress import Progress
    from headrace.trainer.progress.writers import open_writers

    with ExitStack() as held:
        writers = held.enter_context(open_writers(config.writers, config.run, redacted_values(plain(asdict(config)))))
        watcher = held.enter_context(_panel(config)) if show.uses_panel() else Lines()
        yield Progress([watcher, *writers])


@contextmanager
def _panel(config: "TrainerConfig") -> Iterator["LivePanel"]:
    """Open the panel on standard error, with log entries printed above it."""
    from rich.console import Console
    from rich.logging import RichHandler

    from headrace.trainer.progress.panel import LivePanel

    console = Console(stderr=True)
    root = logging.getLogger()
    panel_log = RichHandler(console=console, show_path=False)
    panel_log.setFormatter(LogFormatter("%(message)s"))
    before, root.handlers = root.handlers, [panel_log]
    try:
        with LivePanel(console, f"headrace train, run {config.run}, {config.loss} on {config.device}") as panel:
            yield panel
    finally:
        root.handlers = before


def _given(settings: Settings) -> dict[str, Any]:
    """Returns the trainer's settings that were set explicitly."""
    return {name: getattr(settings, name) for name in _OPTION_OF_SETTING if name in settings.model_fields_set}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
