"""Evidence: records found again where another record says that they stand, or why they cannot be.

steps 0:12 ──group──▶ training 1:57 ──member──▶ trajectories 3:904   (before the log's beginning: 3:1100)
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
    """Why a record is not where it should be."""

    EXPIRED = "expired"
    """Before the partition's beginning: its retention has taken it, or somebody deleted it."""
    REMOVED = "removed"
    """Inside the partition, and no committed record stands there."""
    BEYOND = "beyond"
    """Past the partition's end: the topic was made anew, or this is another cluster."""
    UNREADABLE = "unreadable"
    """A record stands there and cannot be read."""
    ANOTHER = "another"
    """Another record stands there."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition holds: offsets in ``[begin, end)``."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class MissingRecord:
    """A record that is not where it should be."""

    topic: str
    """Topic."""
    partition: int
    """Partition; −1 where it could stand in any."""
    offset: int
    """Offset; −1 where it was not known."""
    subject: str
    """What should stand there: a group's or a trajectory's id."""
    absence: Absence
    """Why it does not."""
    detail: str
    """The same in words, with figures."""


@dataclass(frozen=True, slots=True)
class Found(Generic[R]):
    """A record where it was looked for."""

    place: Place
    record: R


def absent(topic: str, place: Place, subject: str, bounds: Bounds | None) -> MissingRecord:
    """Why no record was found at ``place``, by what the partition holds; ``None``: there is no such partition."""
    partition, offset = place
    if bounds is None:
        absence, detail = Absence.BEYOND, f"{topic} has no partition {partition}: is this the run's cluster?"
    elif offset < bounds.begin:
        absence, detail = Absence.EXPIRED, f"{topic} {partition} begins at {bounds.begin}: its retention has taken it"
    elif offset >= bounds.end:
        absence = Absence.BEYOND
        detail = f"{topic} {partition} ends at {bounds.end}: the topic was made anew, or this is another cluster"
    else:
        absence = Absence.REMOVED
        detail = f"{topic} {partition} goes from {bounds.begin} to {bounds.end}, and no committed record stands there"
    return MissingRecord(topic, partition, offset, subject, absence, detail)


def read_as(record: KafkaRecord, subject: str, model: type[R]) -> R | MissingRecord:
    """``record``, which should be about ``subject``; else a :class:`MissingRecord`: unreadable, or of another type."""
    try:
        _, payload = decode(record.headers, record.value)
    except UnreadableRecord as error:
        return _missing_at(record, subject, Absence.UNREADABLE, f"it cannot be read: {error}")
    if not isinstance(payload, model):
        return _missing_at(record, subject, Absence.ANOTHER, f"a {payload.TYPE} stands there")
    return payload


def read_all(
    records: Mapping[Place, KafkaRecord],
    subjects: Mapping[Place, str],
    read: Callable[[KafkaRecord, str], T | MissingRecord],
) -> tuple[dict[Place, T], list[MissingRecord]]:
    """Each of ``records`` as ``read`` has it, given what should stand there; and those that cannot be read."""
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
    """The record at ``place`` is about ``found`` and not about ``subject``."""
    return MissingRecord(topic, *place, subject, Absence.ANOTHER, f"{found} stands there: the topic was made anew")


def _missing_at(record: KafkaRecord, subject: str, absence: Absence, detail: str) -> MissingRecord:
    return MissingRecord(record.topic, record.partition, record.offset, subject, absence, detail)


def summarise(missing: Iterable[MissingRecord]) -> list[str]:
    """A sentence for each topic, partition and reason, with how many and which offsets, in order of the log."""
    kinds: dict[tuple[str, int, Absence], list[MissingRecord]] = {}
    for each in missing:
        # What is wrong with an unreadable record differs from record to record.
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
