"""A supervised stage: reads the log, selects trajectories, imitates them, and writes a model for a trainer.

OUT.part/selection.jsonl     the outcome of every attempt that was read
OUT.part/checkpoints/        from which an interrupted stage resumes
OUT/                         the model, with selection.jsonl and fine_tuning.json, created at the end
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import TRAJECTORIES
from headrace.trainer.checkpoints.checkpoint import (
    OPTIMIZER_FOLDER,
    CheckpointState,
    CheckpointWriter,
    exclusive,
    load_newest,
    sync,
)
from headrace.trainer.learning.optimizer_state import read_state, write_state
from headrace.trainer.learning.optimizers import Optimizer
from headrace.trainer.model.layers import prepare_layers
from headrace.trainer.model.load import load_model, longest_sequence, save_model, vocabulary_size
from headrace.trainer.model.published import published_tensors
from headrace.trainer.parallel.ranks import ALONE
from headrace.trainer.supervised.attempt import form_of, with_group_means
from headrace.trainer.supervised.fine_tune import TuningExample, TuningProgress, fine_tune, held_out_loss
from headrace.trainer.supervised.reading import NothingToImitate, read_candidates, trajectories_at
from headrace.trainer.supervised.selection import Selection, Sieve, newest, unfit, unusable
from headrace.trainer.supervised.selection_file import (
    SelectionHeader,
    SelectionOutcome,
    outcomes_of,
    read_selection,
    write_selection,
)
from headrace.trainer.supervised.settings import StageConfig

SELECTION_FILE = "selection.jsonl"
SUMMARY_FILE = "fine_tuning.json"


class OutExists(FileExistsError):
    """The output folder exists already."""


class StageReporter(Protocol):
    """Receives the progress of a stage."""

    def read(self, what: str, count: int) -> None:
        """``count`` rewards or trajectories have been read so far."""

    def chosen(self, header: SelectionHeader) -> None:
        """The filter's result, or that of an interrupted stage."""

    def begins(self, examples: int, held_out: int, loss: float) -> None:
        """Training begins with these numbers of sequences, at this held-out loss (nats per token)."""

    def trained(self, progress: TuningProgress) -> None:
        """A progress report of the training."""


async def run_stage(config: StageConfig, reporter: StageReporter) -> dict[str, Any]:
    """Run a stage to its end, or resume an interrupted one; returns the contents of ``fine_tuning.json``.

    Raises :class:`OutExists`; :class:`headrace.trainer.supervised.reading.NothingToImitate` if the log does not hold
    the requested trajectories or the filter leaves none on a side of the split;
    :class:`headrace.trainer.supervised.selection_file.OtherSettings` if an interrupted stage had other settings; and
    the errors of :func:`headrace.trainer.supervised.fine_tune.fine_tune`.
    """
    if config.out.exists():
        raise OutExists(f"out {config.out} exists: name a new folder, a model is never overwritten")
    torch.set_num_threads(config.threads)
    part = config.out.with_name(config.out.name + ".part")
    with exclusive(part):
        model = load_model(config.model_dir, device=config.device)
        known = read_selection(part / SELECTION_FILE, config.sha256())
        if known is None:
            header, outcomes = await _choose(config, model, reporter)
            write_selection(part / SELECTION_FILE, header, outcomes)
            known = header, [outcome for outcome in outcomes if outcome.kept is not None]
        header, kept = known
        reporter.chosen(header)
        train, held_out = await _examples(config, header, kept, reporter)
        bound = config.training.max_tokens_per_pass
        before = held_out_loss(model, held_out, bound, config.training.torch_dtype)
        reporter.begins(len(train), len(held_out), before)
        model, last = _train(config, model, train, held_out, part / "checkpoints", reporter)
        summary = {
            "stage": config.stage,
            "config_sha256": config.sha256(),
            "settings": json.loads(json.dumps(asdict(config), default=str)),
            **header.model_dump(exclude={"config_sha256"}),
            "examples": len(train),
            "held_out_examples": len(held_out),
            "held_out_loss_before": before,
            "held_out_loss": last.held_out_loss,
            "steps": last.step,
        }
        _publish(config, model, part, summary)
    shutil.rmtree(part)
    return summary


async def _choose(
    config: StageConfig, model: PreTrainedModel, reporter: StageReporter
) -> tuple[SelectionHeader, list[SelectionOutcome]]:
    """Returns the header and the outcomes of all attempts in the log."""
    candidates = await read_candidates(config.bootstrap, config.source, reporter.read)
    sieve = Sieve(with_group_means(newest(candidates.attempts)))
    sieve.apply(unusable)
    excluded = sieve.excluded
    left = {attempt.trajectory_id: attempt for attempt in sieve.left}
    places = {name: attempt.place for name, attempt in left.items()}
    async for name, trajectory in trajectories_at(config.bootstrap, candidates.trajectories, places, reporter.read):
        attempt = replace(left[name], form=form_of(trajectory) if trajectory else None)
        rule = unfit(attempt, max_positions=longest_sequence(model), vocabulary_size=vocabulary_size(model))
        if rule is None:
            left[name] = attempt
        else:
            excluded.append((attempt, rule))
            del left[name]
    chosen = config.filter.select(list(left.values()))
    both = sorted((*excluded, *chosen.excluded), key=lambda labelled: labelled[0].trajectory_id)
    selection = Selection(chosen.kept, tuple(both))
    header = SelectionHeader(
        config_sha256=config.sha256(),
        trajectories=candidates.trajectories.name,
        unreadable=candidates.unreadable,
        counts=selection.counts(),
    )
    return header, list(outcomes_of(selection, config.held_out_share))


async def _examples(
    config: StageConfig, header: SelectionHeader, kept: Sequence[SelectionOutcome], reporter: StageReporter
) -> tuple[list[TuningExample], list[TuningExample]]:
    """Read the training and held-out examples, in log order."""
    topic = replace(TRAJECTORIES, name=header.trajectories)
    by_id = {outcome.trajectory_id: outcome for outcome in kept}
    places = {outcome.trajectory_id: (outcome.partition, outcome.offset) for outcome in kept}
    sides: tuple[list[TuningExample], list[TuningExample]] = ([], [])
    async for name, trajectory in trajectories_at(config.bootstrap, topic, places, reporter.read):
        if trajectory is None:
            raise NothingToImitate(
                f"trajectory {name} was selected and has expired in {topic.name}; remove {config.out}.part and start "
                "again"
            )
        sides[by_id[name].held_out].extend(examples_of(trajectory))
    for side, what in zip(sides, ("train on", "hold out"), strict=True):
        if not side:
            raise NothingToImitate(
                f"of {len(kept)} trajectories that were kept there is none to {what} (held_out_share "
                f"{config.held_out_share}): {config.out}.part/{SELECTION_FILE} lists what the filter did"
            )
    return sides


def examples_of(trajectory: Trajectory) -> Iterable[TuningExample]:
    """Yield an example for each segment with sampled tokens: these are imitated, the context is not."""
    for segment in trajectory.segments:
        if any(segment.loss_mask[1:]):
            yield TuningExample(segment.token_ids, segment.loss_mask)


def _train(
    config: StageConfig,
    model: PreTrainedModel,
    train: Sequence[TuningExample],
    held_out: Sequence[TuningExample],
    folder: Path,
    reporter: StageReporter,
) -> tuple[PreTrainedModel, TuningProgress]:
    """Train from the newest checkpoint in ``folder``, or from ``model``."""
    name = f"{config.stage}-{config.sha256()[:16]}"
    checkpoint = load_newest(folder, name)
    if checkpoint is not None:
        model = load_model(checkpoint.model_dir, device=config.device)
    prepare_layers(model, config.layers)
    parameters = dict(model.named_parameters())

    def keep(step: int, optimizer: Optimizer) -> None:
        writer = CheckpointWriter(folder, step)
        save_model(model, writer.partial / "model", tokenizer_from=config.model_dir)
        write_state(optimizer.tensors(), writer.partial / OPTIMIZER_FOLDER, ALONE)
        writer.commit(CheckpointState(run=name, version=step, offsets={}, announcements=[]), keep=1)

    last = fine_tune(
        model,
        train,
        held_out,
        config.training,
        reporter.trained,
        start=checkpoint.state.version if checkpoint else 0,
        optimizer_state=read_state(checkpoint.optimizer_dir, parameters) if checkpoint else None,
        keep=keep,
    )
    return model, last


def _publish(config: StageConfig, model: PreTrainedModel, part: Path, summary: Mapping[str, Any]) -> None:
    """Write the model atomically, with the selection and the summary."""
    result = part / "result"
    shutil.rmtree(result, ignore_errors=True)
    tensors = published_tensors(model, config.training.torch_dtype)
    save_model(model, result, tensors, tokenizer_from=config.model_dir)
    shutil.copyfile(part / SELECTION_FILE, result / SELECTION_FILE)
    (result / SUMMARY_FILE).write_text(json.dumps(summary, indent=1) + "\n")
    for path in (*result.iterdir(), result):
        sync(path)
    result.rename(config.out)
    sync(config.out.parent)
