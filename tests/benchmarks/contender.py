"""A program that does the assembly, in separate processes, and how its speed is measured: the same for ours and peers.

A contender only has to commit its offsets. Its progress is read from the broker, its CPU time from the operating
system. Joining and the JIT's warm-up are not counted. A JVM gets faster for many seconds, so if there is one, every
contender works for the same number of seconds before it is timed, or for a third of the log if that is sooner.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time_ns
from typing import Any

import psutil

from headrace.deploy.system.children import Child, Command, end_of
from tests.benchmarks.cluster import Cluster, cpu_s, memory_mb

WARM_UP = 1 / 3
"""Share of the work that is not counted, if no seconds are given."""

TIMED = 2 / 9
"""Share of the load that is timed after a warm-up in seconds, times a contender's own share."""

_POLL_S = 0.05
_TICK_S = 0.01
"""Unit in which the operating system counts CPU time."""
_STUCK_S = 90.0


@dataclass(frozen=True, slots=True)
class Start:
    """Settings of one start of a contender."""

    bootstrap: str
    """The broker's address."""
    group: str
    """Consumer group and transactional ids; names of its own topics start with it."""
    output: str
    """Topic for trajectories."""
    folder: Path
    """Its own folder, initially empty."""
    member: str
    """Static member ID of this process: after a kill and restart it gets its partitions back immediately."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the table."""

    name: str
    """For the command line and the raw figures."""
    title: str
    """For the reader."""
    command: Callable[[Start], Command]
    """The program of one process; builds what must be built."""
    processes: int = 1
    """How many of them share the partitions."""
    writes: bool = True
    """Whether it writes trajectories: a bare loop does not."""
    ours: bool = False
    """Whether it writes to our fixed topic; it is then terminated gracefully, to leave no open transaction there."""
    share: float = 1.0
    """Share of the load that is timed. Slow contenders need not take minutes, and of several processes that share the
    partitions some run out of work before the end.
    """
    counted: bool = False
    """Whether it continues to the end of the load the first time, and its trajectories are counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    count: int
    """Records processed during the measurement."""
    wall_s: float
    cpu_s: float
    """CPU seconds of all its processes."""
    broker_cpu_s: float
    memory_mb: float
    """Resident, at the end."""

    @property
    def per_s(self) -> float:
        """Records processed per second."""
        return self.count / self.wall_s

    @property
    def per_core_s(self) -> float:
        """Records processed per CPU second."""
        return self.count / max(self.cpu_s, _TICK_S)

    @property
    def cores(self) -> float:
        """CPU seconds per second of all its processes and the broker."""
        return (self.cpu_s + self.broker_cpu_s) / self.wall_s

    @property
    def broker_s_per_million(self) -> float:
        """The broker's CPU seconds per million records."""
        return self.broker_cpu_s / self.count * 1e6 if self.count else 0.0


async def prepared(cluster: Cluster, contender: Contender) -> Start:
    """A new consumer group for ``contender``, and an empty topic for what it writes."""
    group = f"{contender.name}-{time_ns()}"
    folder = cluster.folder / group
    folder.mkdir()
    if contender.ours:
        await cluster.empty("trajectories")
        return Start(cluster.bootstrap, group, "trajectories", folder, group)
    output = f"{group}-trajectories"
    if contender.writes:
        await cluster.create(output)
    return Start(cluster.bootstrap, group, output, folder, group)


@contextmanager
def running(contender: Contender, start: Start) -> Iterator[list[Child]]:
    """The processes of ``contender``, terminated at the end."""
    with ExitStack() as stack:
        children = []
        for number in range(contender.processes):
            member = replace(start, member=f"{start.group}-{number}")
            child = Child(contender.command(member), start.folder / f"{number}.log")
            stack.callback(child.stop if contender.ours else child.kill)
            children.append(child)
        yield children


def check(children: Iterable[Child]) -> None:
    """Raise ``RuntimeError`` with the end of its log if one of ``children`` has ended."""
    for child in children:
        if child.poll() is not None:
            raise RuntimeError(f"a process ended with status {child.poll()}:\n{end_of(child.log, 40)}")


async def sample(
    cluster: Cluster,
    children: list[Child],
    done: Callable[[], Awaitable[int]],
    total: int,
    share: float = 1.0,
    *,
    warm_s: float | None = None,
) -> Sample:
    """Time the work from ``WARM_UP`` of ``share`` of ``total`` to the end of that share; ``done`` gives the progress.

    With ``warm_s`` the timing starts after that many seconds of work, or after ``WARM_UP`` of ``total`` if that is
    sooner, and ends after two ninths of ``share`` of ``total``. Raises ``RuntimeError`` if a process ends earlier or
    there is no progress for a minute and a half.
    """
    processes = [psutil.Process(child.pid) for child in children]

    async def reached(count: float) -> tuple[int, float, float, float]:
        moved_at, farthest = monotonic(), -1
        while (now := await done()) < count:
            check(children)
            if now > farthest:
                moved_at, farthest = monotonic(), now
            elif monotonic() > moved_at + _STUCK_S:
                raise RuntimeError(f"nothing moves at {now} of {total}:\n{end_of(children[0].log, 40)}")
            await asyncio.sleep(_POLL_S)
        return now, monotonic(), cpu_s(processes), cpu_s([cluster.broker])

    if warm_s is None:
        first, last = share * total * WARM_UP, share * total
    else:
        await reached(1)
        warm_at = monotonic() + warm_s
        while (first := await done()) < total * WARM_UP and monotonic() < warm_at:  # noqa: ASYNC110 - a broker has no event to wait for
            await asyncio.sleep(_POLL_S)
        last = min(first + share * total * TIMED, total)
    begin = await reached(first)
    end = await reached(last)
    count, wall, cpu, broker = (after - before for before, after in zip(begin, end, strict=True))
    return Sample(int(count), wall, cpu, broker, memory_mb(processes))


def worker(part: str, start: Start, options: dict[str, Any]) -> Command:
    """``headrace worker PART`` as a user would run it."""
    env = {
        "HEADRACE_KAFKA": start.bootstrap,
        "HEADRACE_OPTIONS": json.dumps({part: options}),
        "HEADRACE_DATA": str(start.folder),
        "HEADRACE_MEMBER": start.member,
        "HEADRACE_LOG_LEVEL": "warning",
    }
    unset = tuple(name for name in os.environ if name.startswith("HEADRACE_"))
    return Command((sys.executable, "-m", "headrace.deploy.cli", "worker", part), env, unset)
