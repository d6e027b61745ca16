"""Replay speed: ``headrace replay`` over the whole log, from events and from trajectories, into side topics."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.benchmarks.cluster import cluster
from tests.benchmarks.commands import timed
from tests.benchmarks.flow import pour
from tests.benchmarks.load import EVENTS_EACH
from tests.benchmarks.workers import fill

TITLES = {
    "events": "from events: assemble, score and group again",
    "trajectories": "from trajectories: score and group again",
}


async def measure(trajectories: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """``rounds`` samples of each stage by name, in trajectories. Each includes Python's start."""
    samples: dict[str, list[dict[str, Any]]] = {stage: [] for stage in TITLES}
    async with cluster() as kafka:
        await pour(kafka.bootstrap, trajectories)
        await fill(kafka.bootstrap, trajectories)
        for number in range(rounds):
            for stage, title in TITLES.items():
                name = f"{stage}-{number}"
                one = await timed(kafka, trajectories, "replay", name, "--stage", stage)
                await kafka.drop(f"replay.{name}.")
                samples[stage].append(asdict(one))
                say(f"{title}: {one.per_s:.0f} trajectories/s, {one.per_core_s:.0f} a core-second")
    return {"trajectories": trajectories, "events_each": EVENTS_EACH, "titles": TITLES, "samples": samples}
