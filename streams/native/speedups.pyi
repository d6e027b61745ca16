"""What the extension module offers; README.md beside it says what for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

SOURCES: str
"""SHA-256 of the files that it was built from."""

EVENT_FIELDS: dict[str, str]
"""For each event type that it was built for the names of its fields, with spaces between; ``*`` for any."""

TRAJECTORY_FIELDS: str
"""The fields of a trajectory that it was built for, in the form of a value of ``EVENT_FIELDS``."""

TRAJECTORY_COLUMNS: dict[str, str]
"""The columns of a trajectory that it can fill, with their forms."""

class Arrival:
    """A :class:`LogRecord`, and what its headers say: ``PlainArrival`` in one block of memory."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
    @property
    def kind(self) -> bytes | None: ...
    @property
    def subject(self) -> bytes | None: ...
    @property
    def id(self) -> bytes | None: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def size(self) -> int: ...
    @property
    def time_ms(self) -> int | None: ...
    @property
    def names_trajectory(self) -> bool: ...

class EventColumns:
    """Rows of the table `events` as Arrow columns, appended from plain events."""

    def __init__(
        self,
        *,
        columns: list[tuple[str, str]],
        own: Sequence[str],
        kinds: dict[str, tuple[Any, bool, list[tuple[str, str]]]],
        decode_array: Callable[[str, str], Any],
        max_array_bytes: int,
        max_logprob: float,
    ) -> None:
        """``columns``: name and form of each, in order. ``own``: those that every row fills. ``kinds``: for each event
        type its shape, whether its subject is a trajectory, and the pairs of a field and the column that it fills.
        Raises ``LookupError`` where the module was built for others.
        """
    @property
    def count(self) -> int: ...
    @property
    def types(self) -> list[str]: ...
    def fresh(self) -> EventColumns:
        """One without rows, for the same tables."""
    def take(self, records: Sequence[object], start: int, /) -> int:
        """Append the rows of plain events of the list ``records`` from ``start`` on; returns the index of the first
        other record. Raises what ``decode_array`` raises, except ``ValueError``."""
    def release(self) -> list[list[bytes | None]]:
        """Arrow's buffers of each column, with which it becomes empty."""

class TrajectoryColumns:
    """Rows of the table `trajectories` as Arrow columns, without those that every row of a record fills."""

    def __init__(
        self,
        *,
        shape: Sequence[Any],
        difficulty: Sequence[str],
        decode_array: Callable[[str, str], Any],
        max_array_bytes: int,
        max_logprob: float,
    ) -> None:
        """``shape``: that of a trajectory (:func:`shapes.table_of`). ``difficulty``: the fields of a task that say how
        hard it is. Raises ``LookupError`` where the module was built for others.
        """
    @property
    def count(self) -> int: ...
    def fresh(self) -> TrajectoryColumns:
        """One without rows."""
    def take(self, json: bytes, /) -> bool:
        """Append the row of the trajectory in ``json``; False, and nothing appended, if Python has to. Raises what
        ``decode_array`` raises, except ``ValueError``."""
    def release(self) -> dict[str, Any]:
        """Arrow's array of each column, with which it becomes empty: length, buffers, and the same of each child."""

class TrajectorySummary:
    """Checks trajectories, and takes from them what a reward of the outcome needs."""

    def __init__(
        self,
        *,
        shape: Sequence[Any],
        decode_array: Callable[[str, str], Any],
        max_array_bytes: int,
        max_logprob: float,
    ) -> None:
        """``shape``: as for :class:`TrajectoryColumns`. Raises ``LookupError`` where the module was built for
        others."""
    def read(
        self, json: bytes, /
    ) -> (
        tuple[str, bytes | None, float | None, tuple[str, ...], list[int], int, int, str | None, int, int | None] | None
    ):
        """Id, start as JSON, outcome, defects, versions, sampled tokens, number of turns, status, end in Unix
        milliseconds and continuations of the trajectory in ``json``; ``None`` if Python has to read it. Raises what
        ``decode_array`` raises, except ``ValueError``."""

class OpenState:
    """``PlainOpenState`` in one block of memory, to be made of the fields that have no default, in order."""

    def __init__(
        self,
        trajectory_id: str,
        partition: int,
        first: int,
        stream_ms_before: int,
        first_ms: int,
        last_ms: int,
        closed_before: int,
        /,
    ) -> None: ...

class OrdinaryEvents:
    """Folds ordinary events into a ``PartitionFold``, and leaves the rest to it. ``trajectory``: an ``OpenState``."""

    def __init__(
        self,
        trajectory: type,
        kinds: Sequence[bytes],
        *,
        record_bytes: int,
        trajectory_bytes: int,
        max_event_bytes: int,
        max_trajectory_bytes: int,
        max_trajectory_events: int,
        max_open: int,
        max_open_bytes: int,
        idle_timeout_ms: int,
        idle_step_ms: int,
        grace_step_ms: int,
    ) -> None: ...
    def take(self, fold: object, records: Sequence[object], start: int, /) -> int:
        """Fold ordinary events of the list ``records`` from ``start`` on; the index of the first that is not."""

class PartitionLog:
    """Reads one partition from an offset on, through the librdkafka that ``library`` is linked with."""

    def __init__(self, library: str, settings: dict[str, str], topic: str, partition: int, offset: int) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def end(self) -> int | None: ...
    def read(self, most: int, /) -> tuple[list[Arrival], int]:
        """At most so many arrivals that are there, without waiting, and librdkafka's error after them or 0."""
    def close(self) -> None: ...

class TrajectoryWriter:
    """Writes trajectories in which nothing is doubtful."""

    def __init__(
        self,
        *,
        shapes: dict[str, Any],
        fields: Sequence[str],
        defects: Sequence[str],
        array_type: type,
        encode_array: Callable[[Any], str],
        decode_array: Callable[[str, str], Any],
        compress_from: int,
        max_array_bytes: int,
        sha1: Callable[..., Any],
        sha256: Callable[..., Any],
        max_tokens: int,
        least_temperature: float,
        max_logprob: float,
        max_record_bytes: int,
        id_prefix: bytes,
        headers: Sequence[tuple[str, bytes]],
    ) -> None:
        """``fields``: of the records that are written, in order. Raises ``LookupError`` where the module was built for
        others. ``id_prefix``: what each record's id is hashed from first. ``headers``: those of any record.
        """
    def write(
        self,
        records: Mapping[int, object],
        trajectory_id: str,
        duplicates: int,
        partition: int,
        first: int,
        last: int,
        time_ms: int,
        closed_offset: int,
        start_id: bytes | None,
        /,
    ) -> tuple[bytes, bytes, list[tuple[str, bytes]]] | None:
        """Key, value and headers of the record of the trajectory that the dict ``records`` adds up to, or ``None`` in
        doubt."""
