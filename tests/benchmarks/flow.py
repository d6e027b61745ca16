"""Trajectories as in production: a constant number open, each at another event; at full speed or at a rate.

    poured = await pour(bootstrap, trajectories=36_000)
    python -m tests.benchmarks.flow BOOTSTRAP --trajectories 30000 --rate 20000 > ended.json

At a rate the generator is open-loop: an event carries the time at which it was due, so that a system that makes the
generator wait is charged for the waiting.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.schemas.envelope import ID, SUBJECT, Headers
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.topics import EVENTS, PARTITIONS
from tests.benchmarks.load import EVENTS_EACH, OPEN, history

SIZE = 8
"""Members of a group; half of them succeed, so that every group carries a gradient."""

_TICK_S = 0.002


@dataclass(frozen=True, slots=True)
class Poured:
    """Summary of what was written."""

    events: int
    bytes: int
    """Payloads, uncompressed."""
    ended_ms: dict[str, int]
    """Group id → when the last event of its last member was due, Unix milliseconds."""
    late_ms: float
    """Largest delay of the generator itself."""


def schedule(count: int, steps: int, open_at_a_time: int) -> Iterator[tuple[int, int]]:
    """(number, step) of ``count`` items of ``steps`` steps each in log order: they start at even intervals and
    continue evenly until each has taken its last step.
    """
    gap = max(1, open_at_a_time // (steps - 1))
    for begun in range(count + gap * (steps - 1)):
        for step in range(steps):
            number = begun - gap * step
            if 0 <= number < count:
                yield number, step


class _Template:
    """The events of one trajectory, encoded once: only ids, groups and outcomes differ."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._messages = history("template")

    def group(self, trajectory: int) -> str:
        """The group of ``trajectory``."""
        return f"{self._run}-{trajectory // SIZE}"

    def event(self, trajectory: int, event: int) -> tuple[bytes, bytes, Headers]:
        """Key, value and headers."""
        message, name = self._messages[event], f"{self._run}-{trajectory}".encode()
        value = message.value
        if event == 0:
            value = value.replace(b'"group_id":"g"', b'"group_id":"%s"' % self.group(trajectory).encode())
        elif event == EVENTS_EACH - 1 and trajectory % 2:
            value = value.replace(b'"outcome":1.0', b'"outcome":0.0')
        own = {ID: uuid7().encode(), SUBJECT: name}
        return name, value, [(header, own.get(header, content)) for header, content in message.headers]


async def pour(bootstrap: str, trajectories: int, *, rate: float | None = None) -> Poured:
    """Write ``trajectories``, at ``rate`` events per second or as fast as the broker accepts them."""
    template, ended_ms, late_s, count, size = _Template(f"{time.time_ns()}"), {}, 0.0, 0, 0
    async with open_producer(bootstrap) as producer:
        begin = time.time()
        for trajectory, event in schedule(trajectories, EVENTS_EACH, OPEN * PARTITIONS):
            due = begin + count / rate if rate else time.time()
            if due > time.time():
                await asyncio.sleep(max(_TICK_S, due - time.time()))
            late_s = max(late_s, time.time() - due)
            key, value, headers = template.event(trajectory, event)
            await producer.send(
                EVENTS.name,
                key=key,
                value=value,
                headers=headers,
                partition=trajectory % PARTITIONS,
                timestamp_ms=round(due * 1000),
            )
            count, size = count + 1, size + len(value)
            if event == EVENTS_EACH - 1:
                ended_ms[template.group(trajectory)] = round(due * 1000)
        await producer.flush()
    return Poured(count, size, ended_ms, late_s * 1000)


def main() -> None:
    """Write at a rate; print a summary as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bootstrap")
    parser.add_argument("--trajectories", type=int, required=True)
    parser.add_argument("--rate", type=float, help="events per second; default: as fast as possible")
    options = parser.parse_args()
    poured = asyncio.run(pour(options.bootstrap, options.trajectories, rate=options.rate))
    print(json.dumps({"events": poured.events, "ended_ms": poured.ended_ms, "late_ms": poured.late_ms}))


if __name__ == "__main__":
    main()
