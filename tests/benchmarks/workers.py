"""Trajectories to groups on Faust: score and group, in separate processes and both in one."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TRAINING, TRAJECTORIES
from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.contender import Contender, prepared, running, sample, worker
from tests.benchmarks.flow import SIZE, schedule
from tests.streams.attempts import attempt, trajectory_message

TITLES = {
    "score": "score, one Faust worker",
    "group": "group, one Faust worker",
    "score+group": "score and group in one Faust worker",
}

OPEN_GROUPS = 250
"""Groups that are incomplete at a time."""


async def fill(bootstrap: str, trajectories: int) -> None:
    """Groups of which half the members succeed, with a constant number of them open."""
    async with open_producer(bootstrap) as producer:
        sent = []
        for group, member in schedule(trajectories // SIZE, SIZE, OPEN_GROUPS):
            one = attempt(f"{group}-{member}", group=f"g{group}", size=SIZE, outcome=member % 2)
            sent.append(await send(producer, TRAJECTORIES, trajectory_message(one)))
        await asyncio.gather(*sent)


def stage(name: str) -> Contender:
    """The worker that runs the processors in ``name``, joined by ``+``."""

    return Contender(
        name, TITLES[name], lambda start: worker("workers", start, {"processors": name.split("+")}), writes=False
    )


async def measure(trajectories: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """``rounds`` samples of each stage by name; in trajectories.

    Faust's consumer groups have fixed names, so each round has its own broker, and both in one process another one.
    """
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in TITLES}

    async def take(kafka: Cluster, name: str) -> None:
        trained = 0

        async def done() -> int:
            # Score runs ahead of group, so for both together the mean measures progress. Both write in transactions,
            # whose markers take offsets too: progress is score's commits and the number of groups.
            nonlocal trained
            counts = []
            if "score" in name:
                counts.append(await kafka.done("headrace-score", TRAJECTORIES.name))
            if "group" in name:
                trained += sum(map(len, (await groups.getmany(timeout_ms=0)).values()))
                counts.append(trained * SIZE)
            return sum(counts) // len(counts)

        contender = stage(name)
        async with open_consumer(kafka.bootstrap) as groups:
            groups.assign(await partitions_of(groups, TRAINING))
            with running(contender, await prepared(kafka, contender)) as children:
                one = await sample(kafka, children, done, trajectories // SIZE * SIZE)
        samples[name].append(asdict(one))
        say(f"{contender.title}: {one.per_s:.0f} trajectories/s, {one.per_core_s:.0f} a core-second")

    for _ in range(rounds):
        async with cluster() as kafka:
            await fill(kafka.bootstrap, trajectories)
            await take(kafka, "score")
            await take(kafka, "group")
        async with cluster() as kafka:
            await fill(kafka.bootstrap, trajectories)
            await take(kafka, "score+group")
    return {"trajectories": trajectories, "titles": TITLES, "samples": samples}
