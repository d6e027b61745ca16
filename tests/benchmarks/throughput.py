"""Events to trajectories: every contender on the same log, in interleaved rounds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any

from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.contender import Contender, Start, prepared, running, sample
from tests.benchmarks.flow import pour
from tests.benchmarks.load import EVENTS_EACH, OPEN
from tests.benchmarks.peers import CONTENDERS

END_S = 120.0
"""Time limit of a contender for the rest of the load, after it was timed."""

MARKERS_S = 30.0
"""Time limit for the last transactions of a contender."""


async def _count(kafka: Cluster, contender: Contender, start: Start, events: int) -> None:
    """Raises ``RuntimeError`` unless the contender writes every trajectory of ``events`` exactly once."""
    deadline, done = monotonic() + END_S, 0
    while done < events and monotonic() < deadline:
        await asyncio.sleep(0.2)
        done = await kafka.done(start.group)
    # Markers of a transaction are written a moment after its commit is confirmed.
    deadline, expected = monotonic() + MARKERS_S, events // EVENTS_EACH
    while (written := await kafka.committed(start.output)) != expected:
        if monotonic() > deadline:
            raise RuntimeError(f"{contender.title} wrote {written} of {expected} trajectories")
        await asyncio.sleep(0.2)


async def measure(
    trajectories: int,
    rounds: int,
    say: Callable[[str], None],
    contenders: Sequence[Contender] = CONTENDERS,
    *,
    warm_s: float | None = None,
) -> dict[str, Any]:
    """``rounds`` samples of each contender by name, on a log of ``trajectories``, each after ``warm_s`` of warm-up.

    Raises ``RuntimeError`` where one does not write as many trajectories as there are.
    """
    samples: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    async with cluster() as kafka:
        poured = await pour(kafka.bootstrap, trajectories)
        events = poured.events
        for number in range(rounds):
            for contender in contenders:
                start = await prepared(kafka, contender)
                with running(contender, start) as children:
                    far = partial(kafka.done, start.group)
                    one = await sample(kafka, children, far, events, contender.share, warm_s=warm_s)
                    if number == 0 and contender.counted:
                        await _count(kafka, contender, start, events)
                await kafka.drop(start.group)
                samples[contender.name].append(asdict(one))
                say(f"{contender.title}: {one.per_s / 1e3:.1f} k events/s, {one.per_core_s / 1e3:.1f} k a core-second")
    return {
        "events": events,
        "bytes_an_event": round(poured.bytes / events),
        "open": OPEN,
        "warm_s": warm_s,
        "titles": {contender.name: contender.title for contender in contenders},
        "samples": samples,
    }
