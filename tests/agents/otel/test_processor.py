"""The span processor: spans of OpenTelemetry's SDK become events, and nothing raises into the host."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, StatusCode, TraceFlags, set_span_in_context

from headrace.agents.consent import Consent
from headrace.agents.encoding import Note, encode_note
from headrace.agents.masking.masker import Masker
from headrace.agents.masking.settings import Masking
from headrace.agents.otel.buffer import BufferLimits
from headrace.agents.otel.processor import QUEUE_SIZE, HeadraceSpanProcessor
from headrace.agents.sdk import Headrace
from tests.agents.sdk_helpers import NOWHERE, kinds, until

AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "shop"}
CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "I am a@b.org"}]}]),
}


@pytest.fixture
def provider(headrace: Headrace) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(HeadraceSpanProcessor(headrace, limits=BufferLimits(grace_s=0.0)))
    yield provider
    provider.shutdown()


def test_a_trace_is_a_trajectory_once_its_root_has_ended(provider: TracerProvider, notes: list[Note]) -> None:
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("GET /help"), tracer.start_as_current_span("agent", attributes=AGENT):
        with tracer.start_as_current_span("chat", attributes=CHAT) as chat:
            chat.set_status(StatusCode.ERROR, "rate limit")
        assert notes == []
    until(lambda: len(notes) == 3)
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert (notes[0].fields["agent"], notes[1].fields["finish_reason"]) == ("shop", "error")
    message = encode_note(notes[1], "spans", 1 << 20, Masker(Masking())).message
    assert b"a@b.org" not in message.value
    assert dict(message.headers)["ce_id"].decode() == notes[1].event_id
    assert f"{chat.get_span_context().span_id:016x}".encode() in dict(message.headers)["traceparent"]


def test_shutdown_sends_what_is_not_complete_and_later_spans_are_counted(
    headrace: Headrace, provider: TracerProvider, notes: list[Note]
) -> None:
    tracer = provider.get_tracer("t")
    elsewhere = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    with tracer.start_as_current_span("chat", set_span_in_context(NonRecordingSpan(elsewhere)), attributes=CHAT):
        pass
    provider.shutdown()
    assert kinds(notes) == ["trajectory.started", "model.called", "trajectory.ended"]
    assert notes[2].fields["status"] == "aborted"
    with tracer.start_as_current_span("chat", attributes=CHAT):
        pass
    assert headrace.stats.dropped == {"closed": 1}


def test_a_flush_sends_complete_traces(notes: list[Note], headrace: Headrace) -> None:
    processor = HeadraceSpanProcessor(headrace, limits=BufferLimits(grace_s=0.0))
    provider = TracerProvider()
    provider.add_span_processor(processor)
    with provider.get_tracer("t").start_as_current_span("chat", attributes=CHAT):
        pass
    assert processor.force_flush(1)
    assert len(notes) == 3
    provider.shutdown()


def test_consent_is_that_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    with Headrace(NOWHERE, source="t", consent=Consent.UNRECORDED, spool_bytes=0, flush_deadline_s=0) as headrace:
        provider = TracerProvider()
        provider.add_span_processor(HeadraceSpanProcessor(headrace))
        with provider.get_tracer("t").start_as_current_span("chat", attributes=CHAT):
            pass
        provider.shutdown()
        assert headrace.stats.emitted == 0


def test_a_full_queue_drops_and_counts(
    headrace: Headrace, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.agents.otel.processor.TICK_S", 60.0)
    tracer = provider.get_tracer("t")
    for _ in range(QUEUE_SIZE + 3):
        tracer.start_span("work").end()
    assert headrace.stats.dropped == {"queue_full": 3}


def test_a_span_that_cannot_be_read_is_counted(
    headrace: Headrace, provider: TracerProvider, notes: list[Note], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(span: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr("headrace.agents.otel.processor.finished_span", fail)
    provider.get_tracer("t").start_span("work").end()
    until(lambda: headrace.stats.dropped == {"internal": 1})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_sends_its_own_spans_only(headrace: Headrace, notes: list[Note]) -> None:
    processor = HeadraceSpanProcessor(headrace, limits=BufferLimits(grace_s=60.0))
    provider = TracerProvider()
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("parent", attributes=CHAT):
        pass
    if (child := os.fork()) == 0:
        status = 1
        with suppress(Exception):
            status = 0 if not processor._queue and not len(processor._buffer) and processor._thread is None else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    provider.shutdown()
    assert len(notes) == 3


def test_spans_at_the_end_of_a_program_are_not_lost(tmp_path: Path) -> None:
    program = f"""
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider()  # its hook at the end is older than headrace's
from headrace.agents.otel.processor import HeadraceSpanProcessor
from headrace.agents.sdk import Headrace
headrace = Headrace({NOWHERE!r}, source="t", spool_folder={str(tmp_path)!r}, flush_deadline_s=0)
provider.add_span_processor(HeadraceSpanProcessor(headrace))
provider.get_tracer("t").start_span("chat", attributes={CHAT!r}).end()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "3 events were not sent" in ended.stderr
