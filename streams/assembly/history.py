"""What the fold gives out: a closed trajectory as raw records (``History``), to be decoded event by event."""

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
    """A fact in its place."""

    time_ms: int
    """When it happened, by the agent's clock, Unix milliseconds."""
    fact: Fact
    """What happened: the model, or a struct with its fields."""
    plain: bool = False
    """Whether msgspec writes its values as pydantic would."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The place of an event whose payload could not be read."""

    sequence: int
    """Its sequence number."""


class History(msgspec.Struct, frozen=True):
    """A trajectory as the fold closed it: its records undecoded, and what is known without decoding them."""

    trajectory_id: str
    """The trajectory."""
    records: Mapping[int, Arrival]
    """By sequence number, ascending."""
    unreadable: Mapping[int, Defect]
    """Sequence numbers that came and were dead letters at once, with the label that follows."""
    missing: Gaps
    """Sequence numbers that never came."""
    late: tuple[Arrival, ...]
    """Records after the trajectory's end that came before it was closed."""
    labels: frozenset[Defect]
    """Labels that follow from how it closed."""
    duplicates: int
    """Records with a sequence number that was there already."""
    first: Reference
    """First of its records."""
    last: Reference
    """Last of its records, duplicates included."""
    first_ms: int
    """Earliest timestamp of its records, Unix milliseconds."""
    last_ms: int
    """Latest timestamp of its records, Unix milliseconds."""
    closed_ms: int
    """Log time at which it closed, Unix milliseconds."""
    closed_offset: int
    """Offset from which on a record of it comes late."""
    start_id: bytes | None = None
    """``ce_id`` of its event 0; ``None`` where that is missing or too long to be kept."""


@dataclass(frozen=True, slots=True)
class Dead:
    """A record that could not be used, and why."""

    record: LogRecord
    """The record."""
    error: UnreadableRecord
    """What is wrong with it."""
    trajectory_id: str | None = None
    """The trajectory that it names, if any."""
