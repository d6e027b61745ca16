"""A record that our own code raised for: a dead letter with the error ``raised``, an alert, and the partition goes on.

It is a fault of ours or of a reward's author, never of the record's sender. Repaired code takes the record again by
``headrace dead-letters redrive``. What is no record's doing (Kafka, memory) still ends the process.
"""

import traceback
from typing import TypedDict

from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord


class Place(TypedDict):
    """Where a record stands."""

    topic: str
    partition: int
    offset: int


KIND = "record_raised"
"""Kind of the alert."""

_TRACE_CHARACTERS = 4_000


def raised(record: LogRecord, error: Exception, source: str, trajectory_id: str | None = None) -> list[Outgoing]:
    """The dead letter and the alert of ``record``, for which ``source`` raised ``error``."""
    why = UnreadableRecord(DeadLetterError.RAISED, f"{source} raised {_shown(error)}")
    time_ms = time_of(record)
    letter = dead_letter_message(record, why, trajectory_id)
    return [Outgoing(DEAD_LETTERS, letter, time_ms), raised_alert(error, source, time_ms, **place_of(record))]


def raised_at(
    topic: str, partition: int, offset: int, error: Exception, source: str, time_ms: int, trajectory_id: str
) -> list[Outgoing]:
    """As :func:`raised` for a record of which only its place is in hand; its bytes stay there."""
    record = StoredRecord(topic, partition, offset, time_ms, trajectory_id.encode(), None, ())
    return raised(record, error, source, trajectory_id)


def raised_alert(
    error: Exception | None, source: str, time_ms: int, *, topic: str, partition: int, offset: int
) -> Outgoing:
    """The alert alone, about the record that stands there; ``None``: the log of ``source`` has the error."""
    place = f"{topic}[{partition}]@{offset}"
    message = alert_message(
        KIND,
        f"{source} could not decide about {place}: {_shown(error) if error else 'see its log'}. The record is set "
        "aside and the partition goes on; mend the code, then `headrace dead-letters redrive` takes it again.",
        source=source,
        subject=place,
        time_ms=time_ms,
        about=(topic, partition, offset),
        details={"topic": topic, "partition": partition, "offset": offset, "trace": _trace(error)},
    )
    return Outgoing(ALERTS, message, time_ms)


def place_of(record: LogRecord) -> Place:
    """Where ``record`` stands, as :func:`raised_alert` takes it."""
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_NAME]


def _trace(error: Exception | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS:]
