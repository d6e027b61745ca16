"""What rewards of a trajectory's outcome need of it, without decoding its turns and tokens.

    read_summary(b'{"trajectory_id":"t-1",…}')      TrajectorySummary(trajectory_id="t-1", outcome=1.0, …)
    read_summary(b'{"trajectory_id":5}')            None: Python decides

The extension module checks the whole payload by the rules of the model, in a fifth of the time in which a struct is
decoded.
"""

from typing import TYPE_CHECKING

import msgspec

from headrace.schemas.arrays import MAX_BYTES, MAX_LOGPROB, decode_array
from headrace.schemas.events import EndStatus, TrajectoryStarted
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag, tables_of
from headrace.streams.structs import Doubt, StructReader

if TYPE_CHECKING:
    from headrace.streams.native import speedups

_STARTED = StructReader(TrajectoryStarted)


class TrajectorySummary(msgspec.Struct):
    """Fields and properties of a :class:`Trajectory`, with the same values."""

    trajectory_id: str
    started: TrajectoryStarted | None
    outcome: float | None
    defects: list[Defect]
    versions: list[int]
    sampled_tokens: int
    turn_count: int
    status: EndStatus | None
    ended_ms: int
    continuations: int | None


def make_reader(fields: str) -> "tuple[speedups.TrajectorySummary | None, NativeLag]":
    """Returns the extension module's reader, and what it lacks; ``None`` if it can read no trajectory. ``fields``: what
    the module was built for (``TRAJECTORY_FIELDS``)."""
    if SPEEDUPS is None:
        return None, NativeLag()
    shapes, lag = tables_of([Trajectory], {Trajectory.TYPE: fields})
    if not shapes:
        return None, lag
    try:
        reader = SPEEDUPS.TrajectorySummary(
            shape=shapes[Trajectory.TYPE],
            decode_array=decode_array,
            max_array_bytes=MAX_BYTES,
            max_logprob=MAX_LOGPROB,
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return None, NativeLag(records=str(error.args[0]))
    return reader, lag


_READER, LAG = make_reader(getattr(SPEEDUPS, "TRAJECTORY_FIELDS", ""))


def read_summary(value: bytes) -> TrajectorySummary | None:
    """Returns the summary of the trajectory in ``value``; ``None`` if that is left to Python. Raises only
    ``MemoryError``."""
    if _READER is None or (read := _READER.read(value)) is None:
        return None
    name, start, outcome, defects, versions, sampled, turns, status, ended_ms, continuations = read
    try:
        started = None if start is None else _STARTED.read(start)
    except Doubt:
        return None
    return TrajectorySummary(
        name,
        started,
        outcome,
        [Defect(defect) for defect in defects],
        versions,
        sampled,
        turns,
        None if status is None else EndStatus(status),
        ended_ms,
        continuations,
    )
