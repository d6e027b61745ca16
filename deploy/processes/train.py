"""The trainer as a process: its settings from every place they can stand in, and a run of it until it is asked to end.

``headrace train`` and the stack's ``headrace worker trainer`` are this, with and without a file.
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
from headrace.deploy.processes.ranks import job_ranks, leads, name_of_rank
from headrace.deploy.processes.telemetry import observe_progress_of
from headrace.deploy.processes.trainer_checks import ends_in_a_sentence, require_model_and_device, require_topics
from headrace.deploy.system.until_stopped import until_stopped
from headrace.schemas.safe_text import redacted_values

if TYPE_CHECKING:
    from headrace.trainer.config import TrainerConfig
    from headrace.trainer.progress.panel import LivePanel
    from headrace.trainer.progress.progress import Progress

_OF_SETTINGS = {"kafka": "bootstrap", "run": "run", "model_dir": "model_dir", "store_url": "store_url"}
"""Settings of a process and the trainer's option that each stands for."""

MINIATURE_RATE = 8e-4
"""Learning rate of the base model that is shipped: that of the demo."""

_WHERE = {"bootstrap": f"--kafka HOST:PORT, {PREFIX}KAFKA, or bootstrap in the file"}
"""Where an option can be set, if it is set nowhere."""


class Show(StrEnum):
    """How progress is shown."""

    AUTO = "auto"
    """A panel on a terminal, else lines."""
    PANEL = "panel"
    """A panel that stays in its place."""
    LINES = "lines"
    """A line a step in the log."""

    def on_a_terminal(self) -> bool:
        """Whether it is the panel here and now."""
        return self == Show.PANEL or (self == Show.AUTO and sys.stderr.isatty())


def trainer_config(settings: Settings, file: Path | None = None, assignments: Sequence[str] = ()) -> "TrainerConfig":
    """The trainer's configuration: from ``assignments`` (--set), else ``settings`` that somebody set (command line,
    HEADRACE_*), else ``file``, else defaults under ``settings.data``.

    Raises :class:`StackError` naming every option that is unknown, missing or wrong, with where it was set.
    """
    from_file = [toml_layer(file)] if file else []  # before torch is imported: a wrong path is told at once

    from headrace.trainer.config import TrainerConfig

    layers = [
        *from_file,
        Layer(f"{PREFIX}*", {_OF_SETTINGS[name]: _plain(value) for name, value in _given(settings).items()}),
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
    places = {name: getattr(config, name) for name in ("model_dir", "checkpoint_dir", "signing_key")}
    return replace(config, **{name: place.expanduser() for name, place in places.items() if place is not None})


def _rate_of(config: "TrainerConfig") -> float:
    """The learning rate where nobody set one: that of the miniature, for which it is known.

    Raises :class:`StackError` for any other model. What suits one ruins another: 8e-4, at which the miniature learns,
    is hundreds of times what a model of billions of parameters bears.
    """
    if config.model_dir.expanduser() == base_model_dir():
        return MINIATURE_RATE
    raise StackError(
        f"optimizer.learning_rate is not set, and no one value suits every model. For {config.model_dir} start from "
        "1e-6 where all weights are trained (5e-7 from tens of billions of parameters on), from 2e-5 with lora, from "
        "1e-4 to 1e-3 below some ten million parameters: learning_rate under [optimizer] in the file, or "
        "--set optimizer.learning_rate=1e-6."
    )


def train(
    settings: Settings, file: Path | None = None, assignments: Sequence[str] = (), *, show: Show = Show.LINES
) -> int:
    """Train until the process is asked to end; returns its exit status.

    Under ``torchrun`` rank 0 is the trainer, which shows its progress, and the others compute their share. Raises
    :class:`StackError` as above, for what a trainer lacks, and for what is known to end one.
    """
    from headrace.trainer.loop import run_trainer

    config = trainer_config(settings, file, assignments)
    require_model_and_device(config)
    if leads():
        asyncio.run(require_topics(config.bootstrap))
    with ends_in_a_sentence(name_of_rank("trainer")), job_ranks(config) as ranks:
        if not ranks.leads:
            return until_stopped(partial(run_trainer, config, ranks=ranks))
        with shown_progress(config, show) as progress:
            observe_progress_of(settings, progress)
            return until_stopped(partial(run_trainer, config, progress=progress, ranks=ranks))


@contextmanager
def shown_progress(config: "TrainerConfig", show: Show) -> Iterator["Progress"]:
    """A trainer's progress, as ``show`` has it on this terminal, and with the writers that ``config`` asks for."""
    from headrace.deploy.configuration.shown import plain
    from headrace.trainer.progress.lines import Lines
    from headrace.trainer.progress.progress import Progress
    from headrace.trainer.progress.writers import open_writers

    with ExitStack() as held:
        writers = held.enter_context(open_writers(config.writers, config.run, redacted_values(plain(asdict(config)))))
        watcher = held.enter_context(_panel(config)) if show.on_a_terminal() else Lines()
        yield Progress([watcher, *writers])


@contextmanager
def _panel(config: "TrainerConfig") -> Iterator["LivePanel"]:
    """The panel on stderr, with the log above it instead of through it."""
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
    """Settings of the trainer that were set, not left at their defaults."""
    return {name: getattr(settings, name) for name in _OF_SETTINGS if name in settings.model_fields_set}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
