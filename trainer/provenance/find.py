"""Finds records whose place is unknown, by id or by subject. Most records are skipped without decoding."""

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from headrace.schemas.envelope import ID, SUBJECT, EnvelopeError, from_headers
from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, Topic
from headrace.trainer.provenance.evidence import Bounds
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.trace import EventFound

SearchProgress = Callable[[str, int], None]
"""Called every ``_REPORT_EVERY`` records with a topic and the number of its records scanned so far."""

_REPORT_EVERY = 20_000

_CLOCK_SKEW_MS = 60_000
"""Largest clock difference by which a record's timestamp may be before its event's own time."""


@dataclass(frozen=True, slots=True)
class EventSearch:
    """The result of searching for an event."""

    event: EventFound | None
    """The event; ``None`` if it is not in the log."""
    bounds: Mapping[int, Bounds]
    """Offsets that ``events`` holds, by partition."""
    time_ms: int | None
    """When the id was created, Unix milliseconds; ``None`` if it is no UUIDv7."""

    @property
    def is_cut(self) -> bool:
        """Whether records of ``events`` have been deleted, possibly the missing event among them."""
        return any(each.begin for each in self.bounds.values())


async def find_event(log: LogReader, event_id: str, trajectory_id: str | None, progress: SearchProgress) -> EventSearch:
    """Search for the event with this ``ce_id``.

    Kafka has no index of ids: ``events`` is scanned, first from a minute before the time in a UUIDv7, then completely.
    With ``trajectory_id`` its partition is scanned first. Raises ``LookupError`` if the event's headers are no
    envelope: then it is part of no trajectory.
    """
    bounds, time_ms = await log.bounds(EVENTS), _made_at(event_id)
    start = {} if time_ms is None else await log.offsets_since(EVENTS, max(0, time_ms - _CLOCK_SKEW_MS))
    wanted = event_id.encode()
    record = await find_first(log, EVENTS, trajectory_id, lambda each: _header(each, ID) == wanted, progress, start)
    if record is None and any(offset > bounds[partition].begin for partition, offset in start.items()):
        record = await find_first(log, EVENTS, trajectory_id, lambda each: _header(each, ID) == wanted, progress)
    return EventSearch(None if record is None else await _event(log, record), bounds, time_ms)


async def find_first(
    log: LogReader,
    topic: Topic,
    key: str | None,
    matches: Callable[[KafkaRecord], bool],
    progress: SearchProgress,
    start: Mapping[int, int] | None = None,
) -> "KafkaRecord | None":
    """Returns the first record that satisfies ``matches``: in the partition of ``key``, else in the others."""
    found = await find_all(log, topic, key, matches, progress, start, at_most=1)
    return found[0] if found else None


async def find_all(
    log: LogReader,
    topic: Topic,
    key: str | None,
    matches: Callable[[KafkaRecord], bool],
    progress: SearchProgress,
    start: Mapping[int, int] | None = None,
    *,
    at_most: int = 1000,
) -> list[KafkaRecord]:
    """Returns the records that satisfy ``matches`` in the partition of ``key``, or if there is none, in the others.

    A key is in another partition if its producer uses another partitioner, or if partitions were added since.
    """
    home = None if key is None else log.partition_of(topic, key)
    found: list[KafkaRecord] = []
    read = 0
    for partitions in (None,) if home is None else ((home,), tuple(log.other_partitions(topic, home))):
        async with aclosing(log.scan(topic, start, partitions=partitions)) as records:
            async for record in records:
                read += 1
                if read % _REPORT_EVERY == 0:
                    progress(topic.name, read)
                if matches(record):
                    found.append(record)
                    if len(found) >= at_most:
                        return found
        if found:
            break
    return found


def has_subject(trajectory_id: str) -> Callable[[KafkaRecord], bool]:
    """Returns a test whether a record's subject is this trajectory, by its header alone."""
    wanted = trajectory_id.encode()
    return lambda record: _header(record, SUBJECT) == wanted


def mentions(trajectory_id: str) -> Callable[[KafkaRecord], bool]:
    """Returns a test whether a record's JSON may name this trajectory, without decoding."""
    spellings = {json.dumps(trajectory_id, ensure_ascii=ascii).encode() for ascii in (True, False)}
    return lambda record: record.value is not None and any(each in record.value for each in spellings)


class _DeadPlace(BaseModel):
    """The few fields of a ``DeadLetter`` that are needed; records of other types lack at least one of them."""

    topic: str
    partition: int
    offset: int
    error: DeadLetterError


async def _event(log: LogReader, record: KafkaRecord) -> EventFound:
    place = (record.partition, record.offset)
    try:
        envelope = from_headers(record.headers)
    except EnvelopeError as error:
        raise LookupError(
            f"the event at events {place[0]}:{place[1]} has no usable envelope ({error}): it is part of no "
            "trajectory; `headrace dead-letters list` shows it"
        ) from error
    dead = await _dead_at(log, place)
    return EventFound(
        envelope.id, envelope.type, envelope.subject, envelope.sequence, envelope.time_ms, place, dead
    )  # fmt: skip


async def _dead_at(log: LogReader, place: tuple[int, int]) -> DeadLetterError | None:
    """Returns why the event at ``place`` is a dead letter; ``None`` if it is not."""
    async with aclosing(log.scan(DEAD_LETTERS)) as records:
        async for record in records:
            try:
                dead_letter = _DeadPlace.model_validate_json(record.value or b"")
            except ValidationError:
                continue  # a repair, or a redriven record
            if dead_letter.topic == EVENTS.name and (dead_letter.partition, dead_letter.offset) == place:
                return dead_letter.error
    return None


def _made_at(event_id: str) -> int | None:
    """Returns the Unix milliseconds in a UUIDv7; ``None`` for any other id."""
    try:
        value = uuid.UUID(event_id)
    except ValueError:
        return None
    return value.int >> 80 if value.version == 7 else None


def _header(record: KafkaRecord, name: str) -> bytes | None:
    return next((value for key, value in record.headers if key == name), None)
