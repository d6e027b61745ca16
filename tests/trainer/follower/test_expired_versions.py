"""The follower needs the newest version only: records of older ones that retention deletes are skipped."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.expired import EXPIRED
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import WEIGHTS
from headrace.schemas.wire import record_message
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.follower import run_follower
from headrace.trainer.follower.reconcile import Follower
from headrace.trainer.weights.signing import SigningKey
from tests.expired import delete_before, expired_alerts

KEY = SigningKey(Ed25519PrivateKey.generate())


async def publish(bootstrap: str, version: int) -> TopicPartition:
    """Returns where the record is: its partition has no other run's."""
    pointer = Weights(
        run="r", version=version, parent=None, kind="anchor", manifest_uri="x", sha256="0" * 64, size=1, step=version
    )
    message = record_message(KEY.sign(pointer), id=uuid7(), key="r", source="t", time_ms=0, subject="r")
    async with open_producer(bootstrap) as producer:
        sent = await (await send(producer, WEIGHTS, message))
        return TopicPartition(WEIGHTS.name, sent.partition)


@pytest.mark.kafka
async def test_versions_that_expire_unread_are_skipped_without_an_alert(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    may_continue = asyncio.Event()
    may_continue.set()

    async def consider(self: Follower, pointer: Weights, place: str) -> None:
        seen.append(pointer.version)
        await may_continue.wait()

    async def reconcile(self: Follower) -> None:
        """There is no engine in this test."""

    async def until(version: int) -> None:
        while seen[-1:] != [version]:  # noqa: ASYNC110 - in another task
            await asyncio.sleep(0.05)

    monkeypatch.setattr(Follower, "consider", consider)
    monkeypatch.setattr(Follower, "reconcile", reconcile)
    places = [await publish(kafka, version) for version in range(3)]
    await delete_before(kafka, places[0], 2)
    store = f"file://{tmp_path}"
    config = FollowerConfig(kafka, "r", "http://127.0.0.1:1", "engine", tmp_path, store, (KEY.public,))
    stop = asyncio.Event()
    following = asyncio.create_task(run_follower(config, stop=stop, ready=lambda: None))
    await until(2)
    assert seen == [2], "at the start"

    may_continue.clear()
    await publish(kafka, 3)
    await until(3)
    await publish(kafka, 4)
    await asyncio.sleep(1)  # it is fetched; the others are not while it is not taken
    for version in range(5, 9):
        await publish(kafka, version)
    await delete_before(kafka, places[0], 8)
    may_continue.set()
    await until(8)
    assert seen == [2, 3, 4, 8], "while it runs"
    stop.set()
    await following
    assert not [topic for _, topic, _ in EXPIRED.by_partition if topic == WEIGHTS.name]
    assert await expired_alerts(kafka, "/headrace/follower/engine") == []
