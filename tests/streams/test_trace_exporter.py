"""Spans exported to a collector: a real broker, and OTLP over HTTP as a collector accepts it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from aiokafka import TopicPartition
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.expired import EXPIRED
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.reference import Reference
from headrace.schemas.topics import REWARDS, TRAJECTORIES
from headrace.schemas.trace import continued
from headrace.schemas.wire import record_message
from headrace.streams.scoring.score import reward_message, score
from headrace.streams.trace_exporter import TracesConfig, run_traces
from tests.expired import delete_before
from tests.streams.attempts import attempt

pytestmark = pytest.mark.kafka

AGENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector:
    """Spans sent to a collector, which refuses the first request like one that is starting."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[str, str, str]] = {}
        """Span id → name, trace id, parent's id."""
        self.requests = 0
        self.accepts = True
        self.url = ""

    def take(self, body: bytes) -> int:
        """Record the spans; returns the HTTP status."""
        self.requests += 1
        if self.requests == 1 or not self.accepts:
            return 400
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    place = (span.name, span.trace_id.hex(), span.parent_span_id.hex())
                    self.spans[span.span_id.hex()] = place
        return 200


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(collector.take(self.rfile.read(int(self.headers["Content-Length"]))))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield collector
        server.shutdown()


async def test_the_agents_trace_reaches_the_collector_for_earlier_trajectories_too(kafka: str) -> None:
    before = attempt("before").model_copy(update={"traceparent": AGENT})
    async with open_producer(kafka) as producer:
        message = record_message(
            before, id="b-1", key="before", source="/t", time_ms=before.ended_ms, subject="before", origin=AGENT
        )
        place = await (await send(producer, TRAJECTORIES, message))
        with collecting() as collector:
            config = TracesConfig(kafka, collector.url, retry_most_s=0.1)
            stop, ready = asyncio.Event(), asyncio.Event()
            exporting = asyncio.create_task(run_traces(config, stop=stop, ready=ready.set))
            await ready.wait()
            reward = score(before, Reference(partition=place.partition, offset=place.offset))
            while not collector.spans:
                # A new group starts at the end of the log at the time of its assignment.
                await (await send(producer, REWARDS, reward_message(reward)))
                await asyncio.sleep(0.5)
                assert not exporting.done(), exporting
            stop.set()
            await exporting
    trajectory = continued(AGENT, "b-1")
    assert trajectory is not None
    trace_id, parent = trajectory.split("-")[1:3]
    assert set(collector.spans.values()) == {("score", trace_id, parent)}
    assert len(collector.spans) == 1, "a record that is written twice is one span"


async def test_records_that_expire_before_they_are_read_are_counted_and_the_rest_is_exported(
    kafka: str, caplog: pytest.LogCaptureFixture
) -> None:
    place, group = TopicPartition(TRAJECTORIES.name, 3), "traces-expired"
    traced = attempt("lost").model_copy(update={"traceparent": AGENT})
    message = record_message(
        traced, id="l-1", key="lost", source="/t", time_ms=traced.ended_ms, subject="lost", origin=AGENT
    )

    async def write(count: int) -> list[int]:
        async with open_producer(kafka) as producer:
            sent = [await send(producer, TRAJECTORIES, message, place.partition) for _ in range(count)]
            return [(await each).offset for each in sent]

    async def until_committed(offset: int) -> None:
        while (await committed_offsets(kafka, group, [place]))[place].offset != offset:
            await asyncio.sleep(0.1)
            assert not exporting.done(), exporting

    def lost() -> int:
        return EXPIRED.by_partition.get((group, *place), 0)

    with collecting() as collector:
        config = TracesConfig(kafka, collector.url, group=group, from_beginning=False, retry_most_s=0.1)
        first = await write(5)
        async with open_consumer(kafka, group=group) as consumer:
            consumer.assign([place])
            await consumer.commit({place: first[1]})
        await delete_before(kafka, place, first[3])
        stop = asyncio.Event()
        exporting = asyncio.create_task(run_traces(config, stop=stop, ready=lambda: None))
        await until_committed(first[-1] + 1)
        assert lost() == 2, "not the log's end, although a new group starts there"

        collector.accepts = False
        requests = collector.requests
        await write(1)
        while collector.requests == requests:  # noqa: ASYNC110 - in another thread
            await asyncio.sleep(0.05)
        await write(1)
        await asyncio.sleep(1)  # it is fetched; the others are not while it is not taken
        more = await write(6)
        await delete_before(kafka, place, more[4])
        collector.accepts = True
        await until_committed(more[-1] + 1)
        assert lost() == 2 + 4
        stop.set()
        await exporting
    assert caplog.text.count(f"{group}: trajectories[3] starts at") == 2


@pytest.mark.parametrize("is_beyond", [False, True])
async def test_a_restart_reports_no_loss_again_although_no_record_arrives(
    kafka: str, caplog: pytest.LogCaptureFixture, is_beyond: bool
) -> None:
    """Records expired, or the log ends before the committed offset, as after its topic was recreated."""
    place, group = TopicPartition(REWARDS.name, 1), f"traces-restarted-{is_beyond}"
    async with open_producer(kafka) as producer:
        ends = [(await (await producer.send(place.topic, b"x", partition=1))).offset + 1 for _ in range(5)]
    await delete_before(kafka, place, ends[-1])
    async with open_consumer(kafka, group=group) as consumer:
        consumer.assign([place])
        await consumer.commit({place: 10**6 if is_beyond else ends[0]})
    for _ in range(2):
        stop = asyncio.Event()
        config = TracesConfig(kafka, "http://127.0.0.1:1/v1/traces", group=group)
        exporting = asyncio.create_task(run_traces(config, stop=stop, ready=lambda: None))
        async with asyncio.timeout(20):
            while (await committed_offsets(kafka, group, [place]))[place].offset != ends[-1]:
                await asyncio.sleep(0.1)
                assert not exporting.done(), exporting
        await asyncio.sleep(1)
        stop.set()
        await exporting
    sentence = "rewards[1] ends at" if is_beyond else f"{group}: rewards[1] starts at"
    assert caplog.text.count(sentence) == 1


async def test_unreadable_records_are_skipped(kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    traced = attempt("after").model_copy(update={"traceparent": AGENT})
    with collecting() as collector:
        config = TracesConfig(kafka, collector.url, group="traces-2", from_beginning=True, retry_most_s=0.1)
        async with open_producer(kafka) as producer:
            await producer.send_and_wait(TRAJECTORIES.name, value=b"{", key=b"x")
            message = record_message(
                traced, id="a-1", key="after", source="/t", time_ms=traced.ended_ms, subject="after", origin=AGENT
            )
            await (await send(producer, TRAJECTORIES, message))
        stop = asyncio.Event()
        exporting = asyncio.create_task(run_traces(config, stop=stop, ready=lambda: None))
        while "trajectory" not in {name for name, *_ in collector.spans.values()}:
            await asyncio.sleep(0.1)
            assert not exporting.done(), exporting
        stop.set()
        await exporting
    (parent,) = {parent for name, _, parent in collector.spans.values() if name == "trajectory"}
    assert parent == AGENT.split("-")[2]
    assert "no span for trajectories" in caplog.text
