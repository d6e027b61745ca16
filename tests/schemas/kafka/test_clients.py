"""Clients start and stop in bounded time against a real broker."""

import asyncio
import gc
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import BrokerNotAvailableError, KafkaConnectionError, KafkaTimeoutError
from aiokafka.producer.sender import Sender

from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas.kafka import clients
from headrace.schemas.kafka.clients import (
    new_producer,
    open_admin,
    open_consumer,
    open_producer,
    start_client,
    stop_producer,
)
from headrace.schemas.topics import EVENTS

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("opened", [open_consumer, partial(open_producer, transactional_id="nobody"), open_admin])
async def test_a_cluster_that_lists_no_broker_is_a_retriable_error(
    kafka: str, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A single broker that was frozen for longer than its session lists no broker for a moment. A producer without
    # transactions waits by itself.
    with monkeypatch.context() as patched:
        patched.setattr(ClusterMetadata, "brokers", lambda _: set())
        with pytest.raises(BrokerNotAvailableError, match="try again"):
            async with asyncio.timeout(30), opened(kafka):
                pass
    async with opened(kafka):
        pass


@pytest.mark.parametrize("opened", [open_consumer, open_producer])
async def test_a_client_without_a_broker_leaves_no_connection_open(
    opened: Any, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(KafkaConnectionError):
        async with opened(f"{HOST}:{free_port()}"):
            pass
    gc.collect()
    assert not [str(warning.message) for warning in recwarn if warning.category is ResourceWarning]


async def test_stopping_a_waiting_producer_leaves_no_task(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is garbage-collected while it waits is logged as an error in the SDK user's process."""
    before = asyncio.all_tasks()
    producer = AIOKafkaProducer(bootstrap_servers=kafka)
    await start_client(producer)
    ready = asyncio.Event()

    async def never_answers(*_: Any, **__: Any) -> None:
        ready.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(producer.client, "send", never_answers)
    await producer.send(EVENTS.name, b"x")
    await ready.wait()
    await stop_producer(producer, 0.2)
    assert asyncio.all_tasks() == before


async def test_waiting_for_a_producer_id_times_out(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that cannot end the ID's last transaction refuses each request, and aiokafka retries forever."""
    monkeypatch.setattr(clients, "START_S", 0.5)

    async def refused(*_: Any) -> bool:
        return False

    monkeypatch.setattr(Sender, "_do_init_pid", refused)
    producer = new_producer(kafka, transactional_id="hangs")
    with pytest.raises(KafkaTimeoutError, match=r"no producer id for 'hangs' .* find-hanging"):
        await start_client(producer)
    await stop_producer(producer)
