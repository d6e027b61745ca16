"""State of an open trajectory. With the extension module it is one block of memory."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.schemas.records.trajectory import Defect
from headrace.streams.assembly.arrival import Arrival
from headrace.streams.native.available import SPEEDUPS


@dataclass(slots=True)
class PlainOpenState:
    """The state, without the extension module."""

    trajectory_id: str
    """Trajectory id."""
    partition: int
    """Input partition."""
    first: int
    """Offset of its first record."""
    stream_ms_before: int
    """Stream time before its first record."""
    first_ms: int
    """Earliest timestamp of its records."""
    last_ms: int
    """Latest timestamp of its records."""
    closed_before: int
    """How many trajectories the partition had closed before its first record."""
    last: int = 0
    """Offset of its latest record."""
    quiet_since: int = 0
    """When its latest record arrived, by the clock of the idle timeout."""
    records: dict[int, Arrival] = field(default_factory=dict)
    """By sequence number, in order of arrival."""
    unreadable: dict[int, tuple[Defect, bytes | None]] = field(default_factory=dict)
    """Sequence numbers of events that became dead letters, with the resulting label and the event id if it has one."""
    labels: set[Defect] = field(default_factory=set)
    """Labels from records that have no sequence number."""
    contiguous: int = 0
    """Number of events from 0 on without a gap."""
    runs: int = 0
    """Number of runs of consecutive sequence numbers; one if all arrived in order."""
    end: int | None = None
    """Sequence number of its end."""
    ended_at: int = 0
    """When its end arrived, by the clock of the grace for missing events."""
    duplicates: int = 0
    """Records with a sequence number that had already arrived."""
    size: int = 0
    """Memory in bytes."""


if TYPE_CHECKING:
    OpenState = PlainOpenState
else:
    OpenState = PlainOpenState if SPEEDUPS is None else SPEEDUPS.OpenState
"""The state; the extension module's class has the same fields and constructor arguments."""
