"""Decodes records of one type at a fifth of the cost of envelope and pydantic model.

If the struct reader cannot decide, or the headers are not in headrace's own form, the model decodes the payload, and
its result is final. Either way the payload has the model's fields.
"""

from typing import Generic, NamedTuple, TypeVar

from headrace.schemas.envelope import ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT, TYPE, plain_time
from headrace.schemas.model import Record
from headrace.schemas.nesting import MAX_NESTING, nesting
from headrace.streams.raw import LogRecord
from headrace.streams.structs import Doubt, StructReader
from headrace.streams.typed_record import typed

R = TypeVar("R", bound=Record)

_NOT_ASCII = b"\xff"


class TypedPayload(NamedTuple, Generic[R]):
    """A decoded payload."""

    payload: R
    """The model, or a struct with its fields."""
    traceparent: str | None
    """Trace of its record."""


class PlainHeaders(NamedTuple):
    """Headers in headrace's own form."""

    traceparent: str | None
    """Trace of the record."""


class TypedReader(Generic[R]):
    """Reads the records of one type."""

    def __init__(self, model: type[R]) -> None:
        self._model = model
        self._reader = StructReader(model)
        self._type = model.TYPE.encode()

    def read(self, record: LogRecord) -> TypedPayload[R]:
        """Returns the payload of ``record``. Raises :class:`UnreadableRecord` with the error."""
        value = record.value
        if value is not None and (plain := self.plain(record)) is not None and nesting(value) <= MAX_NESTING:
            try:
                return TypedPayload(self._reader.read(value), plain.traceparent)
            except Doubt:
                pass
        envelope, payload = typed(record, self._model)
        return TypedPayload(payload, envelope.traceparent)

    def plain(self, record: LogRecord) -> PlainHeaders | None:
        """Returns what the headers of ``record`` say if they are in headrace's own form and name the type."""
        headers = dict(record.headers)
        trace = headers.get(TRACEPARENT)
        plain = (
            headers.get(TYPE) == self._type
            and plain_time(headers.get(TIME) or b"") is not None
            and SEQUENCE not in headers
            and (headers.get(ID) or _NOT_ASCII).isascii()
            and (headers.get(SOURCE) or _NOT_ASCII).isascii()
            and (headers.get(SUBJECT) or _NOT_ASCII).isascii()
            and (TRACEPARENT not in headers or (trace or _NOT_ASCII).isascii())
        )
        return PlainHeaders(trace.decode() if trace else None) if plain else None
