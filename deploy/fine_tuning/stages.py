"""The supervised stages as commands: settings from a file and the command line, progress for a person."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.deploy.configuration.reading import Layer, read_configuration, set_layer, sets, toml_layer
from headrace.deploy.configuration.settings import base_model_dir
from headrace.deploy.errors import StackError
from headrace.deploy.terminal import clear_counter, print_line, show_counter

if TYPE_CHECKING:
    from headrace.trainer.supervised.fine_tune import TuningProgress
    from headrace.trainer.supervised.selection_file import SelectionHeader
    from headrace.trainer.supervised.settings import StageConfig

MEANINGS = {
    "full": "recall above both bounds",
    "low_recall": "recall below a bound: drawn on the one side, not drawn on the other",
    "negative": "no recall at all",
    "too_many_negatives": "no recall at all, past their share",
    "recall_gap": "found the evidence and did not answer with it",
    "no_recall": "its reward has no recalls: score history with search@3",
    "malformed": "did not come to its end, or called a tool wrongly",
    "another_of_its_task": "its task is there by a better attempt",
    "success": "reward above the bound, and above its group's mean",
    "below_reward": "reward below the bound",
    "not_above_its_group": "no better than its group",
    "repeated": "sampled the same tokens as another attempt at its task",
    "evaluation": "measures, and is never trained on",
    "unscored": "has no reward",
    "unresolved": "its record is gone or cannot be read",
    "too_long": "longer than the model's positions",
    "vocabulary": "token ids that the model does not have",
    "nothing_sampled": "holds no sampled token",
}
"""What the labels of a selection mean. A label that is missing here is a trajectory's defect."""


class TerminalReporter:
    """Tells a person how a stage goes."""

    def read(self, what: str, count: int) -> None:
        """A counter, on a terminal."""
        show_counter(f"{count:,} {what} read")

    def chosen(self, header: "SelectionHeader") -> None:
        """A table of what the filter did."""
        clear_counter()
        for line in selection_lines(header.counts):
            print_line(line)
        if header.unreadable:
            print_line(f"{header.unreadable:,} rewards could not be read")

    def begins(self, examples: int, held_out: int, loss: float) -> None:
        """What training begins with."""
        clear_counter()
        print_line(f"{examples:,} sequences to imitate, {held_out:,} held out; held-out loss {loss:.4f} nats a token")

    def trained(self, progress: "TuningProgress") -> None:
        """A line a report."""
        print_line(progress_line(progress))


def progress_line(progress: "TuningProgress") -> str:
    """A report as a line."""
    return (
        f"step {progress.step:5d}/{progress.steps}  loss {progress.loss:.4f}  held-out {progress.held_out_loss:.4f}"
        f"  {progress.seconds:4.0f} s, {progress.remaining_s:.0f} s to go"
    )


def selection_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What the filter kept and excluded, by kind and rule."""
    total = sum(count for labels in counts.values() for count in labels.values())
    lines = [f"{total:,} trajectories were header at"]
    for side, labels in counts.items():
        lines.append(f"{side:<9}{sum(labels.values()):>9,}")
        for label, count in labels.items():
            lines.append(f"  {label:<22}{count:>9,}  {MEANINGS.get(label, 'a defect of the record')}")
    return lines


def stage_config(stage: str, file: Path | None, assignments: Sequence[str], given: Mapping[str, Any]) -> "StageConfig":
    """The settings of a stage: ``assignments`` (--set), else the command line's options, else ``file``, else defaults.

    Raises :class:`StackError` naming every option that is unknown, missing or wrong, with where it was set.
    """
    from headrace.trainer.supervised.settings import StageConfig

    options = {name: value for name, value in given.items() if value is not None}
    layers = [*([toml_layer(file)] if file else []), Layer("the command line", options), set_layer(assignments)]
    where = {"bootstrap": "--kafka HOST:PORT", "model_dir": "--model FOLDER", "out": "--out FOLDER"}
    config: StageConfig = read_configuration(
        StageConfig, [*layers, Layer("the command", {"stage": stage})], where=where
    )
    shipped = config.model_dir.expanduser() == base_model_dir()
    if not shipped and not any(sets(layer, "training", "optimizer", "learning_rate") for layer in layers):
        raise StackError(
            f"training.optimizer.learning_rate is not set, and no one value suits every model. For {config.model_dir} "
            "start from 1e-5 with billions of parameters, from 1e-3 below some ten million: "
            "--set training.optimizer.learning_rate=1e-5."
        )
    return config


def fine_tune_from_log(config: "StageConfig") -> None:
    """Run a stage and say how it goes. Raises :class:`StackError` where it cannot."""
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.trainer.checkpoints.checkpoint import CheckpointError
    from headrace.trainer.supervised.reading import NothingToImitate
    from headrace.trainer.supervised.selection_file import OtherSettings
    from headrace.trainer.supervised.stage import OutExists, run_stage

    async def run() -> dict[str, Any]:
        return await run_stage(config, TerminalReporter())

    try:
        summary = run_with_kafka(config.bootstrap, run)
    except (NothingToImitate, OtherSettings, OutExists, CheckpointError, OSError, ValueError) as error:
        raise StackError(f"{error}.") from error
    except FloatingPointError as error:
        raise StackError(f"{error} (training.optimizer.learning_rate).") from error
    print_line(
        f"{config.out}: held-out loss {summary['held_out_loss_before']:.4f} before, {summary['held_out_loss']:.4f} "
        f"after {summary['steps']:,} steps; `headrace train --set model_dir={config.out}` starts from it"
    )
