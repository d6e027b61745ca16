"""Sandboxes on a service's machines: the protocol on top of what every service offers, a shell and files.

A service runs one shell command and returns its text. Everything else is built from that: outputs are cut on the
machine, so that endless output is not transferred, and come back in base64, because services return text.

    "aGVsbG8K\\n\\n0\\n"        standard output, standard error, exit code
"""

import asyncio
import base64
import binascii
import io
import os
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Protocol

from headrace.agents.sandbox.command import check_command
from headrace.agents.sandbox.paths import initial_files, parts_of
from headrace.agents.sandbox.protocol import (
    Executed,
    FileMissing,
    Limits,
    Outcome,
    PathRefused,
    Sandbox,
    SandboxError,
    SandboxStopped,
    Snapshot,
    SnapshotKind,
    SnapshotUnsupported,
    TooLarge,
)

GRACE_S = 30.0
"""Seconds that a service may take beside the command itself."""

RUN = """\
t=$(mktemp -d) || exit 1
cd -- "$1" || exit 1
timeout -s KILL "$2" sh -c 'ulimit -f "$0"; exec "$@"' "$4" "${@:6}" <"$5" >"$t/o" 2>"$t/e"
c=$?
head -c "$3" "$t/o" | base64 | tr -d '\\n'; echo
head -c "$3" "$t/e" | base64 | tr -d '\\n'; echo
rm -rf "$t"
echo "$c"
"""
"""Runs a command. Arguments: folder, seconds, bytes of output, blocks of 512 bytes of a file, input, the command."""

CHECK = """\
if test -L "$1"; then echo refused; elif ! test -e "$1"; then echo missing; \
elif ! test -f "$1"; then echo refused; elif test "$(stat -c %s -- "$1")" -gt "$2"; then echo large; else echo file; fi
"""
"""Says what is at a path. Arguments: path, bytes."""

_DEFAULT_LIMITS = Limits()


class Machine(Protocol):
    """A machine of a service."""

    id: str
    work: str
    """Absolute path of the work folder."""

    async def run(self, command: str, timeout_s: float) -> str:
        """Run a shell command and return its standard output. Raises :class:`SandboxError` if the service fails."""
        ...

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file, with its folders; ``path`` is absolute."""
        ...

    async def download(self, path: str) -> bytes:
        """Return a file's content; ``path`` is absolute."""
        ...

    async def snapshot(self, kind: SnapshotKind) -> str:
        """Freeze the machine and return the service's id of the snapshot."""
        ...

    async def stop(self) -> None:
        """Remove the machine, for which the service charges otherwise."""
        ...


class Service(Protocol):
    """A service that lends machines."""

    name: str
    kinds: frozenset[SnapshotKind]
    """Snapshots that it can take."""

    async def create(self, snapshot_id: str | None) -> Machine:
        """Start a machine, from a snapshot if given, without a network."""
        ...


class Remote:
    """The provider on top of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.name = service.name

    async def start(self, files: Mapping[str, bytes] | Path, limits: Limits = _DEFAULT_LIMITS) -> "RemoteSandbox":
        """Start a machine and upload ``files`` as one archive."""
        archive = await asyncio.to_thread(_archive, files, limits)
        sandbox = await self._create(None, limits)
        try:
            await sandbox.fill(archive)
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    async def restore(self, snapshot: Snapshot, limits: Limits = _DEFAULT_LIMITS) -> "RemoteSandbox":
        """Start a machine from a snapshot; the service says if it has none of this id."""
        return await self._create(snapshot.id, limits)

    async def _create(self, snapshot_id: str | None, limits: Limits) -> "RemoteSandbox":
        if limits.masked:
            raise PathRefused(f"{self.name} cannot hide files (limits.masked): make an image without them")
        return RemoteSandbox(self, await self.service.create(snapshot_id), limits, snapshot_id)


class RemoteSandbox:
    """A machine of a service. Enforced are ``wall_s``, ``output_bytes``, ``file_bytes`` and ``read_bytes``; memory,
    disk and processes are those of the machine."""

    def __init__(self, provider: Remote, machine: Machine, limits: Limits, parent: str | None) -> None:
        self.id = machine.id
        self.limits = limits
        self._provider = provider
        self._machine = machine
        self._parent = parent
        self._lock = asyncio.Lock()
        self._is_stopped = False

    def _check(self) -> None:
        if self._is_stopped:
            raise SandboxStopped(f"the sandbox {self.id} was stopped")

    async def fill(self, archive: bytes) -> None:
        """Unpack a tar archive into the work folder."""
        place = f"/tmp/headrace-{os.urandom(8).hex()}.tar"
        await self._machine.upload(place, archive)
        script = 'mkdir -p -- "$1" && tar -xf "$2" -C "$1" && rm -- "$2" && echo done'
        printed = await self._script(script, [self._machine.work, place], self.limits.wall_s)
        if printed.strip() != "done":
            raise SandboxError(f"{self._provider.name} did not unpack the files to start with: {printed[-300:]!r}")

    async def _script(self, script: str, arguments: Sequence[str], timeout_s: float) -> str:
        command = shlex.join(["bash", "-c", script, "headrace", *arguments])
        return await self._machine.run(command, timeout_s + GRACE_S)

    async def execute(
        self, command: Sequence[str], *, cwd: str = "", stdin: bytes = b"", timeout_s: float | None = None
    ) -> Executed:
        """Run ``command``. Processes that leave its process group may keep running."""
        check_command(command)
        folder = "/".join([self._machine.work, *parts_of(cwd, folder=True)])
        limits = self.limits
        wall_s = limits.wall_s if timeout_s is None else min(timeout_s, limits.wall_s)
        async with self._lock:
            self._check()
            typed = "/dev/null"
            if stdin:
                typed = f"/tmp/headrace-{os.urandom(8).hex()}"
                await self._machine.upload(typed, stdin)
            began = perf_counter()
            bounds = [f"{wall_s:.3f}", str(limits.output_bytes + 1), str(max(1, limits.file_bytes // 512))]
            printed = await self._script(RUN, [folder, *bounds, typed, *command], wall_s)
            ms = 1000 * (perf_counter() - began)
        result = _parsed(printed, limits.output_bytes, ms)
        if result.exit_code == 128 + 9 and ms >= 1000 * wall_s:
            return replace(result, exit_code=None, outcome=Outcome.TIMED_OUT)
        return result

    async def read(self, path: str) -> bytes:
        """Return the content of a regular file. (Links on the way are followed on the machine.)"""
        place = "/".join([self._machine.work, *parts_of(path)])
        async with self._lock:
            self._check()
            found = (await self._script(CHECK, [place, str(self.limits.read_bytes)], self.limits.wall_s)).strip()
            if found == "missing":
                raise FileMissing(f"there is no file {path!r}")
            if found == "large":
                raise TooLarge(f"{path!r} has more than {self.limits.read_bytes} bytes: raise limits.read_bytes")
            if found != "file":
                raise PathRefused(f"{path!r} is not a regular file")
            return await self._machine.download(place)

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file."""
        place = "/".join([self._machine.work, *parts_of(path)])
        if len(content) > self.limits.read_bytes:
            raise TooLarge(f"{len(content)} bytes for {path!r}: raise limits.read_bytes")
        async with self._lock:
            self._check()
            remove = 'if test -d "$1"; then echo folder; else rm -f -- "$1" && echo done; fi'
            if (await self._script(remove, [place], self.limits.wall_s)).strip() != "done":
                raise PathRefused(f"{path!r} is a folder, or cannot be replaced")
            await self._machine.upload(place, content)

    async def snapshot(self, kind: SnapshotKind = SnapshotKind.FILES) -> Snapshot:
        """Freeze the machine by the service's own means, which report no digest."""
        if kind not in self._provider.service.kinds:
            kinds = ", ".join(sorted(self._provider.service.kinds))
            raise SnapshotUnsupported(f"{self._provider.name} takes snapshots of {kinds}, not of {kind}")
        async with self._lock:
            self._check()
            began = perf_counter()
            taken = await self._machine.snapshot(kind)
            parent, self._parent = self._parent, taken
            return Snapshot(taken, kind, None, parent, 1000 * (perf_counter() - began))

    async def fork(self, snapshot: Snapshot, n: int) -> list[Sandbox]:
        """Start ``n`` machines from ``snapshot``. If one cannot be started, the others are stopped again."""
        started = await asyncio.gather(
            *(self._provider.restore(snapshot, self.limits) for _ in range(n)), return_exceptions=True
        )
        forks: list[Sandbox] = [each for each in started if not isinstance(each, BaseException)]
        failed = [each for each in started if isinstance(each, BaseException)]
        if failed:
            await asyncio.gather(*(each.stop() for each in forks))
            raise failed[0]
        return forks

    async def stop(self) -> None:
        """Remove the machine."""
        async with self._lock:
            if not self._is_stopped:
                self._is_stopped = True
                await self._machine.stop()


def _parsed(printed: str, most: int, ms: float) -> Executed:
    lines = printed.split("\n")
    try:
        out, err = (base64.b64decode(line, validate=True) for line in lines[:2])
        code = int(lines[2])
    except (ValueError, IndexError, binascii.Error):
        raise SandboxError(f"the machine did not run the command; it printed {printed[:300]!r}") from None
    is_cut = max(len(out), len(err)) > most
    outcome = Outcome.OUTPUT_TRUNCATED if is_cut else Outcome.COMPLETED
    return Executed(code, out[:most], err[:most], outcome, ms)


def _archive(files: Mapping[str, bytes] | Path, limits: Limits) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for parts, content, is_executable in initial_files(files, limits):
            member = tarfile.TarInfo("/".join(parts))
            member.size = len(content)
            member.mode = 0o755 if is_executable else 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
