"""Spans of this process → events, by the SDK: for agents that OpenTelemetry instruments already.

provider.add_span_processor(HeadraceSpanProcessor(Headrace("localhost:9092", source="checkout-helper")))
"""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode

from headrace.agents.counters import DropReason
from headrace.agents.otel.buffer import BufferLimits, SpanBuffer
from headrace.agents.otel.recording import Terms, notes_of
from headrace.agents.otel.span import Span as FinishedSpan
from headrace.agents.otel.span import bounded_span
from headrace.agents.otel.trajectories import Grouped
from headrace.agents.process_end import call_at_end
from headrace.agents.sdk import Headrace

GRACE_S: Final = 2.0
"""Seconds for which spans that end after their root are waited for."""

TICK_S: Final = 0.25
"""Pause between two looks at the queue, in seconds."""

QUEUE_SIZE: Final = 20_000
"""Finished spans that wait for the background thread; further ones are dropped and counted."""


class HeadraceSpanProcessor(SpanProcessor):
    """Makes trajectories of the GenAI and OpenInference spans of this process, and sends them by ``headrace``.

    ``on_end`` appends to a queue; everything else runs on a background thread. Nothing raises into the host. The SDK's
    consent, sampling and masking apply; sampling is decided by the hash of the conversation's or the trace's id.
    """

    def __init__(self, headrace: Headrace, *, limits: BufferLimits | None = None) -> None:
        """``limits``: times and sizes of the buffer; the default waits two seconds after the root's end."""
        self._headrace = headrace
        self._limits = limits or BufferLimits(grace_s=GRACE_S)
        self._is_closed = False
        self._begin()
        this = weakref.ref(self)
        atexit.register(_shut_down, this)  # runs before the SDK closes, as the provider's own hook need not
        os.register_at_fork(after_in_child=lambda: _begin_again(this))

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue ``span``. Never blocks or raises."""
        if self._is_closed or len(self._queue) >= QUEUE_SIZE:
            reason = DropReason.CLOSED if self._is_closed else DropReason.QUEUE_FULL
            self._headrace.count_drop(reason, "a span of OpenTelemetry")
            return
        self._queue.append(span)
        if self._thread is None:
            self._start()

    def shutdown(self) -> None:
        """Send everything, complete or not; later spans are dropped and counted."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop.set()
        with self._lock:
            self._take()
            self._send(self._buffer.drain())

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what is complete, and wait until Kafka has it; return ``False`` if the time passed first."""
        with self._lock:
            self._take()
            self._send(self._buffer.due(time.monotonic()))
        return self._headrace.flush(timeout_millis / 1000)

    def _begin(self) -> None:
        self._queue: deque[ReadableSpan] = deque()
        self._buffer = SpanBuffer(self._limits, one_process=True)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_end_is_set = False

    def _start(self) -> None:
        """Start the thread; of two that start at once, each does a part of the work."""
        self._thread = threading.Thread(target=self._run, name="headrace-spans", daemon=True)
        try:
            self._thread.start()
            if not self._at_end_is_set:
                self._at_end_is_set = True
                call_at_end(self.shutdown, priority=1)  # before the SDK closes
        except RuntimeError as error:  # no thread can be started now: the next span tries again
            self._thread = None
            self._headrace.count_drop(DropReason.INTERNAL, error)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            with self._lock:
                self._take()
                self._send(self._buffer.due(time.monotonic()))

    def _take(self) -> None:
        now_s = time.monotonic()
        while self._queue:
            try:
                self._send(self._buffer.add(finished_span(self._queue.popleft()), now_s))
            except Exception as error:  # noqa: BLE001 - one span must not stop the others
                self._headrace.count_drop(DropReason.INTERNAL, f"a span of OpenTelemetry: {error!r}")

    def _send(self, groups: list[Grouped]) -> None:
        consent, sample_rate = self._headrace.terms
        for group in groups:
            try:
                self._headrace.send(notes_of(group, Terms(consent, sample_rate)))
            except Exception as error:  # noqa: BLE001 - one trajectory must not stop the others
                self._headrace.count_drop(DropReason.INTERNAL, f"a trajectory of spans: {error!r}")


def finished_span(span: ReadableSpan) -> FinishedSpan:
    """Return a span of OpenTelemetry's SDK as a bounded value."""
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    error: str | None = None
    if span.status.status_code is StatusCode.ERROR:
        error = span.status.description or ""
        for event in span.events:
            if event.name == "exception" and event.attributes:
                error = error or str(event.attributes.get("exception.message", ""))
    return bounded_span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=None if parent is None else f"{parent.span_id:016x}",
        is_entry=parent is None or parent.is_remote,
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        error=error,
        service=str(span.resource.attributes.get(SERVICE_NAME, "")),
        attributes=(span.attributes or {}).items(),
    )


def _shut_down(processor: "weakref.ref[HeadraceSpanProcessor]") -> None:
    if (found := processor()) is not None:
        found.shutdown()


def _begin_again(processor: "weakref.ref[HeadraceSpanProcessor]") -> None:
    """Forget, in a forked child, the spans and the thread that belong to the parent."""
    if (found := processor()) is not None:
        found._begin()
