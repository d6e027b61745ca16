"""The state of a running stack, kept in its data folder for other shells: ``stack.json`` and ``stack.lock``.

The supervisor holds the lock until it exits, however it exits; ``stack.json`` alone does not prove that a stack runs.
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
    """The state of a part."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A part of a running stack."""

    state: State
    """Its state; ``external`` if an external address replaces it."""
    address: str | None
    """The address it listens on, if any."""
    pid: int | None
    """Process id of the part itself."""
    restarts: int
    """Number of restarts after it died."""
    ready_s: float | None
    """Seconds from its last start until it was ready."""
    log: str | None
    """The file with its output."""
    metrics: str | None = None
    """The address at which it answers Prometheus, if any."""


@dataclass(frozen=True, slots=True)
class StackState:
    """The content of ``stack.json``."""

    pid: int
    """Process id of the supervisor."""
    run: str
    """Training run."""
    data: str
    """Its data folder."""
    store_url: str
    """Object store of the weights."""
    ready: bool
    """Whether every part was ready once."""
    parts: dict[str, PartStatus]
    """Parts by name."""

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the parts that have one, by name."""
        return {name: part.address for name, part in self.parts.items() if part.address is not None}

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON of ``stack.json`` and ``headrace status --json``: addresses have no passwords, and are also
        at the top level under their process's name; ``null`` if the stack does not include the process."""
        fields = asdict(self)
        parts = fields.pop("parts")
        none: dict[str, str | None] = {process.name: None for process in stack_processes() if process.url}
        shown: dict[str, Any] = redacted_values({**fields, **none, **self.addresses, "parts": parts})
        return shown


@contextmanager
def locked(data: Path) -> Iterator[None]:
    """Lock the data folder for one stack; raises :class:`StackError` if another stack has locked it."""
    make_folder(data)
    with _opened(_lock_file(data)) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(
                f"A stack already runs on {data}: `{command_on('status', data)}` shows it, "
                f"`{command_on('down', data)}` stops it, --data (HEADRACE_DATA) selects another folder."
            ) from error
        # A stack that was killed leaves its file behind, which would pass for this stack's state.
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
        raise StackError(f"{data} (HEADRACE_DATA, --data) cannot be read: {error.strerror}.") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_state(data: Path, state: StackState) -> None:
    """Replace ``stack.json`` atomically."""
    text = json.dumps(state.as_json(), indent=1) + "\n"
    fresh = _state_file(data).with_suffix(".new")
    try:
        fresh.write_text(text)
        os.replace(fresh, _state_file(data))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # On a full disk the file is overwritten in place, in its existing blocks; readers of a partial file retry.
        with _state_file(data).open("r+") as file:
            file.write(text)
            file.truncate()


def read_state(data: Path) -> StackState:
    """Returns the state of the stack that runs on ``data``; raises :class:`StackError` if none does."""
    raw = _raw_state(data) if is_locked(data) else None
    if raw is None:
        raise StackError(
            f"No stack runs on {data}: `headrace up` starts one, --data (HEADRACE_DATA) selects another folder."
        )
    parts = {name: PartStatus(**part | {"state": State(part["state"])}) for name, part in raw["parts"].items()}
    fields = {name: raw[name] for name in ("pid", "run", "data", "store_url", "ready")}
    return StackState(**fields, parts=parts)


def _raw_state(data: Path) -> Any:
    """Returns the content of ``stack.json``; ``None`` if it does not exist: the stack is just starting or stopping."""
    for _ in range(20):
        try:
            return json.loads(_state_file(data).read_text())
        except FileNotFoundError:
            return None
        except ValueError:  # The file is partly written.
            time.sleep(0.05)
    return None


def address_of(name: str, given: str | None = None, data: str | None = None) -> str:
    """Returns the address of ``name`` (kafka, clickhouse, vllm, dashboard): ``given``, else the setting, else that of
    the running stack.

    Raises :class:`StackError` if there is none.
    """
    settings = load_settings(data=data)
    remember_secrets(given)
    known: str | None = given or getattr(settings, name, None)
    if known is None and is_locked(settings.data):
        known = read_state(settings.data).addresses.get(name)
        if known is not None and HIDDEN in known:
            raise StackError(
                f"The {name} of the stack on {settings.data} is at {known}, and its password is not stored: set "
                f"{PREFIX}{name.upper()} here to the value with which the stack was started."
            )
    if known is None:
        raise StackError(
            f"No address of {name} is known: start a stack with `headrace up` (and specify its folder with --data, if "
            f"it is not {settings.data}), or set {PREFIX}{name.upper()}."
        )
    return known


def _opened(lock: Path) -> TextIO:
    try:
        return lock.open("a")
    except OSError as error:
        raise StackError(f"{lock} cannot be written: {error.strerror}. --data selects another folder.") from error


def _state_file(data: Path) -> Path:
    return data / "stack.json"


def _lock_file(data: Path) -> Path:
    return data / "stack.lock"
