"""A closed trajectory → its record by the extension module, where every event in it is plainly right."""

import hashlib
from array import array
from collections.abc import Iterator
from functools import partial

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
from headrace.streams.native.shapes import shape_of

MAX_RECORD_BYTES = 24 * 1024 * 1024
"""Largest trajectory record; ``trajectories`` takes 32 MiB. A larger one goes without tokens and turns, and says so."""

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


_WRITER = SPEEDUPS and SPEEDUPS.TrajectoryWriter(
    shapes={model.TYPE: shape_of(model) for model in EVENTS.models},
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


def plainly_written(history: History) -> Message | None:
    """The record of the trajectory in ``history``; ``None`` in doubt, or without the extension module."""
    if _WRITER is None or history.labels or history.unreadable or history.missing or history.late:
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
