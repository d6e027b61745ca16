"""W3C trace context through the stream: a derived record continues the trace of its inputs.

    agent's span        00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    its trajectory      00-4bf92f3577b34da6a3ce929d0e0e4736-<derived from the record's id>-01

Span ids of derived records are derived, not random, so a replay produces the same bytes.
"""

import hashlib
import re
from dataclasses import dataclass

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The identity of a span."""

    trace_id: str
    """32 lower-case hex digits."""
    span_id: str
    """16 lower-case hex digits."""
    flags: str = "01"
    """Two hex digits; ``01``: sampled."""

    @property
    def traceparent(self) -> str:
        """The value of the ``traceparent`` header."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse_traceparent(traceparent: str | None) -> SpanContext | None:
    """Parse a ``traceparent`` header; return ``None`` if it is missing or not a valid header of version 00."""
    match = _FORM.fullmatch(traceparent or "")
    if match is None or match[1] == _NO_TRACE or match[2] == _NO_SPAN:
        return None
    return SpanContext(*match.groups())


def continued(traceparent: str | None, record_id: str) -> str | None:
    """Return the ``traceparent`` of the derived record ``record_id`` in the trace of its origin; ``None`` if the origin
    has none."""
    origin = parse_traceparent(traceparent)
    return None if origin is None else child(origin, record_id).traceparent


def child(origin: SpanContext, record_id: str) -> SpanContext:
    """Return the span of the derived record ``record_id`` in the trace of ``origin``."""
    span_id = hashlib.sha256(f"{origin.span_id}/{record_id}".encode()).hexdigest()[:16]
    return SpanContext(origin.trace_id, span_id, origin.flags)
