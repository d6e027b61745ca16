"""Evidence: records found at the place that another record names, or the reason why they are missing.

steps 0:12 ──group──▶ training 1:57 ──member──▶ trajectories 3:904   (expired: the log starts at 3:1100)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.model import Record
from headrace.schemas.wire import UnreadableRecord, decode

R = TypeVar("R", bound=Record)
T = TypeVar("T")


class Absence(StrEnum):
    """Why a record is missing."""

    EXPIRED = "expired"
    """Before the partition's first offset: expired by retention, or deleted."""
    REMOVED = "removed"
    """Inside the partition, but there is no committed record."""
    BEYOND = "beyond"
    """Past the partition's end: the topic was recreated, or this is another cluster."""
    UNREADABLE = "unreadable"
    """The record at this place cannot be read."""
    ANOTHER = "another"
    """There is another record at this place."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that a partition holds: ``[begin, end)``."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class MissingRecord:
    """A record that is missing."""

    topic: str
    """Topic."""
    partition: int
    """Partition; −1 if it could be in any."""
    offset: int
    """Offset; −1 if unknown."""
    subject: str
    """Id of the expected group or trajectory."""
    absence: Absence
    """Why it is missing."""
    detail: str
    """The reason in words, with offsets."""


@dataclass(frozen=True, slots=True)
class Found(Generic[R]):
    """A record with its place."""

    place: Place
    record: R


def absent(topic: str, place: Place, subject: str, bounds: Bounds | None) -> MissingRecord:
    """Returns why ``place`` has no record, given the bounds of its partition (``None``: no such partition)."""
    partition, offset = place
    if bounds is None:
        absence, detail = Absence.BEYOND, f"{topic} has no partition {partition}: is this the run's cluster?"
    elif offset < bounds.begin:
        absence, detail = Absence.EXPIRED, f"{topic} {partition} begins at {bounds.begin}: the record has expired"
    elif offset >= bounds.end:
        absence = Absence.BEYOND
        detail = f"{topic} {partition} ends at {bounds.end}: the topic was recreated, or this is another cluster"
    else:
        absence = Absence.REMOVED
        detail = f"{topic} {partition} holds {bounds.begin} to {bounds.end}, but no committed record at this offset"
    return MissingRecord(topic, partition, offset, subject, absence, detail)


def read_as(record: KafkaRecord, subject: str, model: type[R]) -> R | MissingRecord:
    """Returns the payload of ``record``, or a :class:`MissingRecord` if it is unreadable or of another type.

    ``subject`` is the id that the record should be about.
    """
    try:
        _, payload = decode(record.headers, record.value)
    except UnreadableRecord as error:
        return _missing_at(record, subject, Absence.UNREADABLE, f"it cannot be read: {error}")
    if not isinstance(payload, model):
        return _missing_at(record, subject, Absence.ANOTHER, f"there is a {payload.TYPE} at this place")
    return payload


def read_all(
    records: Mapping[Place, KafkaRecord],
    subjects: Mapping[Place, str],
    read: Callable[[KafkaRecord, str], T | MissingRecord],
) -> tuple[dict[Place, T], list[MissingRecord]]:
    """Returns ``records`` decoded by ``read``, which also gets the expected subject, and those that are unusable."""
    found: dict[Place, T] = {}
    missing: list[MissingRecord] = []
    for place, record in records.items():
        payload = read(record, subjects[place])
        if isinstance(payload, MissingRecord):
            missing.append(payload)
        else:
            found[place] = payload
    return found, missing


def another(topic: str, place: Place, subject: str, found: str) -> MissingRecord:
    """Returns that the record at ``place`` is about ``found`` and not about ``subject``."""
    return MissingRecord(topic, *place, subject, Absence.ANOTHER, f"{found} is at this place: the topic was recreated")


def _missing_at(record: KafkaRecord, subject: str, absence: Absence, detail: str) -> MissingRecord:
    return MissingRecord(record.topic, record.partition, record.offset, subject, absence, detail)


def summarise(missing: Iterable[MissingRecord]) -> list[str]:
    """Returns a sentence for each topic, partition and reason, with the number and range of offsets, in log order."""
    kinds: dict[tuple[str, int, Absence], list[MissingRecord]] = {}
    for each in missing:
        # Details of unreadable records differ from record to record.
        kinds.setdefault((each.topic, each.partition, each.absence), []).append(each)
    lines = []
    for (topic, partition, absence), several in sorted(kinds.items(), key=lambda item: item[0]):
        where = _offsets(several)
        details = {each.detail for each in several}
        named = "" if absence == Absence.EXPIRED else f" ({_some([each.subject for each in several])})"
        more = "" if len(details) == 1 else f"; and {len(details) - 1} other problems"
        lines.append(f"{topic} {partition}:{where}{named}: {several[0].detail}{more}")
    return lines


def _offsets(several: Sequence[MissingRecord]) -> str:
    offsets = sorted({each.offset for each in several})
    if len(offsets) <= 3:
        return ",".join(map(str, offsets))
    return f"{offsets[0]}–{offsets[-1]} ({len(offsets)} records)"


def _some(subjects: Sequence[str], limit: int = 3) -> str:
    unique = list(dict.fromkeys(subjects))
    more = f" and {len(unique) - limit} more" if len(unique) > limit else ""
    return ", ".join(unique[:limit]) + more
