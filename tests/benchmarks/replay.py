"""Replay speed: ``headrace replay`` over the whole log, from events and from trajectories, into side topics."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any

import psutil

from headrace.deploy.system.children import Child, Command, end_of, wait_for_exit
from tests.benchmarks.cluster import Cluster, cluster, cpu_s, memory_mb
from tests.benchmarks.contender import Sample
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
                one = await _replayed(kafka, stage, name, trajectories)
                await kafka.drop(f"replay.{name}.")
                samples[stage].append(asdict(one))
                say(f"{title}: {one.per_s:.0f} trajectories/s, {one.per_core_s:.0f} a core-second")
    return {"trajectories": trajectories, "events_each": EVENTS_EACH, "titles": TITLES, "samples": samples}


async def _replayed(kafka: Cluster, stage: str, name: str, trajectories: int) -> Sample:
    """One replay of the whole log; raises ``RuntimeError`` if the command fails."""
    argv = (sys.executable, "-m", "headrace.deploy.cli", "replay", name, "--stage", stage, "--kafka", kafka.bootstrap)
    log = kafka.folder / f"replay-{name}.log"
    begun, broker = monotonic(), cpu_s([kafka.broker])
    child = Child(Command(argv), log)
    try:
        process, used, memory = psutil.Process(child.pid), 0.0, 0.0
        while child.poll() is None:
            try:
                used, memory = cpu_s([process]), max(memory, memory_mb([process]))
            except psutil.Error:  # The process ended between the two calls.
                break
            await asyncio.sleep(0.02)
        status = await wait_for_exit(child)
    finally:
        child.kill()
    if status:
        raise RuntimeError(f"the replay of {stage} ended with status {status}:\n{end_of(log, 40)}")
    return Sample(trajectories, monotonic() - begun, used, cpu_s([kafka.broker]) - broker, memory)
