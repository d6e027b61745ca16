"""A program that does the assembly, as separate processes, and how its speed is taken: the same for ours and peers.

Nothing is asked of a contender but to commit its offsets. How far it came is read from the broker, its CPU time from
the operating system. What comes first is not counted: joining, and the JIT's warming up. A JVM goes on getting faster
for many seconds, so where there is one, every contender has the same seconds of work before it is timed, or a third of
the log where that is sooner.
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
"""Share of what is processed that is not counted, where no seconds are given."""

TIMED = 2 / 9
"""Share of the load that is timed after seconds of warming up, times a contender's own share."""

_POLL_S = 0.05
_TICK_S = 0.01
"""What the operating system counts CPU time in."""
_STUCK_S = 90.0


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of a contender is given."""

    bootstrap: str
    """The broker's address."""
    group: str
    """Consumer group and transactional ids; names of its own topics start with it."""
    output: str
    """Topic for trajectories."""
    folder: Path
    """Its own, and empty at first."""
    member: str
    """Name of this process in the group: killed and started again it has its partitions back at once."""


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
    """Writes to our topic, as its topic cannot be chosen; asked to end, so that it leaves no transaction open there."""
    share: float = 1.0
    """How much of the load is timed. The slow ones need not take minutes, and of several processes that share the
    partitions some have nothing left to do before the end.
    """
    counted: bool = False
    """Whether it goes on to the end of the load the first time, and its trajectories are counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement."""

    count: int
    """What was processed while it was taken."""
    wall_s: float
    cpu_s: float
    """Of all its processes."""
    broker_cpu_s: float
    memory_mb: float
    """Resident, at the end."""

    @property
    def per_s(self) -> float:
        """Processed a second."""
        return self.count / self.wall_s

    @property
    def per_core_s(self) -> float:
        """Processed a second of CPU time."""
        return self.count / max(self.cpu_s, _TICK_S)

    @property
    def cores(self) -> float:
        """CPU seconds a second of all its processes and of the broker."""
        return (self.cpu_s + self.broker_cpu_s) / self.wall_s

    @property
    def broker_s_per_million(self) -> float:
        """The broker's CPU seconds for a million."""
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
    """The processes of ``contender``; ended at the end."""
    with ExitStack() as stack:
        children = []
        for number in range(contender.processes):
            member = replace(start, member=f"{start.group}-{number}")
            child = Child(contender.command(member), start.folder / f"{number}.log")
            stack.callback(child.stop if contender.ours else child.kill)
            children.append(child)
        yield children


def check(children: Iterable[Child]) -> None:
    """Raise ``RuntimeError`` with the end of its log where one of ``children`` has ended."""
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
    """Take the time from ``WARM_UP`` of ``share`` of ``total`` to its end; ``done`` says how far they are.

    With ``warm_s`` the time begins once they have worked for so many seconds, or have done ``WARM_UP`` of ``total``
    where that is sooner, and ends after two ninths of ``share`` of ``total``. Raises ``RuntimeError`` where a process
    ends before, or nothing moves for a minute and a half.
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
    """``headrace worker PART`` as anybody would run it."""
    env = {
        "HEADRACE_KAFKA": start.bootstrap,
        "HEADRACE_OPTIONS": json.dumps({part: options}),
        "HEADRACE_DATA": str(start.folder),
        "HEADRACE_MEMBER": start.member,
        "HEADRACE_LOG_LEVEL": "warning",
    }
    unset = tuple(name for name in os.environ if name.startswith("HEADRACE_"))
    return Command((sys.executable, "-m", "headrace.deploy.cli", "worker", part), env, unset)
