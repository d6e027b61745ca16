"""A record of a replay and the partition of its side topic."""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.schemas.kafka.sending import partition_of
from headrace.schemas.topics import Topic
from headrace.streams.raw import Outgoing


class Placed(NamedTuple):
    """A record and the partition that it goes to."""

    outgoing: Outgoing
    partition: int


class Placement:
    """Chooses partitions as Kafka's clients do."""

    def __init__(self, partitions: Mapping[Topic, int]) -> None:
        """``partitions``: how many each topic has."""
        self._numbers = {topic.name: range(count) for topic, count in partitions.items()}

    def place(self, outgoing: Outgoing) -> Placed:
        """``outgoing`` with its partition, which follows from its key."""
        return Placed(outgoing, partition_of(outgoing.message.key, self._numbers[outgoing.topic.name]))
