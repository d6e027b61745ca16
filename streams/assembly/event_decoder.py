"""Decodes a record of ``events`` into its fact, once, when its trajectory closes.

The payload is decoded into a struct (:mod:`headrace.streams.structs`) at a fifth of the cost of the pydantic model. If
the struct reader cannot decide, the model decodes the payload, and its result is final. Either way the fact has the
model's fields.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any, cast

from headrace.schemas.events import Fact, TrajectoryStarted
from headrace.schemas.finite import is_plainly_finite
from headrace.schemas.model import Record
from headrace.schemas.nesting import MAX_NESTING, nesting
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import UnreadableRecord, decode_payload, envelope_of
from headrace.streams.assembly.arrival import Arrival
from headrace.streams.assembly.history import Event
from headrace.streams.structs import Doubt, StructReader

logger = logging.getLogger(__name__)


def _readers(models: Iterable[type[Record]]) -> Iterator[tuple[bytes, StructReader[Any]]]:
    """Yields a reader for each type that a struct can represent; other types are decoded by their models."""
    for model in models:
        try:
            yield model.TYPE.encode(), StructReader(model)
        except TypeError as error:
            logger.warning("%s is decoded by its model, which takes five times as long: %s", model.TYPE, error)


_MODELS = {model.TYPE: model for model in EVENTS.models}
_READERS = dict(_readers(EVENTS.models))
_STARTED = TrajectoryStarted.TYPE.encode()


def evident_problem(arrival: Arrival) -> UnreadableRecord | None:
    """Returns why an event cannot be read, as far as its envelope and the first and last byte of its payload show.
    Other errors in the payload show when the trajectory closes.
    """
    value = arrival.value
    if arrival.time_ms is not None and value is not None and value[:1] == b"{" and value[-1:] == b"}":
        return None
    return problem_of(arrival)


def problem_of(arrival: Arrival) -> UnreadableRecord | None:
    """Returns why a record cannot be read, by decoding all of it; else ``None``."""
    try:
        read_event(arrival)
    except UnreadableRecord as error:
        return error
    except Exception:
        # A fault in headrace: it is raised again when the trajectory closes, which makes an event a dead letter.
        logger.exception("%s[%d]@%d could not be checked", arrival.topic, arrival.partition, arrival.offset)
    return None


def read_event(arrival: Arrival) -> Event:
    """Returns the event in ``arrival``. Raises :class:`UnreadableRecord` with the error."""
    kind, value, time_ms = arrival.kind or b"", arrival.value, arrival.time_ms
    if time_ms is None:
        time_ms = envelope_of(arrival.headers).time_ms
    reader = _READERS.get(kind)
    if reader is None or value is None or nesting(value) > MAX_NESTING or not is_plainly_finite(value):
        return Event(time_ms, _by_model(kind.decode(), value))
    fact: Any
    try:
        fact = reader.read(value)
    except Doubt:
        pass
    else:
        return Event(time_ms, fact, True)
    if kind == _STARTED:  # the trajectory keeps all of it, unknown fields included
        return Event(time_ms, _by_model(kind.decode(), value), True)
    try:
        fact = reader.read_beside_unknown_fields(value)
    except Doubt:
        return Event(time_ms, _by_model(kind.decode(), value))
    return Event(time_ms, fact, True)


def _by_model(type_name: str, value: bytes | None) -> Fact:
    fact = decode_payload(type_name, value, _MODELS)
    if value is not None and nesting(value) > MAX_NESTING:
        raise UnreadableRecord(DeadLetterError.INVALID, f"{type_name}: nested deeper than {MAX_NESTING}")
    return cast(Fact, fact)
