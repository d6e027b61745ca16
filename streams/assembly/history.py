"""Outputs of the fold: a closed trajectory as raw records (``History``), or a record that cannot be used."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.schemas.events import Fact
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.arrival import Arrival
from headrace.streams.assembly.gaps import Gaps
from headrace.streams.raw import LogRecord


class Event(msgspec.Struct, gc=False):
    """A decoded event."""

    time_ms: int
    """Time of the event by the agent's clock, Unix milliseconds."""
    fact: Fact
    """The fact: the model, or a struct with its fields."""
    plain: bool = False
    """Whether msgspec writes its values as pydantic would."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An event whose payload could not be read."""

    sequence: int
    """Its sequence number."""


class History(msgspec.Struct, frozen=True):
    """A closed trajectory: its undecoded records, and what is known without decoding them."""

    trajectory_id: str
    """The trajectory."""
    records: Mapping[int, Arrival]
    """By sequence number, ascending."""
    unreadable: Mapping[int, Defect]
    """Sequence numbers of events that became dead letters on arrival, with the resulting label."""
    missing: Gaps
    """Sequence numbers that never arrived."""
    late: tuple[Arrival, ...]
    """Records with a sequence number after the trajectory's end that arrived before it was closed."""
    labels: frozenset[Defect]
    """Labels that follow from how it closed."""
    duplicates: int
    """Records with a sequence number that had already arrived."""
    first: Reference
    """First of its records."""
    last: Reference
    """Last of its records, duplicates included."""
    first_ms: int
    """Earliest timestamp of its records, Unix milliseconds."""
    last_ms: int
    """Latest timestamp of its records, Unix milliseconds."""
    closed_ms: int
    """Stream time at which it closed, Unix milliseconds."""
    closed_offset: int
    """Offset from which on its records are late."""
    start_id: bytes | None = None
    """``ce_id`` of its event 0; ``None`` if that is missing or too long to keep."""


@dataclass(frozen=True, slots=True)
class UnusableRecord:
    """A record that cannot be used, with the reason."""

    record: LogRecord
    """The record."""
    error: UnreadableRecord
    """The reason."""
    trajectory_id: str | None = None
    """The trajectory that it names, if any."""
