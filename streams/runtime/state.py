"""State is read tolerantly: an entry that cannot be decoded is quarantined and reported, and processing continues.

    headrace-score-state[2]@7104  {"since_ms": "soon"}   →   a dead letter, an alert, a count

The entry stays in its topic, because the code may only be too old for it. The IDs of its dead letter and its alert are
derived from its offset, so that a worker that restarts often reports it once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.dead_letters.build import dead_letter_message, time_of
from headrace.streams.raw import LogRecord, Outgoing

T = TypeVar("T")

KIND = "state_set_aside"
"""Kind of the alert."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """An entry of the state that cannot be used."""

    record: LogRecord
    """The record in the state topic."""
    why: str
    """What is wrong with it."""


def read_state(
    state: Mapping[bytes, LogRecord], decode: Callable[[bytes, bytes], T]
) -> tuple[dict[bytes, T], list[SetAside]]:
    """Every entry of ``state`` by ``decode`` (key and value), and those for which that raised ``ValueError``."""
    entries: dict[bytes, T] = {}
    aside = []
    for key, record in state.items():
        try:
            entries[key] = decode(key, record.value or b"")
        except (ValueError, RecursionError) as error:
            aside.append(SetAside(record, f"{type(error).__name__}: {error}"))
    return entries, aside


def set_aside_records(aside: Iterable[SetAside], source: str) -> list[Outgoing]:
    """The dead letters of the entries that ``source`` quarantined, and one alert about all of them."""
    letters = []
    first: LogRecord | None = None
    count = 0
    for record, why in ((each.record, each.why) for each in aside):
        first, count = first or record, count + 1
        error = UnreadableRecord(DeadLetterError.INVALID, f"an entry of the state of {source}: {why}")
        letters.append(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), time_of(record)))
    if first is None:
        return []
    place = f"{first.topic}[{first.partition}]"
    message = alert_message(
        KIND,
        f"{count} entries of {place} cannot be read and are quarantined, the first at offset {first.offset}; "
        "processing continues without them. Their trajectories are not decided: `headrace dead-letters list` shows "
        "the entries.",
        source=source,
        subject=place,
        time_ms=time_of(first),
        about=(first.topic, first.partition, first.offset, count),
        details={"topic": first.topic, "partition": first.partition, "offset": first.offset, "entries": count},
    )
    return [*letters, Outgoing(ALERTS, message, time_of(first))]
