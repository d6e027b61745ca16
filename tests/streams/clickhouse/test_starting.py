"""Which errors of starting partitions end the sink, and after which it tries again."""

from collections.abc import Collection
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
)

from headrace.schemas.topics import EVENTS
from headrace.streams.clickhouse.commits import TopicCommits
from headrace.streams.clickhouse.pending import PendingPartitions
from headrace.streams.clickhouse.sink import _Sink
from headrace.streams.clickhouse.sink_config import SinkConfig

UNUSED: Any = None


class Failing:
    """Commits that cannot be read, as those of a coordinator that has loaded for a minute."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    async def read(self, places: Collection[TopicPartition]) -> None:
        raise self._error


def started(error: KafkaError) -> _Sink:
    commits = cast(TopicCommits, Failing(error))
    return _Sink(SinkConfig("broker:1", "http://db:1"), UNUSED, UNUSED, commits, UNUSED, PendingPartitions(), UNUSED)


@pytest.mark.parametrize(
    "error",
    [
        GroupLoadInProgressError(),
        IllegalStateError(),
        KafkaConnectionError(),
        KafkaTimeoutError(),
        NotCoordinatorForGroupError(),
        RebalanceInProgressError(),
    ],
)
async def test_it_is_tried_again_while_kafka_does_not_answer(error: KafkaError) -> None:
    assert not await started(error)._load([TopicPartition(EVENTS.name, 0)])


@pytest.mark.parametrize("error", [GroupAuthorizationFailedError(), TopicAuthorizationFailedError()])
async def test_what_no_retry_mends_ends_the_sink(error: KafkaError) -> None:
    with pytest.raises(type(error)):
        await started(error)._load([TopicPartition(EVENTS.name, 0)])
