"""The options that ``headrace sft`` and ``headrace rft`` share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from headrace.trainer.supervised.settings import StageConfig

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of settings."),
    click.option("--set", "assignments", multiple=True, metavar="OPTION=VALUE", help="An option; tables with a dot."),
    click.option("--model", metavar="FOLDER", help="Model to start from; default: the model that ships with headrace."),
    click.option("--out", metavar="FOLDER", help="New folder for the resulting model."),
    click.option("--replay", metavar="NAME", help="Use the rewards of this replay instead of the live ones."),
    click.option("--spec", metavar="SPEC", help="Reward spec to use, if there are several."),
    click.option("--run", metavar="NAME", help="Only trajectories of this training run."),
    click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data."),
    click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA)."),
)


def stage_options(command: CommandT) -> CommandT:
    """Add the options to ``command``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_of(
    stage: str, file: Path | None, assignments: Sequence[str], given: Mapping[str, str | None]
) -> "StageConfig":
    """Returns the stage's settings from the command line's options."""
    from headrace.deploy.configuration.settings import base_model_dir
    from headrace.deploy.fine_tuning.stages import stage_config
    from headrace.deploy.stack.state import address_of

    source = {name: given[name] for name in ("replay", "spec", "run") if given[name] is not None}
    options: dict[str, Any] = {
        "bootstrap": address_of("kafka", given["kafka"], given["data"]),
        "out": given["out"],
        "source": source or None,
    }
    if given["model"] is not None or file is None:
        options["model_dir"] = given["model"] or str(base_model_dir())
    return stage_config(stage, file, assignments, options)
