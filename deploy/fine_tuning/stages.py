"""The supervised stages as commands: settings from a file and the command line, progress on the terminal."""

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
    "low_recall": "recall below a bound: a random part is kept, the rest excluded",
    "negative": "no recall at all",
    "too_many_negatives": "no recall at all, beyond the share of negatives",
    "recall_gap": "found the evidence, but did not answer with it",
    "no_recall": "its reward has no recalls: score history with search@3",
    "malformed": "did not end, or called a tool wrongly",
    "another_of_its_task": "a better attempt at its task is kept",
    "success": "reward above the bound and above its group's mean",
    "below_reward": "reward below the bound",
    "not_above_its_group": "not better than its group",
    "repeated": "sampled the same tokens as another attempt at its task",
    "evaluation": "an evaluation, which is never trained on",
    "unscored": "has no reward",
    "unresolved": "its record is missing or cannot be read",
    "too_long": "longer than the model's context",
    "vocabulary": "has token ids that are not in the model's vocabulary",
    "nothing_sampled": "has no sampled token",
}
"""Meanings of a selection's labels. Any other label is a trajectory's defect."""


class TerminalReporter:
    """Reports the progress of a stage on the terminal."""

    def read(self, what: str, count: int) -> None:
        """Show a counter of records."""
        show_counter(f"{count:,} {what} read")

    def chosen(self, header: "SelectionHeader") -> None:
        """Print what the filter kept and excluded."""
        clear_counter()
        for line in selection_lines(header.counts):
            print_line(line)
        if header.unreadable:
            print_line(f"{header.unreadable:,} rewards could not be read")

    def begins(self, examples: int, held_out: int, loss: float) -> None:
        """Print the number of examples and the initial loss."""
        clear_counter()
        print_line(f"{examples:,} training sequences, {held_out:,} held out; held-out loss {loss:.4f} nats per token")

    def trained(self, progress: "TuningProgress") -> None:
        """Print a line about the progress."""
        print_line(progress_line(progress))


def progress_line(progress: "TuningProgress") -> str:
    """Returns the progress as a line."""
    return (
        f"step {progress.step:5d}/{progress.steps}  loss {progress.loss:.4f}  held-out {progress.held_out_loss:.4f}"
        f"  {progress.seconds:4.0f} s, {progress.remaining_s:.0f} s to go"
    )


def selection_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Returns what the filter kept and excluded, by rule."""
    total = sum(count for labels in counts.values() for count in labels.values())
    lines = [f"{total:,} trajectories were considered"]
    for side, labels in counts.items():
        lines.append(f"{side:<9}{sum(labels.values()):>9,}")
        for label, count in labels.items():
            lines.append(f"  {label:<22}{count:>9,}  {MEANINGS.get(label, 'a defect of the record')}")
    return lines


def stage_config(stage: str, file: Path | None, assignments: Sequence[str], given: Mapping[str, Any]) -> "StageConfig":
    """Returns the settings of a stage. In order of precedence: ``assignments`` (--set), the command line's options,
    ``file``, defaults.

    Raises :class:`StackError` that names every unknown, missing or wrong option and where it was set.
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
            "training.optimizer.learning_rate is not set, and no single value suits every model. For "
            f"{config.model_dir} start with 1e-5 for billions of parameters, with 1e-3 below about ten million: "
            "--set training.optimizer.learning_rate=1e-5."
        )
    return config


def fine_tune_from_log(config: "StageConfig") -> None:
    """Run a stage and report its progress. Raises :class:`StackError` if it fails."""
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
