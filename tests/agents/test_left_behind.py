"""What ended processes left on disk is in Kafka before a successor reads the log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidMessageError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)

from headrace.agents import left_behind
from headrace.agents.left_behind import send_left_behind
from headrace.agents.sdk import Headrace
from headrace.agents.sender_config import SenderConfig
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, SpooledRecord
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS


def unexpected(path: str, loss: Loss) -> None:
    raise AssertionError(path, loss)


def leave(config: SenderConfig, name: str, count: int) -> None:
    """Leave events as a process does that ends while Kafka is away."""
    assert config.spool_folder is not None
    spool = Spool(config.spool_folder, config.spool_bytes, config.cluster, unexpected)
    assert spool.append([SpooledRecord(EVENTS.name, name.encode(), b"%d" % each, ()) for each in range(count)])
    spool.close()


async def values(bootstrap: str, key: bytes) -> list[bytes | None]:
    return [record.value async for record in read_to_end(bootstrap, EVENTS) if record.key == key]


@pytest.mark.kafka
async def test_every_ended_process_s_events_are_sent_once_in_order(kafka: str, tmp_path: Path) -> None:
    config = SenderConfig(kafka, "test", spool_folder=tmp_path / "spool")
    assert await send_left_behind(config) == 0
    leave(config, "a", 2_500)
    leave(config, "b", 3)
    assert await send_left_behind(config) == 2_503
    assert await values(kafka, b"a") == [b"%d" % each for each in range(2_500)]
    assert await values(kafka, b"b") == [b"0", b"1", b"2"]
    assert await send_left_behind(config) == 0
    assert len(await values(kafka, b"b")) == 3


async def test_what_is_not_sent_stays_on_disk(tmp_path: Path) -> None:
    config = SenderConfig("127.0.0.1:1", "test", spool_folder=tmp_path / "spool")
    leave(config, "a", 2)
    with pytest.raises(KafkaConnectionError):
        await send_left_behind(config)
    assert [each.suffix for each in (tmp_path / "spool").glob("*.spool")] == [".spool"]
    assert await send_left_behind(replace(config, spool_bytes=0)) == 0
    assert await send_left_behind(replace(config, spool_folder=None)) == 0
    assert await send_left_behind(replace(config, bootstrap="127.0.0.1:2")) == 0, "left for another cluster"


async def test_a_folder_that_cannot_be_used_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert await send_left_behind(SenderConfig("127.0.0.1:1", "test", spool_folder=folder)) == 0
    assert "was not sent" in caplog.text


class Refusing(AIOKafkaProducer):
    """Takes what it is given, except values that begin with a letter: "a" it refuses itself, "b" its broker. Only
    injects faults."""

    def __init__(self, taken: list[bytes]) -> None:
        super().__init__(bootstrap_servers="broker:9092")
        self.taken = taken
        self._closed = True  # nothing was started

    async def send(self, topic: str, value: bytes, key: bytes, *, headers: Any) -> "asyncio.Future[None]":
        if value.startswith(b"a"):
            raise MessageSizeTooLargeError
        if topic != EVENTS.name:
            raise UnknownTopicOrPartitionError
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if value.startswith(b"b"):
            answer.set_exception(InvalidMessageError())
        else:
            self.taken.append(value)
            answer.set_result(None)
        return answer


async def test_an_event_that_no_broker_takes_does_not_block_every_later_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bytes] = []

    @asynccontextmanager
    async def producer(*_: Any, **__: Any) -> AsyncIterator[Refusing]:
        yield Refusing(taken)

    monkeypatch.setattr(left_behind, "open_producer", producer)
    folder = tmp_path / "spool"
    headrace = Headrace("127.0.0.1:1", source="test", spool_folder=folder)
    spool = Spool(folder, 1 << 20, headrace._config.cluster, unexpected)
    for value in (b"0", b"a1", b"b2", b"3"):
        assert spool.append([SpooledRecord(EVENTS.name, b"k", value, ())])
    assert spool.append([SpooledRecord("of another version", b"k", b"4", ())])
    spool.close()
    assert await headrace.send_left_behind() == 2
    assert taken == [b"0", b"3"]
    stats = headrace.stats
    assert (stats.adopted, stats.dropped) == (3, {"refused": 3})
    assert list(folder.iterdir()) == []
    headrace.close()


async def test_a_part_of_a_file_that_cannot_be_read_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def producer(*_: Any, **__: Any) -> AsyncIterator[Refusing]:
        yield Refusing([])

    monkeypatch.setattr(left_behind, "open_producer", producer)
    folder = tmp_path / "spool"
    headrace = Headrace("127.0.0.1:1", source="test", spool_folder=folder)
    leave(headrace._config, "a", 3)
    (segment,) = folder.glob("*.spool")
    segment.write_bytes(segment.read_bytes()[:-1])
    assert await headrace.send_left_behind() == 2
    assert (headrace.stats.adopted, headrace.stats.dropped) == (1, {"spool_damaged": 1})
    headrace.close()
