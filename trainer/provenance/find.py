"""Finding records of which no place is known: by id, or by what they are about. Most are read over undecoded."""

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
"""Called with a topic and how many of its records were read over, every ``_REPORT_EVERY``."""

_REPORT_EVERY = 20_000

_CLOCK_SKEW_MS = 60_000
"""How much earlier than an event's own time its record may be dated: clocks differ."""


@dataclass(frozen=True, slots=True)
class EventSearch:
    """What looking for an event came to."""

    event: EventFound | None
    """The event; ``None`` where it is not in the log."""
    bounds: Mapping[int, Bounds]
    """What ``events`` holds, by partition."""
    time_ms: int | None
    """When the id was made, Unix milliseconds, where it tells: a UUIDv7 does."""

    @property
    def is_cut(self) -> bool:
        """Whether ``events`` has lost records: an event that is not there may have been among them."""
        return any(each.begin for each in self.bounds.values())


async def find_event(log: LogReader, event_id: str, trajectory_id: str | None, progress: SearchProgress) -> EventSearch:
    """The event with this ``ce_id``.

    Nothing in Kafka finds a record by its id: ``events`` is read over, from a minute before the time that a UUIDv7
    carries; the whole of it where that finds nothing. With ``trajectory_id`` its partition is read first. Raises
    ``LookupError`` where its headers are no envelope: then it is part of no trajectory.
    """
    bounds, time_ms = await log.bounds(EVENTS), _made_at(event_id)
    start = {} if time_ms is None else await log.since(EVENTS, max(0, time_ms - _CLOCK_SKEW_MS))
    wanted = event_id.encode()
    record = await find_first(log, EVENTS, trajectory_id, lambda each: _header(each, ID) == wanted, progress, start)
    if record is None and any(offset > bounds[partition].begin for partition, offset in start.items()):
        record = await find_first(log, EVENTS, trajectory_id, lambda each: _header(each, ID) == wanted, progress)
    return EventSearch(None if record is None else await _event(log, record), bounds, time_ms)


async def find_first(
    log: LogReader,
    topic: Topic,
    key: str | None,
    is_it: Callable[[KafkaRecord], bool],
    progress: SearchProgress,
    start: Mapping[int, int] | None = None,
) -> "KafkaRecord | None":
    """The first record of which ``is_it`` holds: in the partition of ``key``, else in the others."""
    found = await find_all(log, topic, key, is_it, progress, start, at_most=1)
    return found[0] if found else None


async def find_all(
    log: LogReader,
    topic: Topic,
    key: str | None,
    is_it: Callable[[KafkaRecord], bool],
    progress: SearchProgress,
    start: Mapping[int, int] | None = None,
    *,
    at_most: int = 1000,
) -> list[KafkaRecord]:
    """Records of which ``is_it`` holds: those in the partition of ``key``, or where there is none, in the others.

    Whoever writes with another partitioner puts a key elsewhere; and a topic may have got partitions since.
    """
    home = None if key is None else log.home(topic, key)
    found: list[KafkaRecord] = []
    read = 0
    for partitions in (None,) if home is None else ((home,), tuple(log.others(topic, home))):
        async with aclosing(log.scan(topic, start, partitions=partitions)) as records:
            async for record in records:
                read += 1
                if read % _REPORT_EVERY == 0:
                    progress(topic.name, read)
                if is_it(record):
                    found.append(record)
                    if len(found) >= at_most:
                        return found
        if found:
            break
    return found


def about(trajectory_id: str) -> Callable[[KafkaRecord], bool]:
    """Whether a record's subject is this trajectory: told by its header alone."""
    wanted = trajectory_id.encode()
    return lambda record: _header(record, SUBJECT) == wanted


def naming(trajectory_id: str) -> Callable[[KafkaRecord], bool]:
    """Whether a record's JSON may name this trajectory: of those that do not, none is decoded."""
    spellings = {json.dumps(trajectory_id, ensure_ascii=ascii).encode() for ascii in (True, False)}
    return lambda record: record.value is not None and any(each in record.value for each in spellings)


class _DeadPlace(BaseModel):
    """The few fields of a ``DeadLetter`` that are needed; other types of the topic lack one of them."""

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
            f"the event stands at events {place[0]}:{place[1]} without a usable envelope ({error}): it is part of no "
            "trajectory; `headrace dead-letters list` shows it"
        ) from error
    dead = await _dead_at(log, place)
    return EventFound(
        envelope.id, envelope.type, envelope.subject, envelope.sequence, envelope.time_ms, place, dead
    )  # fmt: skip


async def _dead_at(log: LogReader, place: tuple[int, int]) -> DeadLetterError | None:
    """Why the event at ``place`` was set aside; ``None`` where it was not."""
    async with aclosing(log.scan(DEAD_LETTERS)) as records:
        async for record in records:
            try:
                dead_letter = _DeadPlace.model_validate_json(record.value or b"")
            except ValidationError:
                continue  # a repair, or a record that was sent again
            if dead_letter.topic == EVENTS.name and (dead_letter.partition, dead_letter.offset) == place:
                return dead_letter.error
    return None


def _made_at(event_id: str) -> int | None:
    """The Unix milliseconds in a UUIDv7; ``None`` for any other id."""
    try:
        value = uuid.UUID(event_id)
    except ValueError:
        return None
    return value.int >> 80 if value.version == 7 else None


def _header(record: KafkaRecord, name: str) -> bytes | None:
    return next((value for key, value in record.headers if key == name), None)
