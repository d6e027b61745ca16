"""Latency from a group's last event to its training record and to that record's row in ClickHouse.

Assemble, score, group and the sink run in separate processes.
"""

import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.cluster import cpu_s
from tests.benchmarks.flow import SIZE, pour
from tests.benchmarks.load import EVENTS_EACH, OPEN
from tests.benchmarks.path import flow, path
from tests.benchmarks.workers import stage

FIRST = 50 * SIZE
"""Trajectories that are sent first: once their groups have arrived, every process works."""
RAMP = 4 * OPEN
"""Groups of this many trajectories at the start of the flow are not counted."""

ENDS = {"training": "training record", "rows": "row in ClickHouse"}
"""What the latency is measured to."""


async def measure(rate: float, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Latencies of all groups at ``rate`` events per second, and each process's share of a core.

    Raises ``RuntimeError`` if a group does not arrive.
    """
    async with path(stage("score"), stage("group"), watch_rows=True) as running:
        ends = {"training": running.training, "rows": running.rows}
        first = await pour(running.kafka.bootstrap, FIRST)
        for end in ends.values():
            await end.until(set(first.ended_ms), running.children)
        begin, before = time.monotonic(), {name: cpu_s(family) for name, family in running.processes.items()}
        flowed = await flow(running.kafka, rate, round(rate * seconds / EVENTS_EACH / SIZE) * SIZE + RAMP)
        for end in ends.values():
            await end.until(set(flowed["ended_ms"]), running.children)
        elapsed = time.monotonic() - begin
        used = {name: (cpu_s(family) - before[name]) / elapsed for name, family in running.processes.items()}
    counted = list(flowed["ended_ms"].items())[RAMP // SIZE :]
    latencies_s = {
        name: sorted(round((end.at_ms[group] - ended) / 1000, 4) for group, ended in counted)
        for name, end in ends.items()
    }
    medians = ", ".join(f"{ENDS[name]} {each[len(each) // 2]:.2f} s" for name, each in latencies_s.items())
    say(f"{len(counted)} groups at {rate:.0f} events/s: median {medians}")
    return {
        "rate": rate,
        "seconds": seconds,
        "generator_late_ms": flowed["late_ms"],
        "cores": used,
        "latencies_s": latencies_s,
    }
