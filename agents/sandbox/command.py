"""Runs one command to its end or to a limit, and says which: the part that the local providers share.

prlimit --cpu=30 --nofile=256 … -- bwrap … -- python3 -m unittest
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter

from headrace.agents.sandbox.protocol import CommandRefused, Executed, Limits, Outcome

KILLED_AT = 16
"""A command is killed when it has written this many times ``limits.output_bytes``."""

POLL_S = 0.05
"""First interval in seconds between two looks at the disk; it doubles up to :data:`SLOWEST_POLL_S`."""

SLOWEST_POLL_S = 0.4

DRAIN_S = 2.0
"""Seconds to wait for the pipes to close once the command and its process group are dead."""

CPU_EXIT = 128 + signal.SIGXCPU
"""Exit code of a command that exceeded its CPU time, as shells and bubblewrap report it."""


MAX_COMMAND_BYTES = 120_000
"""Longest command with its arguments; Linux takes 128 KiB for one argument."""


def check_command(command: Sequence[str]) -> None:
    """Raise :class:`CommandRefused` unless ``command`` can be started."""
    try:
        total = sum(len(part.encode()) + 1 for part in command)
    except UnicodeEncodeError:
        raise CommandRefused("the command is not valid Unicode") from None
    if not command or not command[0]:
        raise CommandRefused("the command is empty: give a program and its arguments")
    if any("\0" in part for part in command):
        raise CommandRefused("the command contains a NUL byte")
    if total > MAX_COMMAND_BYTES:
        raise CommandRefused(
            f"the command has {total} bytes, more than {MAX_COMMAND_BYTES}: write a file, or use stdin"
        )


def resource_limits(limits: Limits, *, has_groups: bool) -> list[str]:
    """Return the ``prlimit`` command (util-linux) in front of the command. ``has_groups``: whether control groups bound
    memory and processes; otherwise the address space of each process and the user's processes are bounded here."""
    prefix = [
        "prlimit",
        f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}",
        f"--nofile={limits.open_files}",
        f"--fsize={limits.file_bytes}",
        "--core=0",
    ]
    if not has_groups:
        prefix += [f"--nproc={limits.processes}", f"--as={limits.memory_bytes}"]
    return [*prefix, "--"]


class _Running(asyncio.SubprocessProtocol):
    """A process, and what is kept of its two outputs. (``asyncio``'s own streams report the end of a process only when
    its pipes are closed, which a process that it left behind can delay.)"""

    def __init__(self, most: int) -> None:
        loop = asyncio.get_running_loop()
        self.most = most
        self.kept = {1: bytearray(), 2: bytearray()}
        self.totals = {1: 0, 2: 0}
        self.killed: Outcome | None = None
        self.pid = 0
        self.exited = loop.create_future()
        self.closed = loop.create_future()
        self._open_pipes = {1, 2}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.pid = transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.totals[fd] += len(data)
        self.kept[fd] += data[: self.most - len(self.kept[fd])]
        if self.totals[fd] > KILLED_AT * self.most:
            self.kill(Outcome.OUTPUT_TRUNCATED)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes and not self.closed.done():
            self.closed.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def kill(self, why: Outcome) -> None:
        """Kill the process group because of a limit."""
        self.killed = self.killed or why
        self.end()

    def end(self) -> None:
        """Kill what is left of the process group."""
        with contextlib.suppress(ProcessLookupError):  # nothing is left
            os.killpg(self.pid, signal.SIGKILL)


async def run_command(
    command: Sequence[str],
    limits: Limits,
    *,
    cwd: str,
    environment: Mapping[str, str],
    stdin: bytes = b"",
    timeout_s: float | None = None,
    is_over_disk: Callable[[], bool] = lambda: False,
    at_end: Callable[[], Outcome | None] = lambda: None,
    pass_fds: Sequence[int] = (),
    settle: Callable[[], Awaitable[None]] | None = None,
) -> Executed:
    """Run ``command`` in ``cwd`` with exactly ``environment``. The process gets its own group, which is killed at a
    limit, at the end and on cancellation. ``is_over_disk`` runs in a thread, repeatedly; ``at_end`` tells what control
    groups have counted; ``settle`` waits for processes outside the group that end with it. Raises :class:`OSError` if
    the command cannot be started."""
    wall_s = limits.wall_s if timeout_s is None else min(timeout_s, limits.wall_s)
    began = perf_counter()
    transport, running = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Running(limits.output_bytes),
        *command,
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        umask=0o022,  # as in a new shell: modes of files, and so digests, are the same in every process
        pass_fds=pass_fds,
    )
    watcher = asyncio.ensure_future(_watch_disk(is_over_disk, lambda: running.kill(Outcome.DISK_FULL)))
    try:
        if stdin:
            pipe = transport.get_pipe_transport(0)
            assert isinstance(pipe, asyncio.WriteTransport)
            pipe.write(stdin)
            pipe.close()  # once it is written; a command that does not read it closes it by ending
        try:
            async with asyncio.timeout(wall_s):
                await asyncio.shield(running.exited)
        except TimeoutError:
            running.kill(Outcome.TIMED_OUT)
            await running.exited
        running.end()  # what the command left behind in its group
        with contextlib.suppress(TimeoutError):  # a process that left the group may hold a pipe open
            async with asyncio.timeout(DRAIN_S):
                await running.closed
    finally:
        running.end()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        if settle is not None:
            await settle()
        transport.close()
    outcome = running.killed or at_end()
    code = transport.get_returncode()
    if code is not None and code < 0:
        code = 128 - code
    if outcome is None and code == CPU_EXIT:
        outcome = Outcome.CPU_EXHAUSTED
    if outcome is None and max(running.totals.values()) > limits.output_bytes:
        outcome = Outcome.OUTPUT_TRUNCATED
    return Executed(
        exit_code=code if running.killed is None else None,
        stdout=bytes(running.kept[1]),
        stderr=bytes(running.kept[2]),
        outcome=outcome or Outcome.COMPLETED,
        ms=1000 * (perf_counter() - began),
    )


async def _watch_disk(is_over: Callable[[], bool], kill: Callable[[], None]) -> None:
    interval = POLL_S
    while True:
        await asyncio.sleep(interval)
        if await asyncio.to_thread(is_over):
            kill()
        interval = min(2 * interval, SLOWEST_POLL_S)
