"""Outputs for a record whose processing raised: a dead letter with the error ``raised``, and an alert.

The partition continues with the next record. The fault is in headrace or in a reward function, not in the record; once
the code is fixed, ``headrace dead-letters redrive`` processes the record again. Errors that no record causes (Kafka,
memory) still end the process.
"""

import traceback
from typing import TypedDict

from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.dead_letters.build import dead_letter_message, time_of
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord


class RecordPosition(TypedDict):
    """Topic, partition and offset of a record."""

    topic: str
    partition: int
    offset: int


KIND = "record_raised"
"""Kind of the alert."""

_TRACE_CHARACTERS = 4_000


def raised(record: LogRecord, error: BaseException, source: str, trajectory_id: str | None = None) -> list[Outgoing]:
    """Returns the dead letter and the alert for ``record``, on which ``source`` raised ``error``."""
    why = UnreadableRecord(DeadLetterError.RAISED, f"{source} raised {_shown(error)}")
    time_ms = time_of(record)
    dead_letter = dead_letter_message(record, why, trajectory_id)
    return [Outgoing(DEAD_LETTERS, dead_letter, time_ms), raised_alert(error, source, time_ms, **position_of(record))]


def raised_at(
    topic: str, partition: int, offset: int, error: BaseException, source: str, time_ms: int, trajectory_id: str
) -> list[Outgoing]:
    """As :func:`raised`, for a record of which only the position is known; the dead letter has no payload."""
    record = StoredRecord(topic, partition, offset, time_ms, trajectory_id.encode(), None, ())
    return raised(record, error, source, trajectory_id)


def raised_alert(
    error: BaseException | None, source: str, time_ms: int, *, topic: str, partition: int, offset: int
) -> Outgoing:
    """Returns only the alert about the record at this position. If ``error`` is ``None``, the alert refers to the log
    of ``source``.
    """
    place = f"{topic}[{partition}]@{offset}"
    message = alert_message(
        KIND,
        f"{source} could not process {place}: {_shown(error) if error else 'see its log'}. The record is in "
        "dead-letters and the partition continues. Fix the code, then run `headrace dead-letters redrive`.",
        source=source,
        subject=place,
        time_ms=time_ms,
        about=(topic, partition, offset),
        details={"topic": topic, "partition": partition, "offset": offset, "trace": _trace(error)},
    )
    return Outgoing(ALERTS, message, time_ms)


def position_of(record: LogRecord) -> RecordPosition:
    """Returns the position of ``record`` as keyword arguments of :func:`raised_alert`."""
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_NAME]


def _trace(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS:]
