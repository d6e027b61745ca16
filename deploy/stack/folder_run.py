"""The training run of a data folder: ``headrace up`` continues the last one, unless another is named."""

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.configuration.settings import Settings, run_name
from headrace.deploy.errors import StackError

_MAX_BYTES = 200


@dataclass(frozen=True, slots=True)
class RunChoice:
    """The run of a start."""

    run: str
    """Its name."""
    note: str | None
    """What to tell the user; ``None`` for the first start on a folder, and if the user named the run of the folder."""


def choose_run(named: str | None, default: str, last: str | None) -> RunChoice:
    """Returns the run that the user named, otherwise the last one of the folder, otherwise ``default``."""
    if last is None or named == last:
        return RunChoice(named or default, None)
    if named is None:
        return RunChoice(last, f"Continuing run {last}, the last one on this folder; --run NAME starts another.")
    return RunChoice(
        named,
        f"The last run on this folder was {last}; this start is of run {named}. The records, versions and checkpoints "
        f"of {last} remain, and --run {last} continues it.",
    )


def with_run_of_folder(settings: Settings) -> tuple[Settings, str | None]:
    """Returns ``settings`` with the run to start, and what to tell the user (:class:`RunChoice`).

    Raises :class:`StackError` if the file in the data folder is damaged.
    """
    named = settings.run if "run" in settings.model_fields_set else None
    chosen = choose_run(named, settings.run, last_run(settings.data))
    return settings.model_copy(update={"run": chosen.run}), chosen.note


def last_run(data: Path) -> str | None:
    """Returns the run of the last stack on ``data``; ``None`` if there was none.

    Raises :class:`StackError` if the file with its name is damaged.
    """
    file = _file(data)
    try:
        with file.open("rb") as opened:
            name = opened.read(_MAX_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    try:
        return run_name(name)
    except ValueError as error:
        raise StackError(
            f"{file} should contain the name of the last run on this folder: delete it, and name the run with --run."
        ) from error


def remember_run(data: Path, run: str) -> None:
    """Write ``run`` to the data folder, atomically. Raises ``OSError``."""
    fresh = _file(data).with_suffix(".new")
    fresh.write_text(f"{run}\n")
    os.replace(fresh, _file(data))


def forget_run(data: Path) -> None:
    """Forget the run of the data folder: there was none, because its first start failed."""
    _file(data).unlink(missing_ok=True)


def _file(data: Path) -> Path:
    return data / "run"
