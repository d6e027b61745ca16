"""What a sandbox is: the values, the limits, and the methods that every provider of sandboxes has.

A sandbox is a work folder in which commands run. A snapshot freezes its files (or its memory too), and any number of
sandboxes start from a snapshot. Method names follow SWE-ReX where it has the same methods; it has no snapshot or fork.

    Executed(exit_code=1, stdout=b"", stderr=b"FAILED (failures=1)\\n", outcome=Outcome.COMPLETED, ms=183.0)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from headrace.schemas.events import SnapshotKind as SnapshotKind  # part of this interface


class SandboxError(Exception):
    """A request that a sandbox cannot meet. The message says what to change."""


class ProviderUnavailable(SandboxError):
    """This machine lacks something that the provider needs; the message has the command that installs it."""


class CommandRefused(SandboxError):
    """A command that no system can start: without a program, with a NUL byte, or too long."""


class PathRefused(SandboxError):
    """A path that leaves the work folder, goes through a symbolic link, or is not a regular file."""


class FileMissing(SandboxError):
    """There is no file at the path."""


class TooLarge(SandboxError):
    """A file, or the files to start with, exceed a limit of :class:`Limits`."""


class StoreFull(SandboxError):
    """The folder of snapshots has reached a bound that its settings give."""


class SnapshotUnknown(SandboxError):
    """The provider has no such snapshot: it was removed, or belongs to another provider or store."""


class SandboxStopped(SandboxError):
    """The sandbox was stopped."""


class SnapshotUnsupported(SandboxError):
    """The provider cannot take a snapshot of this kind."""


class Outcome(StrEnum):
    """How a command ended. What a policy can bring about is an outcome and not an error."""

    COMPLETED = "completed"
    """The command ended by itself, with any exit code."""
    TIMED_OUT = "timed_out"
    """It was killed after ``wall_s``."""
    CPU_EXHAUSTED = "cpu_exhausted"
    """It was killed after ``cpu_s`` seconds of CPU time."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed a process of it at ``memory_bytes``. Known only where control groups can be written;
    elsewhere allocations fail inside the command, and its exit code is all there is."""
    TOO_MANY_PROCESSES = "too_many_processes"
    """It reached ``processes``, so that a process could not be started. Known only with control groups, as above."""
    DISK_FULL = "disk_full"
    """It was killed because what it wrote exceeds ``disk_bytes`` or ``disk_files``."""
    OUTPUT_TRUNCATED = "output_truncated"
    """It wrote more than ``output_bytes``: the rest was dropped, and at 16 times as much the command was killed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a sandbox. Which of them a provider enforces is in its column of the README."""

    wall_s: float = 30.0
    """Seconds a command may run, unless ``execute`` is given fewer."""
    cpu_s: int = 30
    """Seconds of CPU time of a process."""
    memory_bytes: int = 512 * 2**20
    """Memory of all processes of a command together; without control groups, address space of each process."""
    processes: int = 64
    """Processes and threads at the same time."""
    open_files: int = 256
    """Open files of a process."""
    file_bytes: int = 64 * 2**20
    """Size of a file that a command writes."""
    output_bytes: int = 256 * 2**10
    """Bytes kept of each of standard output and standard error."""
    read_bytes: int = 4 * 2**20
    """Largest file that ``read`` returns or ``write`` takes."""
    disk_bytes: int = 256 * 2**20
    """Bytes that a sandbox may have written since the snapshot from which it started."""
    disk_files: int = 20_000
    """Files that a sandbox may have written since then, and files to start with."""
    masked: tuple[str, ...] = ()
    """Absolute paths of files and folders that commands cannot read although their parent folder is visible, for
    example the original of a module that a task asks for."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "masked" and not value > 0:
                raise ValueError(f"limits.{field.name} is {value!r}: give a number above 0")
        for path in self.masked:
            if not path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"limits.masked contains {path!r}: give absolute paths without '..'")


@dataclass(frozen=True, slots=True)
class Executed:
    """Result of a command."""

    exit_code: int | None
    """Exit code, 128 + the signal's number if a signal ended it; ``None`` if the sandbox killed it at a limit."""
    stdout: bytes
    """The first ``limits.output_bytes`` of standard output."""
    stderr: bytes
    """The first ``limits.output_bytes`` of standard error."""
    outcome: Outcome
    """How it ended."""
    ms: float
    """Milliseconds from the call to the end."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A reference to frozen files, or files and memory. It stays valid after the process that took it."""

    id: str
    """Identifies the snapshot to its provider."""
    kind: SnapshotKind
    """What it contains."""
    sha256: str | None
    """Digest of what it contains and of its ancestors, in hexadecimal; ``None`` if the provider reports none."""
    parent: str | None
    """Id of the snapshot from which the sandbox started, or that it took before; ``None`` for the first one."""
    ms: float
    """Milliseconds that it took; of a snapshot that was looked up again, 0."""


class Sandbox(Protocol):
    """A running sandbox. Its methods run one after another, even if they are called concurrently."""

    id: str

    async def execute(
        self, command: Sequence[str], *, cwd: str = "", stdin: bytes = b"", timeout_s: float | None = None
    ) -> Executed:
        """Run ``command`` (a program and its arguments; no shell) in the folder ``cwd`` of the work folder.

        Processes that it leaves behind are killed. ``timeout_s``: fewer seconds than ``limits.wall_s``. Environment
        variables are the provider's own, none of this process; use ``env NAME=VALUE …`` for others. Raises
        :class:`CommandRefused`, and :class:`FileMissing` or :class:`PathRefused` for ``cwd``.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file, ``path`` relative to the work folder. Raises :class:`PathRefused`,
        :class:`FileMissing`, :class:`TooLarge`."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file, with its folders. Raises :class:`PathRefused`, :class:`TooLarge`."""
        ...

    async def snapshot(self, kind: SnapshotKind = SnapshotKind.FILES) -> Snapshot:
        """Freeze the present state; the sandbox continues from it. Raises :class:`SnapshotUnsupported`,
        :class:`StoreFull`, and :class:`TooLarge` if it has written more than its limits allow."""
        ...

    async def fork(self, snapshot: Snapshot, n: int) -> list["Sandbox"]:
        """Start ``n`` sandboxes from ``snapshot``, with the limits of this one."""
        ...

    async def stop(self) -> None:
        """Kill what runs and remove what is not in a snapshot. Stopping twice is allowed."""
        ...


class Provider(Protocol):
    """Makes sandboxes of one kind."""

    name: str

    async def start(self, files: Mapping[str, bytes] | Path, limits: Limits = ...) -> Sandbox:
        """Start a sandbox whose work folder has ``files``: contents by relative path, or a folder to copy (regular
        files and folders only; the modes' executable bits are kept)."""
        ...

    async def restore(self, snapshot: Snapshot, limits: Limits = ...) -> Sandbox:
        """Start a sandbox from a snapshot, also one that another process took. Raises :class:`SnapshotUnknown`."""
        ...
