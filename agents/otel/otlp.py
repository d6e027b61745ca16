"""Requests of OTLP → spans. Protobuf is parsed by the package ``opentelemetry-proto``."""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from headrace.agents.otel.span import MAX_DEPTH, Span, bounded_span

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"

_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
"""Flags of a span about its parent (``SPAN_FLAGS_CONTEXT_*_MASK``)."""

_TRACE_BYTES, _SPAN_BYTES = 16, 8


class BadOtlp(ValueError):
    """The body is not a request of OTLP; the message says why."""


@dataclass(slots=True)
class Export:
    """The spans of a request."""

    spans: list[Span] = field(default_factory=list)
    rejected: int = 0
    """Number of spans that are not valid."""
    reason: str = ""
    """Why the first of them is not."""


def parse_export(body: bytes, content_type: str) -> Export:
    """Return the spans of a request with the ``content_type`` :data:`PROTOBUF` or :data:`JSON`. Raises
    :class:`BadOtlp`."""
    if content_type == JSON:
        request = _from_json(body)
    else:
        try:
            request = ExportTraceServiceRequest.FromString(body)
        except DecodeError as error:
            raise BadOtlp(f"the body is not an ExportTraceServiceRequest in protobuf: {error}") from None
    export = Export()
    for resource_spans in request.resource_spans:
        service = _service(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                try:
                    export.spans.append(_span(span, service))
                except BadOtlp as error:
                    export.rejected += 1
                    export.reason = export.reason or str(error)
    return export


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            raise BadOtlp("the body is not a JSON object")
        for span in _spans_in(value):
            # OTLP/JSON has ids in hex, protobuf's own JSON in base64.
            for name in ("traceId", "spanId", "parentSpanId"):
                if span.get(name):
                    span[name] = base64.b64encode(binascii.unhexlify(span[name])).decode()
            span.pop("links", None)
        request = ExportTraceServiceRequest()
        ParseDict(value, request, ignore_unknown_fields=True)
        return request
    except (ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadOtlp(f"the body is not an ExportTraceServiceRequest in JSON: {error}") from None


def _spans_in(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource_spans in value.get("resourceSpans") or ():
        for scope_spans in resource_spans.get("scopeSpans") or ():
            yield from scope_spans.get("spans") or ()


def _span(span: trace_pb2.Span, service: str) -> Span:
    for name, found, size in (("trace_id", span.trace_id, _TRACE_BYTES), ("span_id", span.span_id, _SPAN_BYTES)):
        if len(found) != size or not any(found):
            raise BadOtlp(f"a span's {name} is {found[:32].hex() or 'empty'}: expected {size} bytes that are not all 0")
    if span.parent_span_id and len(span.parent_span_id) != _SPAN_BYTES:
        raise BadOtlp(f"a span's parent_span_id has {len(span.parent_span_id)} bytes: expected {_SPAN_BYTES} or none")
    error: str | None = None
    if span.status.code == trace_pb2.Status.STATUS_CODE_ERROR:
        error = span.status.message
        for event in span.events:
            if event.name == "exception":
                values = dict(_values(event.attributes))
                error = error or str(values.get("exception.message", ""))
    return bounded_span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        is_entry=not span.parent_span_id or bool(span.flags & _HAS_IS_REMOTE and span.flags & _IS_REMOTE),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=error,
        service=service,
        attributes=_values(span.attributes),
    )


def _service(attributes: Iterable[KeyValue]) -> str:
    return next((str(value) for key, value in _values(attributes) if key == "service.name"), "")


def _values(attributes: Iterable[KeyValue]) -> Iterator[tuple[str, Any]]:
    return ((each.key, _value(each.value)) for each in attributes)


def _value(value: AnyValue, depth: int = 0) -> Any:
    """Return a value as Python's; what is nested too deep becomes ``None``."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each, depth + 1) for each in value.array_value.values] if depth <= MAX_DEPTH else None
    if kind == "kvlist_value":
        values = value.kvlist_value.values
        return {each.key: _value(each.value, depth + 1) for each in values} if depth <= MAX_DEPTH else None
    return None if kind is None else getattr(value, kind)
