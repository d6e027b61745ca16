"""The selection on disk: a header line, then a line with the outcome of each attempt.

It is written once, before the first step: a restarted stage trains on the same data, whatever was added to the log
since. It is kept next to the model as the record of its training data.
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
"""Largest size of a valid file."""


class SelectionHeader(Part):
    """The header line."""

    config_sha256: str
    """Hash of the stage's settings."""
    trajectories: str
    """Topic of the places."""
    unreadable: NonNegativeInt
    """Rewards that could not be read."""
    counts: dict[str, dict[str, int]]
    """Numbers of attempts ``kept`` by kind and ``excluded`` by rule."""


class SelectionOutcome(Part):
    """The outcome of an attempt."""

    trajectory_id: str
    """The trajectory."""
    partition: NonNegativeInt
    """The place of its record."""
    offset: NonNegativeInt
    """The place of its record."""
    task_id: str
    """Its task."""
    kept: str | None = None
    """The kind as which it is kept."""
    excluded: str | None = None
    """The rule that excludes it."""
    held_out: bool = False
    """Whether it is only measured on, never trained on."""


class OtherSettings(RuntimeError):
    """An interrupted stage had other settings."""


def outcomes_of(selection: Selection, held_out_share: float) -> Iterator[SelectionOutcome]:
    """Yield an outcome for each attempt of ``selection``, kept ones first."""
    for attempt, kind in selection.kept:
        yield _outcome(attempt, kept=kind, held_out=is_held_out(attempt.task_id, held_out_share))
    for attempt, rule in selection.excluded:
        yield _outcome(attempt, excluded=rule)


def write_selection(path: Path, header: SelectionHeader, outcomes: Iterable[SelectionOutcome]) -> None:
    """Write the file atomically."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        for line in (header, *outcomes):
            file.write(json.dumps(line.model_dump(mode="json", exclude_defaults=True)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_selection(path: Path, config_sha256: str) -> tuple[SelectionHeader, list[SelectionOutcome]] | None:
    """Returns the header and the kept attempts; ``None`` if there is no file.

    Raises :class:`OtherSettings` if it was written with other settings, or cannot be read.
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
