"""A command on a broker that is unavailable, silent or dies meanwhile ends with an error that names the setting."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.deploy.errors import StackError
from headrace.deploy.kafka import broker
from headrace.deploy.kafka.run import run_with_kafka
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import EVENTS
from tests.conftest import RunningKafka


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "LISTENS_S", 0.5)
    monkeypatch.setattr(broker, "ANSWERS_S", 1.0)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def something_else() -> Iterator[str]:
    """A server of another protocol."""

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


async def never_asked() -> None:
    pytest.fail("nothing is asked where nothing answers")


def refused(bootstrap: str) -> str:
    with pytest.raises(StackError) as raised:
        run_with_kafka(bootstrap, never_asked)
    assert "HEADRACE_KAFKA" in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "address",
    ["", "foo", "host:", ":9092", "host:0", "host:99999", "host:９", "http://host:1", "a:1,b", "::1:9092", "h:1\n"],
)
def test_an_invalid_address_is_reported_immediately(address: str) -> None:
    assert "which is not host:port[,host:port…]" in refused(address)


def test_a_closed_port_a_silent_server_and_another_protocol_end_within_the_time_limit(
    silent: str, something_else: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    assert "did not answer a metadata request within 0.5 s" in refused(closed)
    assert "did not answer a metadata request within 1 s" in refused(silent)
    assert "did not answer a metadata request within 1 s" in refused(something_else)


def test_one_of_two_brokers_is_enough(silent: str) -> None:
    """If one of them listens, the Kafka client is tried, and its result is reported."""
    assert "did not answer a metadata request within 1 s" in refused(f"127.0.0.1:1,{silent}")


@pytest.mark.kafka
def test_the_result_is_returned_without_rendering_it(kafka: str) -> None:
    class Large:
        def __repr__(self) -> str:
            raise AssertionError("rendering it takes seconds")

    found = Large()

    async def find() -> Large:
        return found

    assert run_with_kafka(kafka, find) is found


@pytest.mark.kafka
def test_a_broker_that_freezes_during_a_command_ends_it(running_kafka: RunningKafka) -> None:
    async def read_on() -> None:
        async with open_consumer(running_kafka.bootstrap) as consumer:
            partitions = await partitions_of(consumer, EVENTS)
            running_kafka.freeze()
            while True:
                await consumer.end_offsets(partitions)

    try:
        with pytest.raises(StackError, match=r"\(setting HEADRACE_KAFKA\) has not answered for 2 s"):
            run_with_kafka(running_kafka.bootstrap, read_on, retry_limit_s=2.0)
    finally:
        running_kafka.freeze(False)

    async def answered() -> int:
        return 7

    deadline = time.monotonic() + 60
    while True:
        try:
            assert run_with_kafka(running_kafka.bootstrap, answered) == 7
            return
        except StackError:  # the broker has just been resumed
            assert time.monotonic() < deadline


@pytest.mark.kafka
def test_a_slow_command_on_an_available_broker_is_not_ended(running_kafka: RunningKafka) -> None:
    async def long() -> int:
        await asyncio.sleep(1.5)
        return 7

    assert run_with_kafka(running_kafka.bootstrap, long, retry_limit_s=0.5) == 7


@pytest.mark.kafka
def test_a_missing_topic_is_reported_in_a_sentence(running_kafka: RunningKafka) -> None:
    async def missing() -> None:
        raise LookupError("the broker has no topic 'x': `headrace topics --create` makes it")

    with pytest.raises(StackError, match="the broker has no topic 'x'"):
        run_with_kafka(running_kafka.bootstrap, missing)

    async def fault() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run_with_kafka(running_kafka.bootstrap, fault)
