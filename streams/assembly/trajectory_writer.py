"""Writes the record of a closed trajectory with the extension module, if all of its events are plainly valid.

If the module lags behind the models, Python writes the trajectories that need what it lacks, listed in :data:`LAG`.
"""

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel

from headrace.schemas.arrays import COMPRESS_FROM, MAX_BYTES, MAX_LOGPROB, decode_array, encode_array
from headrace.schemas.events import LEAST_TEMPERATURE, SamplingSpan, VersionSpan
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import (
    Defect,
    Segment,
    SequenceRange,
    ToolStatistics,
    ToolUse,
    Trajectory,
    Turn,
)
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message
from headrace.streams.assembly.history import History
from headrace.streams.assembly.segments import MAX_TOKENS
from headrace.streams.assembly.trajectory_record import ID_PREFIX, any_headers
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag, tables_of

if TYPE_CHECKING:
    from headrace.streams.native import speedups

MAX_RECORD_BYTES = 24 * 1024 * 1024
"""Largest trajectory record; the topic allows 32 MiB. A larger one is labelled and written without tokens and turns."""

_PARTS: tuple[type[BaseModel], ...] = (
    Trajectory,
    SequenceRange,
    Segment,
    VersionSpan,
    SamplingSpan,
    Turn,
    ToolUse,
    ToolStatistics,
    Reference,
)


def _fields_written() -> Iterator[str]:
    for model in _PARTS:
        yield from model.model_fields


def make_writer(known: Mapping[str, str]) -> "tuple[speedups.TrajectoryWriter | None, NativeLag]":
    """Returns the extension module's writer and what it lacks; ``None`` as the writer if it can write no trajectory.

    ``known``: the fields of each event type that the module was built for (``EVENT_FIELDS``).
    """
    if SPEEDUPS is None:
        return None, NativeLag()
    tables, lag = tables_of(EVENTS.models, known)
    try:
        writer = SPEEDUPS.TrajectoryWriter(
            shapes=tables,
            fields=list(_fields_written()),
            defects=list(Defect),
            array_type=array,
            encode_array=encode_array,
            decode_array=decode_array,
            compress_from=COMPRESS_FROM,
            max_array_bytes=MAX_BYTES,
            sha1=partial(hashlib.sha1, usedforsecurity=False),
            sha256=hashlib.sha256,
            max_tokens=MAX_TOKENS,
            least_temperature=LEAST_TEMPERATURE,
            max_logprob=MAX_LOGPROB,
            max_record_bytes=MAX_RECORD_BYTES,
            id_prefix=ID_PREFIX,
            headers=any_headers(),
        )
    except (LookupError, TypeError, ValueError) as error:
        return None, replace(lag, records=str(error.args[0]))
    return writer, lag


_WRITER, LAG = make_writer(getattr(SPEEDUPS, "EVENT_FIELDS", {}))


def is_left_to_python(history: History) -> bool:
    """Whether the extension module leaves the trajectory in ``history`` to Python only because it lags behind."""
    return (
        bool(LAG)
        and _is_whole(history)
        and any(
            LAG.holds_back((arrival.kind or b"").decode(errors="replace"), arrival.value or b"")
            for arrival in history.records.values()
        )
    )


def _is_whole(history: History) -> bool:
    return not (history.labels or history.unreadable or history.missing or history.late)


def plainly_written(history: History) -> Message | None:
    """Returns the record of the trajectory in ``history``; ``None`` if only Python can write it."""
    if _WRITER is None or not _is_whole(history):
        return None
    written = _WRITER.write(
        history.records,
        history.trajectory_id,
        history.duplicates,
        history.first.partition,
        history.first.offset,
        history.last.offset,
        history.closed_ms,
        history.closed_offset,
        history.start_id,
    )
    return None if written is None else Message(*written)
