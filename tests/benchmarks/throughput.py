"""Events to trajectories: every contender on the same log, in interleaved rounds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any

from tests.benchmarks.cluster import Cluster, cluster
from tests.benchmarks.contender import Contender, prepared, running, sample
from tests.benchmarks.flow import pour
from tests.benchmarks.load import EVENTS_EACH, OPEN
from tests.benchmarks.peers import CONTENDERS

MARKERS_S = 30.0
"""Longest that the last transactions of a contender are waited for."""


async def _written(kafka: Cluster, output: str, expected: int) -> int:
    """Trajectories in ``output``: markers of a transaction are written a moment after its commit is confirmed."""
    deadline = monotonic() + MARKERS_S
    while (written := await kafka.committed(output)) != expected and monotonic() < deadline:  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(0.2)
    return written


async def measure(
    trajectories: int, rounds: int, say: Callable[[str], None], contenders: Sequence[Contender] = CONTENDERS
) -> dict[str, Any]:
    """``rounds`` samples of each contender by name, on a log of ``trajectories``.

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
                    one = await sample(kafka, children, partial(kafka.done, start.group), events, contender.share)
                if number == 0 and contender.writes and contender.share == 1:
                    written = await _written(kafka, start.output, events // EVENTS_EACH)
                    if written != events // EVENTS_EACH:
                        raise RuntimeError(f"{contender.title} wrote {written} of {events // EVENTS_EACH} trajectories")
                await kafka.drop(start.group)
                samples[contender.name].append(asdict(one))
                say(f"{contender.title}: {one.per_s / 1e3:.1f} k events/s, {one.per_core_s / 1e3:.1f} k a core-second")
    return {
        "events": events,
        "bytes_an_event": round(poured.bytes / events),
        "open": OPEN,
        "titles": {contender.name: contender.title for contender in contenders},
        "samples": samples,
    }
