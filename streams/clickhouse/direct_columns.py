"""Converts ordinary records directly into columns, without model, envelope, or copies of values stored unchanged.

A record is ordinary if its envelope can be parsed and a struct reader (:mod:`headrace.streams.structs`) accepts its
payload. :func:`add_ordinary` handles these and leaves all others to be decoded and validated by :mod:`batches`. Both
give the same rows; ``tests/streams/clickhouse/test_direct_columns.py`` compares them.
"""

from typing import Any, TypeAlias

from headrace.schemas.envelope import (
    ID,
    MAX_HEADER_BYTES,
    SEQUENCE,
    SOURCE,
    SUBJECT,
    TIME,
    TRACEPARENT,
    TYPE,
    EnvelopeError,
    from_headers,
    plain_time,
)
from headrace.schemas.model import Record
from headrace.schemas.nesting import MAX_NESTING, nesting
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import MODELS, TYPES
from headrace.streams.clickhouse import tables
from headrace.streams.clickhouse.rows import DERIVED, STORED_TYPES, WITHOUT_TRAJECTORY, fact_columns, logged_ms
from headrace.streams.clickhouse.rows_by_table import RowsByTable
from headrace.streams.raw import LogRecord
from headrace.streams.structs import Doubt, StructReader

LONG_NUMBER = 200
"""Number of consecutive digits from which on a number may exceed a double."""

_DIGITS = frozenset(b"0123456789")
_ALIKE = bytes(ord("0") if byte in _DIGITS else byte for byte in range(256))
_LONG = b"0" * LONG_NUMBER
_TEN = b"0" * 10
_Envelope: TypeAlias = tuple[str | bytes, int, str | bytes, str | bytes, int]
"""Id, time in Unix milliseconds, source, subject and sequence number."""


def _readers() -> dict[bytes, StructReader[Any]]:
    """Returns the struct readers by ``ce_type``, for the models that have rows and a struct reader."""
    found: dict[bytes, StructReader[Any]] = {}
    for name in STORED_TYPES:
        try:
            found[name.encode()] = StructReader(MODELS[name])
        except TypeError:  # records of a model with fields that structs do not support are validated by the model
            continue
    return found


READERS = _readers()
_TYPES = {name: name.decode() for name in READERS}
_SEQUENCES = {b"%d" % number: number for number in range(1024)}
"""Cache of parsed sequence numbers; nearly all are below 1024."""


def add_ordinary(record: LogRecord, into: RowsByTable) -> bool:
    """Append the rows of ``record`` to ``into``, by table name. Returns ``False``, and adds nothing, if the record is
    not ordinary.
    """
    headers = dict(record.headers)
    kind, value = headers.get(TYPE), record.value
    reader = READERS.get(kind) if kind is not None else None
    if kind is None or reader is None or value is None or _TYPES[kind] not in TYPES.get(record.topic, MODELS):
        return False
    envelope = _plain(headers) or _parsed(record)
    if envelope is None:
        return False
    id, time_ms, source, subject, sequence = envelope
    always = (id, time_ms, source, record.partition, record.offset, logged_ms(record.timestamp, time_ms))
    name = _TYPES[kind]
    if name == Trajectory.TYPE and into.add_trajectory(always, value):
        return True
    payload = _read(reader, value)
    if payload is None:
        return False
    derived = DERIVED.get(name)
    if derived is None:
        trajectory = "" if name in WITHOUT_TRAJECTORY else subject
        into[tables.EVENTS.name].add((*always, kind, trajectory, sequence, value), fact_columns(payload))
        return True
    for table, row in list(derived(payload, subject if isinstance(subject, str) else subject.decode())):
        into[table.name].add(always, row)
    return True


def _plain(headers: dict[str, bytes | None]) -> _Envelope | None:
    """Returns an ASCII envelope written by :func:`headrace.schemas.envelope.to_headers`, without decoding its texts."""
    id, source, subject, time = headers.get(ID), headers.get(SOURCE), headers.get(SUBJECT), headers.get(TIME)
    trace, number = headers.get(TRACEPARENT, b""), headers.get(SEQUENCE, b"0")
    if not (id and source and subject and time) or trace is None or number is None:
        return None
    if len(id) + len(source) + len(subject) + len(trace) > MAX_HEADER_BYTES:
        return None
    if not (id.isascii() and source.isascii() and subject.isascii() and trace.isascii()):
        return None
    time_ms, sequence = plain_time(time), _SEQUENCES.get(number)
    if time_ms is None or sequence is None:
        return None
    return id, time_ms, source, subject, sequence


def _parsed(record: LogRecord) -> _Envelope | None:
    """Parse any other envelope; ``None`` if it is invalid."""
    try:
        found = from_headers(record.headers)
    except EnvelopeError:
        return None
    return found.id, found.time_ms, found.source, found.subject, found.sequence or 0


def _read(reader: StructReader[Any], value: bytes) -> Record | None:
    """Returns the payload in ``value`` as a struct; ``None`` if only its model can decide."""
    if _may_hold_long_number(value) or nesting(value) > MAX_NESTING:
        return None
    payload: Record
    try:
        payload = reader.read(value)
    except Doubt:
        try:
            payload = reader.read_beside_unknown_fields(value)
        except Doubt:
            return None
    return payload


def _may_hold_long_number(value: bytes) -> bool:
    """Whether ``value`` may hold so many consecutive digits that a number is not finite. Struct readers reject all
    other forms of such a number: ``Infinity``, ``NaN``, and floats from 1e10 on.
    """
    # A run of LONG_NUMBER digits covers ten consecutive multiples of a tenth of it; ten digits of base64 rarely do.
    return _TEN in value[:: LONG_NUMBER // 10].translate(_ALIKE) and _LONG in value.translate(_ALIKE)
