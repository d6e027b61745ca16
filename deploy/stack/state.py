"""The state of a running stack, kept in its data folder for other shells: ``stack.json`` and ``stack.lock``.

The lock is held for as long as the supervisor lives, however it ends; the file alone proves nothing.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from headrace.deploy.configuration.settings import PREFIX, load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.system.data_folder import command_on, make_folder
from headrace.schemas.redaction import remember_secrets
from headrace.schemas.safe_text import HIDDEN, redacted_values


class State(StrEnum):
    """Where a part stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One part of a running stack."""

    state: State
    """Where it stands; ``external`` for an address that was given."""
    address: str | None
    """Where it listens, if it does."""
    pid: int | None
    """Process id of the part itself."""
    restarts: int
    """How often it was started again after it died."""
    ready_s: float | None
    """Seconds from its last start until it served."""
    log: str | None
    """Its output."""
    metrics: str | None = None
    """Where it answers Prometheus, if it does."""


@dataclass(frozen=True, slots=True)
class StackState:
    """A stack as ``stack.json`` holds it."""

    pid: int
    """The supervisor."""
    run: str
    """Training run."""
    data: str
    """Its data folder."""
    store_url: str
    """Object store of the weights."""
    ready: bool
    """Whether every part came up."""
    parts: dict[str, PartStatus]
    """By name."""

    @property
    def addresses(self) -> dict[str, str]:
        """Where those listen that somebody connects to, by name."""
        return {name: part.address for name, part in self.parts.items() if part.address is not None}

    def as_json(self) -> dict[str, Any]:
        """For ``stack.json`` and ``headrace status --json``: addresses without their passwords, at the top too, each
        under its process's name; ``null`` where the stack does without."""
        fields = asdict(self)
        parts = fields.pop("parts")
        none: dict[str, str | None] = {process.name: None for process in stack_processes() if process.url}
        shown: dict[str, Any] = redacted_values({**fields, **none, **self.addresses, "parts": parts})
        return shown


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """Hold the data folder for one stack; raises :class:`StackError` where another one has it."""
    make_folder(data)
    with _opened(_lock_file(data)) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(
                f"A stack runs on {data} already: `{command_on('status', data)}` shows it, "
                f"`{command_on('down', data)}` ends it, --data (HEADRACE_DATA) names another folder."
            ) from error
        # Left by a stack that was killed, it would pass for ours.
        _state_file(data).unlink(missing_ok=True)
        try:
            yield
        finally:
            _state_file(data).unlink(missing_ok=True)


def is_locked(data: Path) -> bool:
    """Whether a stack runs on ``data``."""
    file = _lock_file(data)
    try:
        handle = file.open()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StackError(f"{data} (HEADRACE_DATA, --data) cannot be looked into: {error.strerror}.") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_state(data: Path, state: StackState) -> None:
    """Replace ``stack.json`` in one go, so that a reader never sees half of it."""
    text = json.dumps(state.as_json(), indent=1) + "\n"
    fresh = _state_file(data).with_suffix(".new")
    try:
        fresh.write_text(text)
        os.replace(fresh, _state_file(data))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # On a full disk the blocks that the file has already are all there is: readers that see half of it look again.
        with _state_file(data).open("r+") as file:
            file.write(text)
            file.truncate()


def read_state(data: Path) -> StackState:
    """The stack that runs on ``data``; raises :class:`StackError` where none does."""
    raw = _raw_state(data) if is_locked(data) else None
    if raw is None:
        raise StackError(
            f"No stack runs on {data}: `headrace up` starts one, --data (HEADRACE_DATA) names another folder."
        )
    parts = {name: PartStatus(**part | {"state": State(part["state"])}) for name, part in raw["parts"].items()}
    fields = {name: raw[name] for name in ("pid", "run", "data", "store_url", "ready")}
    return StackState(**fields, parts=parts)


def _raw_state(data: Path) -> Any:
    """What ``stack.json`` holds; ``None`` where there is none: nothing was written yet, or it is about to be gone."""
    for _ in range(20):
        try:
            return json.loads(_state_file(data).read_text())
        except FileNotFoundError:
            return None
        except ValueError:  # half written
            time.sleep(0.05)
    return None


def address_of(name: str, given: str | None = None, data: str | None = None) -> str:
    """Address of ``name`` (kafka, clickhouse, vllm, dashboard): as given, else as set, else of the running stack.

    Raises :class:`StackError` where there is none.
    """
    settings = load_settings(data=data)
    remember_secrets(given)
    known: str | None = given or getattr(settings, name, None)
    if known is None and is_locked(settings.data):
        known = read_state(settings.data).addresses.get(name)
        if known is not None and HIDDEN in known:
            raise StackError(
                f"The {name} of the stack on {settings.data} is at {known}, and its password is written down nowhere: "
                f"set {PREFIX}{name.upper()} here as it was set there."
            )
    if known is None:
        raise StackError(
            f"No address of {name} is known: start a stack with `headrace up` (and name its folder, if it is not "
            f"{settings.data}, by --data), or set {PREFIX}{name.upper()}."
        )
    return known


def _opened(lock: Path) -> TextIO:
    try:
        return lock.open("a")
    except OSError as error:
        raise StackError(f"{lock} cannot be written: {error.strerror}. --data names another folder.") from error


def _state_file(data: Path) -> Path:
    return data / "stack.json"


def _lock_file(data: Path) -> Path:
    return data / "stack.lock"
