"""I/O layer of :mod:`traces`: an ordinary consumer that sends spans to an OpenTelemetry collector.

Offsets are committed once the collector has accepted the spans. While the collector is unavailable the exporter waits;
no other process waits for the exporter. A span that is exported twice has the same ids. If retention deletes records
before they are read, they have no span: the exporter counts them, logs that, commits the log start and continues.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from aiokafka import TopicPartition
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanContext as OtelContext
from tenacity import retry, retry_if_result, wait_exponential_jitter

from headrace.schemas.envelope import Envelope, EnvelopeError, from_headers
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer, known_position
from headrace.schemas.kafka.expired import ExpiredRange, report_expired
from headrace.schemas.kafka.read_back import read_back
from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.model import Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.topics import APPLIED, REJECTED, REWARDS, STEPS, TRAINING, TRAJECTORIES, WEIGHTS
from headrace.schemas.trace import SpanContext, parse_traceparent
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.raw import LogRecord
from headrace.streams.traces import TraceSpan, references, spans

log = logging.getLogger(__name__)

TOPICS = (TRAJECTORIES, REWARDS, TRAINING, REJECTED, STEPS, WEIGHTS, APPLIED)
"""Topics to read: every topic whose records become spans."""

_POLL_RECORDS = 500


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """Settings of the exporter."""

    bootstrap: str
    """Kafka address, host:port."""
    endpoint: str
    """Collector endpoint, OTLP over HTTP: http://host:4318/v1/traces."""
    group: str = "traces"
    """Consumer group."""
    member: str | None = None
    """Name of this process in the group."""
    from_beginning: bool = False
    """Whether a new group exports existing records; otherwise it starts with new ones."""
    remember: int = 200_000
    """Most trajectories whose span is kept in memory; others are read from Kafka."""
    retry_most_s: float = 30.0
    """Longest pause in seconds between two attempts while the collector does not answer."""

    def __post_init__(self) -> None:
        if self.remember < 1 or self.retry_most_s <= 0:
            raise ValueError("traces: remember must be at least 1, and retry_most_s above 0")


async def run_traces(config: TracesConfig, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Export until ``stop`` is set. ``ready`` is called once the consumer is started."""
    exporter = OTLPSpanExporter(endpoint=config.endpoint)
    known = TrajectorySpans(config.bootstrap, config.remember)
    moved: set[TopicPartition] = set()

    def note_expired(expired: ExpiredRange) -> None:
        report_expired(config.group, expired)
        moved.add(expired.place)

    async with open_consumer(
        config.bootstrap,
        TOPICS,
        group=config.group,
        group_instance_id=config.member,
        auto_offset_reset="earliest" if config.from_beginning else "latest",
        on_expired=note_expired,
    ) as consumer:
        consumer.on_replaced = lambda log: moved.add(log.place)
        ready()
        while not stop.is_set():
            batches = await consumer.getmany(timeout_ms=500, max_records=_POLL_RECORDS)
            records = [record for batch in batches.values() for record in batch]
            if not records:
                await _commit_start(consumer, moved)
                continue
            found = await _spans_of(records, known)
            if not await _exported(exporter, found, stop, config.retry_most_s):
                return
            await consumer.commit()
    exporter.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry leaves it untyped


async def _commit_start(consumer: ReportingConsumer, moved: set[TopicPartition]) -> None:
    """Commit the positions of ``moved``, partitions that ``consumer`` reads from their log start after a loss that was
    reported, so that a restart finds nothing to report; empties ``moved``. All that was read before is exported.
    """
    places, positions = moved & consumer.assignment(), dict[TopicPartition, int]()
    moved.clear()
    for place in places:
        if (position := known_position(consumer, place)) is not None:
            positions[place] = position
    if positions:
        await consumer.commit(positions)


class TrajectorySpans:
    """The span of each trajectory, by its position in ``trajectories``."""

    def __init__(self, bootstrap: str, remember: int) -> None:
        self._bootstrap = bootstrap
        self._remember = remember
        self._known: OrderedDict[tuple[int, int], SpanContext | None] = OrderedDict()

    def __call__(self, reference: Reference) -> SpanContext | None:
        """Returns the span; ``None`` if the agent was not traced or retention deleted the record."""
        return self._known.get((reference.partition, reference.offset))

    def note(self, record: LogRecord, envelope: Envelope) -> None:
        """Remember the span of a trajectory's record."""
        self._known[record.partition, record.offset] = parse_traceparent(envelope.traceparent)
        while len(self._known) > self._remember:
            self._known.popitem(last=False)

    async def look_up(self, wanted: Collection[Reference]) -> None:
        """Load the spans of ``wanted``, reading unknown ones from Kafka."""
        places = {(reference.partition, reference.offset) for reference in wanted} - self._known.keys()
        if places:
            for record in (await read_back(self._bootstrap, TRAJECTORIES, places)).values():
                try:
                    self.note(record, from_headers(record.headers))
                except EnvelopeError as error:
                    log.warning("no trace of %s[%d]@%d: %s", record.topic, record.partition, record.offset, error)


async def _spans_of(records: Iterable[KafkaRecord], known: TrajectorySpans) -> list[TraceSpan]:
    """Returns the spans of a batch. Unreadable records are skipped; other processes make them dead letters."""
    decoded: list[tuple[Envelope, Record, int]] = []
    for record in records:
        try:
            envelope, payload = decode(record.headers, record.value)
        except UnreadableRecord as error:
            log.warning("no span for %s[%d]@%d: %s", record.topic, record.partition, record.offset, error)
            continue
        if record.topic == TRAJECTORIES.name:
            known.note(record, envelope)
        decoded.append((envelope, payload, record.timestamp))
    await known.look_up([reference for _, payload, _ in decoded for reference in references(payload)])
    return [span for envelope, payload, time_ms in decoded for span in spans(envelope, payload, time_ms, known)]


async def _exported(exporter: SpanExporter, found: Sequence[TraceSpan], stop: asyncio.Event, most_s: float) -> bool:
    """Export, retrying until the collector accepts the spans; ``False`` if ``stop`` was set before."""
    sampled = [readable(span) for span in found if int(span.context.flags, 16) & TraceFlags.SAMPLED]

    async def pause(seconds: float) -> None:
        log.warning("the collector did not accept %d spans; next attempt in %.1f s", len(sampled), seconds)
        await asyncio.wait({asyncio.ensure_future(stop.wait())}, timeout=seconds)

    @retry(
        retry=retry_if_result(lambda result: result is not SpanExportResult.SUCCESS),
        wait=wait_exponential_jitter(multiplier=0.5, max=most_s),
        stop=lambda _: stop.is_set(),
        sleep=pause,
        retry_error_callback=lambda _: SpanExportResult.FAILURE,
    )
    async def export() -> SpanExportResult:
        return await asyncio.to_thread(exporter.export, sampled)

    return not sampled or await export() is SpanExportResult.SUCCESS


def readable(span: TraceSpan) -> ReadableSpan:
    """Returns ``span`` as a span for OpenTelemetry's exporters."""
    return ReadableSpan(
        span.name,
        context=_otel(span.context),
        parent=_otel(span.parent) if span.parent else None,
        resource=_RESOURCE,
        instrumentation_scope=InstrumentationScope("headrace.streams"),
        attributes=span.attributes,
        links=[Link(_otel(context)) for context in span.links],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ms * 1_000_000,
        end_time=max(span.start_ms, span.end_ms) * 1_000_000,
    )


_RESOURCE = Resource.create({SERVICE_NAME: "headrace"})


def _otel(context: SpanContext) -> OtelContext:
    return OtelContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(int(context.flags, 16)),
    )
