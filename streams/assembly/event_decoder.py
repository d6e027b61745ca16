"""A record of ``events`` → the fact in it, once, when its trajectory closes.

The payload is read into a struct (:mod:`headrace.streams.structs`), a fifth of what the pydantic model costs. What the
struct's reader doubts, the model reads, and its word is final. Either way the fact has the model's fields.
"""

import re
from typing import Any, cast

from headrace.schemas.envelope import EnvelopeError, from_headers
from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import UnreadableRecord, decode_payload
from headrace.streams.assembly.arrival import Arrival
from headrace.streams.assembly.history import Event, Fact
from headrace.streams.structs import Doubt, StructReader

MAX_NESTING = 150
"""Depth of JSON in an event. Parsers stop at 200, and a trajectory nests its events deeper than they came."""

_MODELS = {model.TYPE: model for model in EVENTS.models}
_READERS = {model.TYPE.encode(): StructReader(model) for model in EVENTS.models}
_STARTED = TrajectoryStarted.TYPE.encode()
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def read_event(arrival: Arrival) -> Event:
    """The event in ``arrival``; raises :class:`UnreadableRecord` saying what is wrong with it."""
    kind, value, time_ms = arrival.kind or b"", arrival.value, arrival.time_ms
    if time_ms is None:
        try:
            time_ms = from_headers(arrival.headers).time_ms
        except EnvelopeError as error:
            raise UnreadableRecord(DeadLetterError.BAD_HEADERS, str(error)) from error
    reader = _READERS.get(kind)
    if reader is None or value is None or nesting(value) > MAX_NESTING:
        return Event(time_ms, _by_model(kind.decode(), value))
    fact: Any
    try:
        fact = reader.read(value)
    except Doubt:
        pass
    else:
        return Event(time_ms, fact, True)
    if kind == _STARTED:  # it goes on as a whole, unknown fields included
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


def nesting(value: bytes) -> int:
    """Upper bound of the depth of JSON; exact where there are enough brackets to matter."""
    brackets = value.count(b"{") + (
        value.count(b"[") if value.find(b"[") >= 0 else 0
    )  # to find is cheaper than to count
    if brackets <= MAX_NESTING:
        return brackets
    depth = deepest = 0
    for token in _BRACKETS.finditer(value):
        if token.group() in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token.group() in b"]}":
            depth -= 1
    return deepest
