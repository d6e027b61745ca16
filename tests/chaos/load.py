"""The load: agents' events with all kinds of faults, from a seed. Pure: no broker is touched here.

Many trajectories at a time. Some have duplicates, neighbours in the wrong order, a gap, no start, no end, an event long
after the end, or an unreadable event; some are sent a second time as a whole.
"""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from headrace.schemas.envelope import SEQUENCE, SUBJECT, TYPE
from headrace.streams.raw import StoredRecord
from tests.streams.builders import session, with_header, without

STEPS = ("ask", "tool", "ask", "tool", "prune", "summarize", "back")
"""What happens in a trajectory, drawn evenly."""


class Sending(NamedTuple):
    """A record and when it is to be sent."""

    at_s: float
    """Seconds from the start of the load."""
    producer: int
    """Which of the producers sends it."""
    record: StoredRecord
    """Key, value and headers; Kafka assigns offset and timestamp."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Rate of events, and the shares of trajectories with each fault."""

    per_s: float
    """Events a second, about."""
    producers: int = 4
    """Number of producers: events of a trajectory may come from two of them."""
    group_size: int = 4
    """Trajectories of a group."""
    gap_s: float = 0.25
    """Mean time between two events of a trajectory."""
    late_s: float = 6.0
    """Least delay of a late event, seconds."""
    duplicated: float = 0.08
    """Every fifth event is sent twice."""
    repeated: float = 0.02
    """All events are sent again later."""
    shuffled: float = 0.15
    """Neighbours in the wrong order."""
    holed: float = 0.03
    """An event is never sent."""
    headless: float = 0.02
    """The start is never sent."""
    endless: float = 0.04
    """The end is never sent."""
    late: float = 0.04
    """An event is sent long after the others."""
    beyond: float = 0.01
    """There is an event after the end."""
    poisoned: float = 0.05
    """An event cannot be read."""
    split: float = 0.1
    """Its events come from two producers, without a common order."""
    oversize_bytes: int = 80 * 1024
    """Size of an event that is too large."""


def load(seed: int, mix: Mix) -> Iterator[Sending]:
    """An endless sequence of records in time order, deterministic by seed and mix."""
    chance = random.Random(f"load-{seed}")
    waiting: list[tuple[float, int, Sending]] = []
    start_s, order = 0.0, count()
    for number in count():
        sendings = _trajectory(number, start_s, mix, random.Random(f"{seed}-{number}"))
        for sending in sendings:
            heapq.heappush(waiting, (sending.at_s, next(order), sending))
        while waiting and waiting[0][0] <= start_s:
            yield heapq.heappop(waiting)[2]
        start_s += chance.expovariate(mix.per_s / len(sendings)) if sendings else 0.0


def poison(record: StoredRecord, chance: random.Random, oversize_bytes: int) -> StoredRecord:
    """``record`` with one fault or oddity."""
    value = record.value or b""
    return chance.choice(
        (
            replace(record, value=value[: len(value) // 2]),
            replace(record, value=b"\xff\x00 not JSON"),
            replace(record, value=b'{"of": "another type"}'),
            replace(record, value=b'{"a field from the future": 1, ' + value[1:]),
            replace(record, value=None),
            replace(record, value=b" " * oversize_bytes),
            replace(record, headers=[]),
            with_header(record, TYPE, b"com.example.unknown.v1"),
            with_header(record, SUBJECT, b""),
            with_header(record, SUBJECT, b"\xff\xfe"),
            with_header(record, SUBJECT, b"x" * 600),
            with_header(record, SEQUENCE, b"-7"),
            with_header(record, SEQUENCE, b"70000"),
            without(record, TYPE),
            without(record, SEQUENCE),
        )
    )


def _trajectory(number: int, start_s: float, mix: Mix, chance: random.Random) -> list[Sending]:
    """One trajectory's sendings, from ``start_s``."""

    def happens(share: float) -> bool:
        return chance.random() < share

    group = number // mix.group_size
    records = session(
        f"t{number:07d}",
        *chance.choices(STEPS, k=chance.randint(1, 9)),
        outcome=chance.choice((0.0, 0.0, 1.0)),
        start={"group_id": f"g{group:07d}", "group_size": mix.group_size, "task_id": f"task-{group % 97}"},
    )
    if happens(mix.beyond):
        records.append(with_header(records[-2], SEQUENCE, b"%d" % (len(records) + 3)))
    if happens(mix.poisoned):
        spoiled = chance.randrange(len(records))
        records[spoiled] = poison(records[spoiled], chance, mix.oversize_bytes)
    if happens(mix.endless):
        del records[-1]
    if happens(mix.headless):
        del records[0]
    if happens(mix.holed):
        del records[chance.randrange(len(records))]
    at_s, times = start_s, []
    for _ in records:
        at_s += chance.expovariate(1 / mix.gap_s)
        times.append(at_s)
    if happens(mix.shuffled) and len(records) > 1:
        first = chance.randrange(len(records) - 1)
        window = records[first : first + 5]
        chance.shuffle(window)
        records[first : first + 5] = window
    if records and happens(mix.late):
        times[chance.randrange(len(records))] += mix.late_s * (1 + chance.random())
    home, other = chance.sample(range(mix.producers), 2)
    split = happens(mix.split)
    sendings = [
        Sending(time_s, other if split and chance.random() < 0.5 else home, record)
        for time_s, record in zip(times, records, strict=True)
    ]
    if happens(mix.duplicated):
        sendings += [
            sending._replace(
                at_s=sending.at_s + chance.expovariate(1 / mix.gap_s), producer=chance.choice((home, other))
            )
            for sending in sendings
            if chance.random() < 0.2
        ]
    if happens(mix.repeated):
        again_s = mix.late_s * (1 + chance.random())
        sendings += [sending._replace(at_s=sending.at_s + again_s) for sending in sendings]
    return sendings
