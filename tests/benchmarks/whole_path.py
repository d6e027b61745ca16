"""Processor time per event on the whole path: event → trajectory → reward → training record, and into ClickHouse.

The processes are those of ``headrace up --without vllm,trainer,follower``, with their default settings. They work on a
backlog, in large batches: the figure is the cost per event and not the cost of waiting.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from headrace.schemas.events import ClockTicked
from tests.benchmarks.cluster import cpu_s, memory_mb
from tests.benchmarks.contender import check
from tests.benchmarks.flow import SIZE
from tests.benchmarks.load import EVENTS_EACH, OPEN
from tests.benchmarks.path import RunningPath, flow, path
from tests.benchmarks.workers import stage

TITLES = {
    "assemble": "assemble",
    "score+group": "score and group",
    "sink": "sink",
    "clickhouse": "ClickHouse, with its merges",
    "broker": "Kafka's broker",
}
FIRST = 4 * OPEN
"""Trajectories that pass before anything is counted: by then every process has imported everything and works."""

_STUCK_S = 120.0
_POLL_S = 0.2


async def measure(
    trajectories: int, rounds: int, say: Callable[[str], None], *, before: Path | None = None
) -> dict[str, Any]:
    """``rounds`` samples: microseconds of processor time per event, by process. ``before``: a checkout that is
    measured, too, in turns with this one.

    Raises ``RuntimeError`` if a process ends, or nothing moves for two minutes.
    """
    samples: dict[str, list[dict[str, Any]]] = {"samples": []} | ({"before": []} if before else {})
    for _ in range(rounds):
        for whose, taken in samples.items():
            one = await _sample(trajectories, before if whose == "before" else None)
            taken.append(one)
            each = ", ".join(f"{name} {us:.1f}" for name, us in one["us_per_event"].items())
            generator = f"the generator {one['generator_us']:.1f}"
            say(f"{'before: ' if whose == 'before' else ''}{each}, {generator} µs per event")
    return {"trajectories": trajectories, "titles": TITLES, **samples}


def without_broker(sample: dict[str, Any]) -> float:
    """Microseconds of processor time per event of all processes but the broker."""
    return float(sum(us for name, us in sample["us_per_event"].items() if name != "broker"))


def generators(sample: dict[str, Any]) -> float:
    """The same in units of the generator's processor time. It does the same work in every sample, so the unit has the
    speed that the machine had during it. Another checkout has its own generator: compare the two only if neither the
    generator nor the producer that it uses has changed in between.
    """
    return without_broker(sample) / float(sample["generator_us"])


async def _sample(trajectories: int, checkout: Path | None) -> dict[str, Any]:
    async with path(stage("score+group"), checkout=checkout) as running:
        await _through(running, FIRST, checkout)
        before, begun = {name: cpu_s(family) for name, family in running.processes.items()}, time.monotonic()
        generator_s = await _through(running, trajectories, checkout)
        wall_s = time.monotonic() - begun
        await _merged(running.processes["clickhouse"])
        events = trajectories * EVENTS_EACH
        return {
            "us_per_event": {
                name: (cpu_s(family) - before[name]) / events * 1e6 for name, family in running.processes.items()
            },
            "generator_us": generator_s / events * 1e6,
            "memory_mb": {name: memory_mb(family) for name, family in running.processes.items()},
            "wall_s": wall_s,
        }


async def _through(running: RunningPath, trajectories: int, checkout: Path | None) -> float:
    """Write ``trajectories``, and wait until they are training records and rows; the generator's processor time."""
    # Ticks are rows, too, and transaction markers have offsets: only agents' events are counted.
    count = f"SELECT count() FROM events WHERE type != '{ClockTicked.TYPE}'"
    before = int(running.client.command(count))
    poured = await flow(running.kafka, None, trajectories // SIZE * SIZE, checkout=checkout)
    await running.training.until(set(poured["ended_ms"]), running.children)
    moved_at, seen, written = time.monotonic(), -1, before + poured["events"]
    while (rows := int(running.client.command(count))) < written:
        check(running.children)
        if rows > seen:
            moved_at, seen = time.monotonic(), rows
        elif time.monotonic() > moved_at + _STUCK_S:
            raise RuntimeError(f"ClickHouse has {rows} of {written} events, and no more arrive")
        await asyncio.sleep(_POLL_S)
    return float(poured["cpu_s"])


async def _merged(server: list[psutil.Process]) -> None:
    """Wait until ClickHouse's merges in the background have ended: below a twentieth of a core."""
    while True:
        before = cpu_s(server)
        await asyncio.sleep(2.0)
        if cpu_s(server) - before < 0.1:
            return


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if sys.argv[1:] else 20_000, 1, print))
