"""Events from the SDK in a real Kafka, read by an ordinary consumer: complete and in order in spite of outages."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from headrace.agents.counters import SdkCounters
from headrace.agents.delivery import EventDelivery, producer_id
from headrace.agents.sdk import Headrace
from headrace.deploy.kafka.broker import Broker, prepare_broker, wait_until_answers
from headrace.deploy.kafka.jars import kafka_jars
from headrace.deploy.system.children import Child
from headrace.deploy.system.ports import free_ports
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven, ModelCalled, SdkStatsReported, TrajectoryEnded
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS, FEEDBACK, SDK_STATS, Topic
from headrace.schemas.wire import Message, decode
from tests.conftest import CACHE

pytestmark = pytest.mark.kafka


def records(bootstrap: str, topic: Topic, source: str) -> list[tuple[Envelope, Record]]:
    """Return the records of ``source`` in ``topic``, in the order of each partition."""

    async def read() -> list[tuple[Envelope, Record]]:
        return [decode(record.headers, record.value) async for record in read_to_end(bootstrap, topic)]

    return [(envelope, payload) for envelope, payload in asyncio.run(read()) if envelope.source == source]


def sequences(found: list[tuple[Envelope, Record]]) -> dict[str, list[int]]:
    by_trajectory: dict[str, list[int]] = {}
    for envelope, _ in found:
        assert envelope.sequence is not None
        by_trajectory.setdefault(envelope.subject, []).append(envelope.sequence)
    return by_trajectory


def work(headrace: Headrace, trajectories: int, calls: int) -> list[str]:
    ids = []
    for number in range(trajectories):
        with headrace.trajectory(task_id=f"q{number}", agent="shop", group_id="g", group_size=trajectories) as t:
            ids.append(t.id)
            for _ in range(calls):
                t.model_called("m", context_ids=[1, 2, 3], sampled_ids=[4], logprobs=[-0.25])
    return ids


def test_everything_arrives_in_order_with_its_envelope(kafka: str) -> None:
    source = uuid7()
    with Headrace(kafka, source=source, flush_deadline_s=20) as headrace:
        ids = work(headrace, trajectories=40, calls=25)
        headrace.feedback(ids[0], "accepted", 1.0, delay_s=2.5)
    found = records(kafka, EVENTS, source)
    assert sequences(found) == {trajectory_id: list(range(27)) for trajectory_id in ids}
    assert len({envelope.id for envelope, _ in found}) == len(found)
    assert isinstance(found[1][1], ModelCalled)
    ((envelope, judged),) = records(kafka, FEEDBACK, source)
    assert (envelope.subject, judged) == (ids[0], FeedbackGiven(signal="accepted", value=1.0, delay_s=2.5))
    assert headrace.stats == SdkStatsReported(emitted=1081, sent=1081)
    assert records(kafka, SDK_STATS, source)[-1][1] == headrace.stats


async def test_async_programs_wait_for_the_flush_without_blocking_their_loop(kafka: str) -> None:
    source = uuid7()
    async with Headrace(kafka, source=source) as headrace:
        async with headrace.trajectory(task_id="q", agent="shop") as t, t.tool("search") as call:
            call.result = {"found": 3}
        assert await headrace.aflush(20)
        assert headrace.stats.sent == 4


def test_a_record_that_the_broker_refuses_is_dropped_and_delivery_continues(kafka: str) -> None:
    source = uuid7()
    with Headrace(
        kafka, source=source, max_event_bytes=20_000_000, kafka_options={"compression_type": None}
    ) as headrace:
        t = headrace.trajectory(task_id="q", agent="shop")
        t.end(answer="x" * (EVENTS.max_bytes + 1))
        other = headrace.trajectory(task_id="q", agent="shop")
        other.end(answer="y")
        assert headrace.flush(20)
        assert headrace.stats.dropped == {"refused": 1}
    assert sequences(records(kafka, EVENTS, source)) == {t.id: [0], other.id: [0, 1]}


PROGRAM = """
import sys
from headrace.agents.sdk import Headrace

headrace = Headrace({kafka!r}, source={source!r}, flush_deadline_s=20)
with headrace.trajectory(task_id="q", agent="script") as t:
    for _ in range(200):
        t.model_called("m")
{ending}
"""

ENDINGS = {
    "by itself": ("", 0, 1),
    "by an exception": ("raise SystemExit(3)", 3, 1),
    "in a child of multiprocessing": (
        """
import multiprocessing

def child():
    headrace.trajectory(task_id="q", agent="child").end()

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
""",
        0,
        2,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_sends_its_queued_events_before_it_ends(kafka: str, tmp_path: Path, ending: str) -> None:
    code, status, trajectories = ENDINGS[ending]
    source = uuid7()
    # A name and not an address: resolving it must work while the interpreter is shutting down.
    script = tmp_path / "agent.py"
    script.write_text(PROGRAM.format(kafka=kafka.replace("127.0.0.1", "localhost"), source=source, ending=code))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    found = records(kafka, EVENTS, source)
    assert sum(isinstance(payload, TrajectoryEnded) for _, payload in found) == trajectories
    assert len(found) == 202 + 2 * (trajectories - 1)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "kafka", *free_ports(2), MAX_REQUEST_BYTES, heap_mb=256)


@pytest.fixture
def processes() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()


def start(broker: Broker, processes: list[Child]) -> Child:
    async def prepare() -> Child:
        return Child(await prepare_broker(broker, await kafka_jars(CACHE)), broker.folder / "kafka.log")

    child = asyncio.run(prepare())
    processes.append(child)
    return child


def until_ready(broker: Broker) -> None:
    asyncio.run(wait_until_answers(broker.bootstrap, 90))
    asyncio.run(create_topics(broker.bootstrap))


def test_no_event_is_lost_while_the_broker_is_unavailable(broker: Broker, processes: list[Child]) -> None:
    headrace = Headrace(broker.bootstrap, source="away", flush_deadline_s=60)
    ids = work(headrace, trajectories=10, calls=10)  # the broker is not running yet
    assert headrace.flush(0.2) is False
    deadline = time.monotonic() + 60
    while headrace.stats.queued < 120 and time.monotonic() < deadline:
        time.sleep(0.01)  # the last one may still be in the encoder
    assert headrace.stats.queued == 120

    first = start(broker, processes)
    until_ready(broker)
    assert headrace.flush(60)

    first.kill()
    ids += work(headrace, trajectories=10, calls=10)
    assert headrace.flush(1.0) is False

    start(broker, processes)
    until_ready(broker)
    ids += work(headrace, trajectories=10, calls=10)
    assert headrace.close(60)
    stats = headrace.stats
    assert (stats.emitted, stats.sent, stats.queued, stats.spooled, stats.dropped) == (360, 360, 0, 0, {})
    found = sequences(records(broker.bootstrap, EVENTS, "away"))
    assert {trajectory_id: sorted(set(numbers)) for trajectory_id, numbers in found.items()} == {
        trajectory_id: list(range(12)) for trajectory_id in ids
    }


def test_a_recreated_broker_receives_the_queued_events(broker: Broker, processes: list[Child], tmp_path: Path) -> None:
    headrace = Headrace(broker.bootstrap, source="reborn", flush_deadline_s=60)
    first = start(broker, processes)
    until_ready(broker)
    work(headrace, trajectories=3, calls=3)
    assert headrace.flush(30)
    first.kill()

    reborn = Broker(tmp_path / "other", broker.port, broker.controller_port, MAX_REQUEST_BYTES, heap_mb=256)
    ids = work(headrace, trajectories=10, calls=10)
    start(reborn, processes)
    until_ready(reborn)
    assert headrace.close(60)
    found = sequences(records(broker.bootstrap, EVENTS, "reborn"))
    assert {trajectory_id: sorted(set(found[trajectory_id])) for trajectory_id in ids} == {
        trajectory_id: list(range(12)) for trajectory_id in ids
    }


def test_a_recreated_broker_that_reuses_producer_ids_stores_new_events(
    broker: Broker, processes: list[Child], tmp_path: Path
) -> None:
    """The old session writes one record to the new cluster as producer 0 and fails. The next session would also be
    producer 0, with the same sequence number in the same partition."""

    async def until(happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not happened():  # noqa: ASYNC110 - a count has no event to wait for
                await asyncio.sleep(0.01)

    async def deliver() -> None:
        delivery = EventDelivery(broker.bootstrap, {"metadata_max_age_ms": 500}, SdkCounters())
        running = asyncio.create_task(delivery.run())
        try:
            delivery.offer(0, EVENTS.name, Message(b"another partition", b"before", ()))
            await until(lambda: delivery.sent == 1)
            assert delivery.producer is not None
            first = producer_id(delivery.producer)
            assert first == 0
            await asyncio.to_thread(replace)
            delivery.offer(1, EVENTS.name, Message(b"k", b"by the old session", ()))
            await until(lambda: delivery.sent == 2)
            assert delivery.producer is not None
            assert producer_id(delivery.producer) == first, "the old session failed too early"
            delivery._failure = KafkaError("planted")
            delivery._wake.set()
            delivery.offer(2, EVENTS.name, Message(b"k", b"by the new session", ()))
            await until(lambda: delivery.sent == 3)
            assert producer_id(delivery.producer) not in (None, first)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def replace() -> None:
        processes.pop().kill()
        reborn = Broker(tmp_path / "other", broker.port, broker.controller_port, MAX_REQUEST_BYTES, heap_mb=256)
        start(reborn, processes)
        until_ready(reborn)

    async def stored() -> list[bytes | None]:
        return [record.value async for record in read_to_end(broker.bootstrap, EVENTS)]

    start(broker, processes)
    until_ready(broker)
    asyncio.run(deliver())
    assert asyncio.run(stored()) == [b"by the old session", b"by the new session"]


def test_an_unavailable_broker_does_not_delay_the_exit_of_a_program(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    body = PROGRAM.format(kafka="127.0.0.1:9", source="away", ending="").replace(
        "flush_deadline_s=20", "flush_deadline_s=0.5, spool_bytes=0"
    )
    script.write_text(body)
    started = time.monotonic()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "unsent_at_close" in done.stderr
    assert "202 events" in done.stderr
    assert time.monotonic() - started < 30, "the limit only detects hanging"
