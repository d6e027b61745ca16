"""What became of every attempt, on disk: a line each, after one that says what was looked at.

It is written once, before the first step: a stage that is started again trains on the same, whatever the log has got
since. It stays beside the model as the account of what it learnt from.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import NonNegativeInt, ValidationError

from headrace.schemas.model import Part
from headrace.trainer.supervised.attempt import ScoredTrajectory
from headrace.trainer.supervised.selection import Selection
from headrace.trainer.supervised.split import is_held_out

MAX_BYTES = 4 * 1024**3
"""A larger file is something else."""


class SelectionHeader(Part):
    """The first line."""

    config_sha256: str
    """Hash of the stage's settings."""
    trajectories: str
    """Topic that the places are in."""
    unreadable: NonNegativeInt
    """Rewards that could not be read."""
    counts: dict[str, dict[str, int]]
    """How many attempts were ``kept`` by kind and ``excluded`` by rule."""


class SelectionOutcome(Part):
    """What became of an attempt."""

    trajectory_id: str
    """The trajectory."""
    partition: NonNegativeInt
    """Where its record stands."""
    offset: NonNegativeInt
    """Where its record stands."""
    task_id: str
    """Its task."""
    kept: str | None = None
    """The kind that it is imitated as."""
    excluded: str | None = None
    """The rule by which it is not."""
    held_out: bool = False
    """Whether it is kept to measure by, and never trained on."""


class OtherSettings(RuntimeError):
    """An interrupted stage had other settings."""


def outcomes_of(selection: Selection, held_out_share: float) -> Iterator[SelectionOutcome]:
    """A line for each attempt of ``selection``, what is kept first."""
    for attempt, kind in selection.kept:
        yield _outcome(attempt, kept=kind, held_out=is_held_out(attempt.task_id, held_out_share))
    for attempt, rule in selection.excluded:
        yield _outcome(attempt, excluded=rule)


def write_selection(path: Path, header: SelectionHeader, outcomes: Iterable[SelectionOutcome]) -> None:
    """Write the file, which appears whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        for line in (header, *outcomes):
            file.write(json.dumps(line.model_dump(mode="json", exclude_defaults=True)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_selection(path: Path, config_sha256: str) -> tuple[SelectionHeader, list[SelectionOutcome]] | None:
    """The first line, and what is kept; ``None`` where there is no file.

    Raises :class:`OtherSettings` where it was made by others, or cannot be read.
    """
    if not path.exists():
        return None
    remove = f"start it with the settings it had, or remove {path.parent}"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise OtherSettings(f"{path} is larger than {MAX_BYTES >> 30} GiB: {remove}")
        with path.open() as file:
            header = SelectionHeader.model_validate_json(next(file, ""))
            kept = [outcome for outcome in map(SelectionOutcome.model_validate_json, file) if outcome.kept is not None]
    except ValidationError as error:
        raise OtherSettings(f"{path} cannot be read ({error.error_count()} errors): {remove}") from error
    if header.config_sha256 != config_sha256:
        raise OtherSettings(f"{path} is of a stage with other settings that was interrupted: {remove}")
    return header, kept


def _outcome(
    attempt: ScoredTrajectory, *, kept: str | None = None, excluded: str | None = None, held_out: bool = False
) -> SelectionOutcome:
    partition, offset = attempt.place
    return SelectionOutcome(
        trajectory_id=attempt.trajectory_id,
        partition=partition,
        offset=offset,
        task_id=attempt.task_id,
        kept=kept,
        excluded=excluded,
        held_out=held_out,
    )
