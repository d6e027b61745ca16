"""How long a provider takes for each of its methods on this machine.

{"fork": Times(p50_ms=0.6, p95_ms=1.1), "first command": Times(p50_ms=24.0, p95_ms=41.0), …}
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from headrace.agents.sandbox.protocol import Limits, Provider, Sandbox, SnapshotKind

FILES: Mapping[str, bytes] = {f"package/module_{n}.py": b"VALUE = 1\n" * 40 for n in range(50)}
"""A repository of 50 small files, which sandboxes start with."""

COMMAND = ("sh", "-c", "echo done > result.txt")
"""The command that is measured: a shell that writes one file."""


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of one method."""

    p50_ms: float
    """The median."""
    p95_ms: float
    """The 95th percentile."""

    @classmethod
    def of(cls, milliseconds: list[float]) -> "Times":
        """Return the percentiles of at least two measurements."""
        cuts = statistics.quantiles(milliseconds, n=20, method="inclusive")
        return cls(cuts[9], cuts[18])


async def measure(provider: Provider, rounds: int, kind: SnapshotKind = SnapshotKind.FILES) -> dict[str, Times]:
    """Return the times of ``rounds`` (at least 2) of each method: start, snapshot, fork, the first command in a fork
    and the second one. One after another, without load."""
    taken: dict[str, list[float]] = {}

    def note(name: str, began: float) -> None:
        taken.setdefault(name, []).append(1000 * (perf_counter() - began))

    for number in range(rounds):
        began = perf_counter()
        sandbox = await provider.start(FILES, Limits())
        note("start", began)
        await sandbox.write("round.txt", f"{number}".encode())
        began = perf_counter()
        snapshot = await sandbox.snapshot(kind)
        note("snapshot", began)
        began = perf_counter()
        (fork,) = await sandbox.fork(snapshot, 1)
        note("fork", began)
        for name in ("first command", "second command"):
            began = perf_counter()
            await _run(fork)
            note(name, began)
        await fork.stop()
        await sandbox.stop()
    return {name: Times.of(values) for name, values in taken.items()}


async def _run(sandbox: Sandbox) -> None:
    result = await sandbox.execute(COMMAND)
    if result.exit_code != 0:
        raise RuntimeError(f"the measured command ended with {result}")
