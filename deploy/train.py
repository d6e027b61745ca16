"""The trainer as a process: its settings from every place they can stand in, and a run of it until it is asked to end.

``headrace train`` and the stack's ``headrace worker trainer`` are this, with and without a file.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.deploy.configuration.reading import Layer, read_configuration, set_layer, toml_layer
from headrace.deploy.settings import PREFIX, Settings
from headrace.deploy.until_stopped import until_stopped

if TYPE_CHECKING:
    from headrace.trainer.config import TrainerConfig

_OF_SETTINGS = {"kafka": "bootstrap", "run": "run", "model_dir": "model_dir", "store_url": "store_url"}
"""Settings of a process and the trainer's option that each stands for."""

_WHERE = {"bootstrap": f"--kafka HOST:PORT, {PREFIX}KAFKA, or bootstrap in the file"}
"""Where an option can be set, if it is set nowhere."""


def trainer_config(settings: Settings, file: Path | None = None, assignments: Sequence[str] = ()) -> "TrainerConfig":
    """The trainer's configuration: from ``assignments`` (--set), else ``settings`` that somebody set (command line,
    HEADRACE_*), else ``file``, else defaults under ``settings.data``.

    Raises :class:`StackError` naming every option that is unknown, missing or wrong, with where it was set.
    """
    from headrace.trainer.config import TrainerConfig

    layers = [
        *([toml_layer(file)] if file else []),
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
    }
    config = read_configuration(TrainerConfig, [Layer("defaults", defaults), *layers], where=_WHERE)
    folders = {name: getattr(config, name).expanduser() for name in ("model_dir", "checkpoint_dir")}
    return replace(config, **folders)


def train(settings: Settings, file: Path | None = None, assignments: Sequence[str] = ()) -> int:
    """Train until the process is asked to end; returns its exit status. Raises :class:`StackError` as above."""
    from headrace.trainer.loop import run_trainer

    return until_stopped(partial(run_trainer, trainer_config(settings, file, assignments)))


def _given(settings: Settings) -> dict[str, Any]:
    """Settings of the trainer that were set, not left at their defaults."""
    return {name: getattr(settings, name) for name in _OF_SETTINGS if name in settings.model_fields_set}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
