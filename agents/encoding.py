"""From what the host's thread noted to a Kafka record: validated, serialised and measured, off the host's thread."""

import math
from array import array
from typing import Any, NamedTuple, TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import uuid7
from headrace.schemas.model import Part, Record
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message, encode

MAX_DEPTH = 64
"""Nesting of a payload past which the rest is described rather than copied."""

MAX_DESCRIPTION = 1_000
"""Characters of the description of a value that JSON has no form for."""


class Note(NamedTuple):
    """An event as the host's thread leaves it: references only, nothing computed."""

    topic: Topic
    """Where it goes."""
    trajectory_id: str
    """Key and subject."""
    seq: int | None
    """Position in the trajectory; ``None`` on feedback."""
    time_ns: int
    """When it happened, Unix nanoseconds."""
    context: Context
    """The host's OpenTelemetry context at the call; it holds a span where one was active."""
    model: type[Record]
    """Type of the payload."""
    fields: dict[str, Any]
    """Fields of the payload, not yet validated."""


NoteFields: TypeAlias = tuple[Topic, str, int | None, int, Context, type[Record], dict[str, Any]]
"""A :class:`Note` as the host's thread makes it: a bare tuple costs a sixth of a named one."""


class InvalidEvent(ValueError):
    """The noted fields do not make an event; the message says which field and why."""


def encode_note(note: Note, source: str) -> Message:
    """``note`` as a Kafka record from ``source``; raises :class:`InvalidEvent`.

    Values that JSON has no form for (a set, an exception, a lone surrogate) are described in words rather than
    costing the whole event; that slower way is taken only where the direct one fails.
    """
    envelope = Envelope(
        id=uuid7(),
        type=note.model.TYPE,
        source=source,
        time_ms=note.time_ns // 1_000_000,
        subject=note.trajectory_id,
        sequence=note.seq,
        traceparent=traceparent(note.context),
    )
    try:
        try:
            return encode(note.model.model_validate(note.fields), key=note.trajectory_id, envelope=envelope)
        except (PydanticSerializationError, ValueError) as error:
            if isinstance(error, ValidationError):
                raise
            return encode(note.model.model_validate(_plain(note.fields)), key=note.trajectory_id, envelope=envelope)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)[:3]
        text = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise InvalidEvent(f"{note.model.TYPE}: {text}") from error
    except Exception as error:  # fields hold the host's objects, and their methods may raise anything
        raise InvalidEvent(f"{note.model.TYPE}: {type(error).__name__}") from error


def traceparent(context: Context) -> str | None:
    """The W3C trace context of the span in ``context``; ``None`` where there is no valid one."""
    span = get_current_span(context).get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


def is_larger_than(fields: dict[str, Any], limit: int) -> bool:
    """Whether one field alone is longer than ``limit``: known without serialising it, which would hold the GIL."""
    return any(isinstance(value, str | bytes | list | dict) and len(value) > limit for value in fields.values())


def _plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """A copy of ``value`` that JSON can carry. ``above`` are the ids of the containers around it: cycles end there."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool | int | array | Record | Part):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if id(value) not in above and len(above) < MAX_DEPTH:
        inside = (*above, id(value))
        if isinstance(value, dict):
            return {_plain(str(key)): _plain(item, inside) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, inside) for item in value]
    return _plain(f"<{type(value).__name__}>" if id(value) in above else repr(value)[:MAX_DESCRIPTION])
