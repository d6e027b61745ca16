"""Ordinary records straight into columns: no model, no envelope, no copy of values that are stored as they came.

A record is ordinary where its envelope can be read and its payload is one that a struct's reader
(:mod:`headrace.streams.structs`) is sure of. :func:`add_ordinary` takes those and leaves any other untouched, to be
decoded and validated by :mod:`batches`. Both give the same rows; ``tests/streams/clickhouse/test_ordinary.py`` compares
them.
"""

from collections.abc import Mapping
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
from headrace.schemas.topics import MODELS
from headrace.streams.assembly.event_decoder import MAX_NESTING, nesting
from headrace.streams.clickhouse import tables
from headrace.streams.clickhouse.columns import TableRows
from headrace.streams.clickhouse.rows import DERIVED, WITHOUT_TRAJECTORY, fact_columns
from headrace.streams.raw import LogRecord
from headrace.streams.structs import Doubt, StructReader

LONG_NUMBER = 200
"""Digits in a row from which on a number may be beyond a double."""

_DIGITS = frozenset(b"0123456789")
_ALIKE = bytes(ord("0") if byte in _DIGITS else byte for byte in range(256))
_LONG = b"0" * LONG_NUMBER
_Envelope: TypeAlias = tuple[str | bytes, int, str | bytes, str | bytes, int]
"""Id, time in Unix milliseconds, source, subject and sequence number."""


def _readers() -> dict[bytes, StructReader[Any]]:
    """By ``ce_type``, the models that have a struct's reader."""
    found: dict[bytes, StructReader[Any]] = {}
    for name, model in MODELS.items():
        try:
            found[name.encode()] = StructReader(model)
        except TypeError:  # a model with fields that structs do not know is validated, record by record
            continue
    return found


READERS = _readers()
_TYPES = {name: name.decode() for name in READERS}
_SEQUENCES = {b"%d" % number: number for number in range(1024)}
"""Nearly every sequence number, parsed."""


def add_ordinary(record: LogRecord, into: Mapping[str, TableRows]) -> bool:
    """Append the rows of ``record`` to ``into``, by table's name; ``False``, and nothing is added, where it is not
    ordinary.
    """
    headers = dict(record.headers)
    kind, value = headers.get(TYPE), record.value
    reader = READERS.get(kind) if kind is not None else None
    if kind is None or reader is None or value is None:
        return False
    envelope = _plain(headers) or _parsed(record)
    if envelope is None:
        return False
    id, time_ms, source, subject, sequence = envelope
    payload = _read(reader, value)
    if payload is None:
        return False
    always = (id, time_ms, source, record.partition, record.offset)
    name = _TYPES[kind]
    derived = DERIVED.get(name)
    if derived is None:
        trajectory = "" if name in WITHOUT_TRAJECTORY else subject
        into[tables.EVENTS.name].add((*always, kind, trajectory, sequence, value), fact_columns(payload))
        return True
    for table, row in list(derived(payload, subject if isinstance(subject, str) else subject.decode())):
        into[table.name].add(always, row)
    return True


def _plain(headers: dict[str, bytes | None]) -> _Envelope | None:
    """What :func:`headrace.schemas.envelope.to_headers` wrote, if in ASCII; nothing of it is decoded."""
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
    """Any other envelope; ``None`` where it cannot be read."""
    try:
        found = from_headers(record.headers)
    except EnvelopeError:
        return None
    return found.id, found.time_ms, found.source, found.subject, found.sequence or 0


def _read(reader: StructReader[Any], value: bytes) -> Record | None:
    """The payload in ``value`` as a struct, or ``None`` where only its model can tell."""
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
    """Whether so many digits may follow one another that a number is not finite. Readers of structs refuse every other
    form of such a number: the words, and floats from 1e10 on.
    """
    # As many digits in a row have one at a multiple of their number.
    return not _DIGITS.isdisjoint(value[::LONG_NUMBER]) and _LONG in value.translate(_ALIKE)
