"""Committed offsets when the coordinator's answer is misleading."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.schemas.kafka import clients, offsets

PARTITION = TopicPartition("events", 3)
COMMITTED = OffsetAndMetadata(42, '{"v": 1}')


class Coordinator:
    """Stands for the admin client: returns ``ANSWERS`` in order."""

    ANSWERS: ClassVar[list[dict[TopicPartition, OffsetAndMetadata]]] = []
    _client = SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: {1}))

    def __init__(self, **_: Any) -> None:
        """Accepts the client's arguments."""

    async def start(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def list_consumer_group_offsets(self, *_: Any, **__: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        """The next answer."""
        return self.ANSWERS.pop(0)


@pytest.mark.parametrize("commit", [COMMITTED, OffsetAndMetadata(-1, "")])
async def test_a_loading_coordinator_is_retried(monkeypatch: pytest.MonkeyPatch, commit: OffsetAndMetadata) -> None:
    # The answer has an error at the top level, which the client ignores, and no entry for the partition. Read as
    # "nothing committed", it made an assembler start from the beginning and write everything a second time.
    monkeypatch.setattr(Coordinator, "ANSWERS", [{}, {}, {PARTITION: commit}])
    monkeypatch.setattr(clients, "AIOKafkaAdminClient", Coordinator)
    assert await offsets.committed_offsets("localhost:9092", "assemble", [PARTITION]) == {PARTITION: commit}
