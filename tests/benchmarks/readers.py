"""Commands that read the log: how long they take, and how much memory, on a log of millions of events."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from tests.benchmarks.cluster import cluster
from tests.benchmarks.commands import timed
from tests.benchmarks.contender import Contender, prepared, running
from tests.benchmarks.flow import SIZE, pour
from tests.benchmarks.load import EVENTS_EACH
from tests.benchmarks.path import Arrivals, in_background
from tests.benchmarks.peers import assembler
from tests.benchmarks.workers import stage

REPLAY = "again"
"""Name of the replay that is compared with live processing."""

COMMANDS = {
    "start": ("topics", "--help"),
    "tail": ("tail", "events", "--from", "beginning", "--limit", "3"),
    "ledger": ("ledger", "--from-start"),
    "ledger-again": ("ledger",),
    "diff": ("diff", REPLAY),
}
"""By name of the row; the first one only starts Python."""


async def measure(trajectories: int, say: Callable[[str], None]) -> dict[str, Any]:
    """One sample of each command on the log of ``trajectories`` that were assembled, scored and grouped."""
    trajectories -= trajectories % SIZE
    async with cluster() as kafka:
        poured = await pour(kafka.bootstrap, trajectories)
        with ExitStack() as started:
            chain = (Contender("assemble", "assemble", assembler, ours=True), stage("score+group"))
            children = [
                each for one in chain for each in started.enter_context(running(one, await prepared(kafka, one)))
            ]
            arrivals = Arrivals()
            async with in_background(arrivals.watch_training(kafka.bootstrap)):
                await arrivals.until(set(poured.ended_ms), children)
        await timed(kafka, trajectories, "replay", REPLAY)
        samples = {}
        for name, command in COMMANDS.items():
            samples[name] = asdict(one := await timed(kafka, trajectories, *command))
            say(f"headrace {' '.join(command)}: {one.wall_s:.1f} s, {one.memory_mb:.0f} MiB")
    titles = {name: f"`headrace {' '.join(command)}`" for name, command in COMMANDS.items()}
    return {
        "trajectories": trajectories,
        "events": trajectories * EVENTS_EACH,
        "titles": titles,
        "samples": samples,
    }
