"""The OTLP receiver: ``POST /v1/traces`` → events on the log, for fleets that OpenTelemetry instruments already.

    agents ──OTLP──▶ SpanBuffer ──complete trajectories──▶ journal ──fsync──▶ Kafka

A request is answered once the trajectories that it completed are durable. Spans of open traces are in memory: a stop
sends them, a kill loses them. While events cannot be made durable, requests are refused with 503, which senders retry.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from aiohttp import web
from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]
from google.protobuf.message import Message as ProtobufMessage  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from headrace.agents.counters import DropReason, SdkCounters
from headrace.agents.encoding import InvalidEvent, Note, encode_note
from headrace.agents.gateway.journal import RETRY_AFTER_S, Journal, JournalFull
from headrace.agents.json_form import TooLarge
from headrace.agents.masking.masker import Masker
from headrace.agents.masking.settings import Masking
from headrace.agents.otel.buffer import SpanBuffer
from headrace.agents.otel.config import OtlpConfig
from headrace.agents.otel.otlp import JSON, PROTOBUF, BadOtlp, Export, parse_export
from headrace.agents.otel.recording import Terms, notes_of
from headrace.agents.otel.trajectories import Grouped
from headrace.agents.server_log import SERVER_LOG
from headrace.agents.spool import SEGMENTS, Spool
from headrace.agents.spool_frames import SpooledRecord, cluster_fingerprint
from headrace.schemas.ids import uuid7
from headrace.schemas.operator_error import OperatorError

log = logging.getLogger(__name__)

SOURCE: Final = "/agents/otlp"

SWEEP_S: Final = 0.5
"""Time between two searches for complete trajectories, in seconds."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""Largest event."""

PART_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of events that are written at once, unless the spool is small."""

_ENCODINGS: Final = ("", "identity", "gzip", "deflate")


class ReceiverUnusable(OperatorError):
    """The receiver cannot start with its settings."""


class Receiver:
    """Takes requests, and records what they complete. Everything but parsing and encoding runs on one event loop."""

    def __init__(self, config: OtlpConfig, journal: Journal, counters: SdkCounters) -> None:
        self.buffer = SpanBuffer(config.limits, one_process=False)
        self._config = config
        self._journal = journal
        self._counters = counters
        self._terms = Terms(config.consent, config.sample_rate, config.tenant)
        self._masker = Masker(Masking()) if config.mask else None
        self._waiting: list[Grouped] = []
        self._unwritten: list[SpooledRecord] = []
        self._writes = asyncio.Lock()

    def app(self) -> web.Application:
        """Return the endpoint."""
        app = web.Application(client_max_size=self._config.max_request_bytes)
        app.router.add_post("/v1/traces", self._export)
        app.router.add_route("*", "/{path:.*}", _unknown)
        return app

    async def sweep(self, stop: asyncio.Event) -> None:
        """Record what is complete, again and again, until ``stop`` is set."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S):
                    await stop.wait()
            self._waiting += self.buffer.due(time.monotonic())
            with contextlib.suppress(JournalFull):
                await self._record()
            self._counters.log_counts()

    async def drain(self) -> None:
        """Record everything, complete or not."""
        self._waiting += self.buffer.drain()
        try:
            await self._record()
        except JournalFull as error:
            log.error("%d events of spans are lost: %s", len(self._unwritten), error)

    async def _export(self, request: web.Request) -> web.Response:
        kind = request.content_type
        if kind not in (PROTOBUF, JSON):
            return _failure(JSON, 415, f"the content type is {kind}: expected {PROTOBUF} or {JSON}")
        encoding = request.headers.get("Content-Encoding", "").lower()
        if encoding not in _ENCODINGS:
            return _failure(kind, 415, f"the content encoding is {encoding[:40]}: expected gzip or none")
        try:
            body = await request.read()
            export = await asyncio.to_thread(parse_export, body, kind)
        except web.HTTPRequestEntityTooLarge:
            size = self._config.max_request_bytes
            return _failure(kind, 413, f"the request is larger than {size:,} bytes (max_request_bytes): send less")
        except (BadOtlp, web.RequestPayloadError) as error:
            return _failure(kind, 400, str(error))
        try:
            await self._record()  # nothing more is taken while earlier events cannot be made durable
            self._take(export)
            await self._record()
        except JournalFull as error:
            return _failure(kind, 503, str(error), {"Retry-After": f"{RETRY_AFTER_S:.0f}"})
        answer = ExportTraceServiceResponse()
        if export.rejected:
            answer.partial_success.rejected_spans = export.rejected
            answer.partial_success.error_message = export.reason
        return _response(kind, 200, answer)

    def _take(self, export: Export) -> None:
        now_s = time.monotonic()
        for span in export.spans:
            self._waiting += self.buffer.add(span, now_s)
        self._waiting += self.buffer.due(now_s)

    async def _record(self) -> None:
        """Make events of complete trajectories durable; raises :class:`JournalFull`, and keeps them."""
        async with self._writes:
            groups, self._waiting = self._waiting, []
            if groups:
                self._unwritten += await asyncio.to_thread(self._encoded, groups)
            # In parts: after a time in which nothing could be written, all of them might never fit the spool at once.
            while self._unwritten:
                part = self._unwritten[: self._part_length()]
                await self._journal.write(part, len(part))
                del self._unwritten[: len(part)]

    def _part_length(self) -> int:
        """Return how many of the events that wait are written at once: as many as fit a part, at least one."""
        left = min(PART_BYTES, self._config.spool_bytes // SEGMENTS)
        for count, record in enumerate(self._unwritten):
            left -= len(record.value or b"")
            if left < 0:
                return max(1, count)
        return len(self._unwritten)

    def _encoded(self, groups: Sequence[Grouped]) -> list[SpooledRecord]:
        return [
            record
            for group in groups
            for note in notes_of(group, self._terms)
            if (record := self._encoded_note(note)) is not None
        ]

    def _encoded_note(self, note: Note) -> SpooledRecord | None:
        try:
            message = encode_note(note, SOURCE, MAX_EVENT_BYTES, self._masker).message
        except TooLarge:
            self._counters.drop(DropReason.OVERSIZE, f"{note.model.TYPE} over {MAX_EVENT_BYTES} bytes")
            return None
        except InvalidEvent as error:
            self._counters.drop(DropReason.INVALID, error)
            return None
        return SpooledRecord(note.topic.name, message.key, message.value, tuple(message.headers))


async def run_receiver(config: OtlpConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until ``stop``; ``ready`` is called once the receiver listens.

    Raises :class:`OperatorError` with a sentence for an operator.
    """
    counters = SdkCounters()
    spool = Spool(
        config.folder / "spool",
        config.spool_bytes,
        cluster_fingerprint(*sorted(each.strip() for each in config.bootstrap.split(","))),
        lambda path, loss: journal.lost(path, loss),
    )
    journal = Journal(spool, config.bootstrap, {}, counters, source=SOURCE, new_id=uuid7)
    receiver = Receiver(config, journal, counters)
    async with asyncio.TaskGroup() as tasks:
        journal.start(tasks)
        try:
            async with _listening(receiver.app(), config):
                ready()
                await receiver.sweep(stop)
        finally:
            await receiver.drain()
            await journal.close(config.flush_s)
            counters.log_counts(all_reasons=True)


@contextlib.asynccontextmanager
async def _listening(app: web.Application, config: OtlpConfig) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=config.flush_s, logger=SERVER_LOG)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.host, config.port).start()
        except OSError as error:
            raise ReceiverUnusable(
                f"the OTLP receiver cannot listen on {config.host}:{config.port}: {error.strerror}. Choose another "
                "port (HEADRACE_OTLP_PORT)"
            ) from error
        log.info("takes spans at http://%s:%d/v1/traces", config.host, config.port)
        yield
    finally:
        await runner.cleanup()


async def _unknown(request: web.Request) -> web.Response:
    kind = PROTOBUF if request.content_type == PROTOBUF else JSON
    where = f"{request.method} {request.path[:200]}"
    return _failure(kind, 404, f"{where} is not an endpoint of headrace's receiver, which takes POST /v1/traces only")


def _failure(kind: str, status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return _response(kind, status, Status(message=message), headers)


def _response(kind: str, status: int, message: ProtobufMessage, headers: dict[str, str] | None = None) -> web.Response:
    body = MessageToJson(message).encode() if kind == JSON else message.SerializeToString()
    return web.Response(body=body, status=status, headers={"Content-Type": kind, **(headers or {})})
