"""A finished span as a bounded value, whatever it came from: OpenTelemetry's SDK in this process, or OTLP."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, Final

from headrace.agents.otel import names
from headrace.schemas.bounds import MAX_NAME, MAX_OFFSET, MAX_TIME_MS
from headrace.schemas.trace import SpanContext

MAX_CHARACTERS: Final = 512 * 1024
"""Most characters of the attributes of a span that are kept; further attributes are dropped and labelled."""

MAX_ATTRIBUTES: Final = 8192
"""Most attributes of a span that are kept: OpenInference has one for each field of each message."""

MAX_DEPTH: Final = 16
"""Deepest nesting of an attribute's value; what is deeper is dropped with its attribute."""

MAX_ERROR: Final = 4096
"""Longest description of a failure that is kept, in characters."""

SPAN_CHARACTERS: Final = 400
"""Size of a span besides its texts and attributes, for limits of memory, in characters."""

_MAX_NS: Final = MAX_TIME_MS * 1_000_000 - 1


class SpanKind(StrEnum):
    """What a span records of an agent's work."""

    MODEL = "model"
    TOOL = "tool"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span."""

    trace_id: str
    """32 lower-case hex digits."""
    span_id: str
    """16 lower-case hex digits."""
    parent_id: str | None
    """Parent's span id; ``None`` for the root of a trace."""
    is_entry: bool
    """Whether its parent, if any, is in another process, so that it may never arrive."""
    name: str
    """Name."""
    start_ns: int
    """Start, Unix nanoseconds."""
    end_ns: int
    """End, not before ``start_ns``."""
    error: str | None
    """Description of the failure, possibly empty; ``None`` if it did not fail."""
    service: str
    """``service.name`` of the process."""
    attributes: Mapping[str, Any]
    """Those of the conventions, as plain JSON."""
    problems: tuple[str, ...] = ()
    """What was wrong with it on arrival, as labels."""
    size: int = SPAN_CHARACTERS
    """Its size in characters, approximately."""

    @property
    def context(self) -> SpanContext:
        """Its identity."""
        return SpanContext(self.trace_id, self.span_id)

    @property
    def kind(self) -> SpanKind | None:
        """What it records; ``None`` for a span of no interest but as the parent of others."""
        if names.EXPORTED in self.attributes:
            return None
        operation = self.attributes.get(names.OPERATION)
        if operation in names.MODEL_OPERATIONS:
            return SpanKind.MODEL
        if operation == names.TOOL_OPERATION:
            return SpanKind.TOOL
        if operation == names.AGENT_OPERATION:
            return SpanKind.AGENT
        kinds = {names.LLM_KIND: SpanKind.MODEL, names.TOOL_KIND: SpanKind.TOOL, names.AGENT_KIND: SpanKind.AGENT}
        kind = self.attributes.get(names.SPAN_KIND)
        return kinds.get(kind.upper()) if isinstance(kind, str) else None


def bounded_span(
    *,
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    is_entry: bool,
    name: str,
    start_ns: int,
    end_ns: int,
    error: str | None,
    service: str,
    attributes: Iterable[tuple[str, Any]],
) -> Span:
    """Return a span of these values; what exceeds a bound is dropped, and named in ``problems``."""
    problems, kept, size = list[str](), dict[str, Any](), SPAN_CHARACTERS
    for key, value in attributes:
        if not key.startswith(names.KEPT):
            continue
        try:
            plain = _plain(value)
            cost = len(key) + _cost(plain)
        except _TooDeep:
            problems.append("attribute_too_deep")
            continue
        if size + cost > MAX_CHARACTERS or len(kept) >= MAX_ATTRIBUTES:
            problems.append("attribute_too_large")
            continue
        kept[key] = plain
        size += cost
    name, service = valid_text(name[:MAX_NAME]), valid_text(service[:MAX_NAME])
    error = None if error is None else valid_text(error[:MAX_ERROR])
    first, last = (min(max(0, each), _MAX_NS) for each in (start_ns, end_ns))
    if first != start_ns or last != end_ns or last < first or not start_ns:
        problems.append("bad_time")
    return Span(
        trace_id,
        span_id,
        parent_id,
        is_entry or parent_id is None,
        name,
        first,
        max(first, last),
        error,
        service,
        kept,
        tuple(dict.fromkeys(problems)),
        size + len(name) + len(service) + len(error or ""),
    )


def valid_text(text: str) -> str:
    """Return ``text`` with ``?`` for what is not valid Unicode."""
    return text.encode("utf-8", "replace").decode()


class _TooDeep(Exception):
    pass


def _plain(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as JSON: bytes as hex, integers beyond 64 bits as text, anything unknown as ``None``."""
    if depth > MAX_DEPTH:
        raise _TooDeep
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {valid_text(str(key)): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int):
        return value if -MAX_OFFSET - 1 <= value <= MAX_OFFSET else str(value)[:MAX_NAME]
    return None


def _cost(value: Any) -> int:
    """Return the size of a plain value, in characters."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _cost(each) + 8 for key, each in value.items())
    return sum(map(_cost, value)) if isinstance(value, list) else 8
