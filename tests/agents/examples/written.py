"""Reads what programs wrote to Kafka, and what headrace makes of it."""

from typing import Any

from aiokafka.structs import ConsumerRecord

from headrace.schemas.envelope import from_headers
from headrace.schemas.ids import time_of
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.schemas.wire import Message, decode
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY

PARTITIONS = 7
"""Partitions of the topics. Not a power of two, for which two forms of Kafka's hash choose the same partitions."""


class Reader:
    """Reads what was written since the last time."""

    def __init__(self, kafka: str) -> None:
        self._kafka = kafka
        self._next: dict[str, dict[int, int]] = {topic.name: {} for topic in (EVENTS, FEEDBACK)}

    async def new(self) -> list[ConsumerRecord]:
        """New events and feedback, each in the order of its partition."""
        records = []
        for topic in (EVENTS, FEEDBACK):
            start = self._next[topic.name]
            async for record in read_to_end(self._kafka, topic, start=start or None):
                if record.offset >= start.get(record.partition, 0):
                    records.append(record)
                    start[record.partition] = record.offset + 1
            start |= {partition: start.get(partition, 0) for partition in range(PARTITIONS)}
        return records


def folded(records: list[ConsumerRecord]) -> dict[str, list[Record]]:
    """What the processors make of the records, a day later."""
    messages = [Message(record.key, record.value, list(record.headers)) for record in records]
    times = [from_headers(message.headers).time_ms for message in messages]
    return drive(TOPOLOGY, messages, until_ms=max(times) + 86_400_000)


def the_trajectory(records: list[ConsumerRecord]) -> Trajectory:
    (trajectory,) = folded(records)["trajectories"]
    assert isinstance(trajectory, Trajectory)
    return trajectory


def facts(records: list[ConsumerRecord]) -> list[Record]:
    return [decode(record.headers, record.value)[1] for record in records]


def comparable(record: ConsumerRecord) -> tuple[Any, ...]:
    """What two programs must write alike: everything but ids and times of events, and durations."""
    envelope, fact = decode(record.headers, record.value)
    drawn_ms = time_of(envelope.id)
    assert drawn_ms is not None
    assert abs(drawn_ms - envelope.time_ms) < 60_000
    latency = {"latency_s": 0.0} if getattr(fact, "latency_s", None) is not None else {}
    headers = [(name, None if name in ("ce_id", "ce_time") else value) for name, value in record.headers]
    return record.topic, record.partition, record.key, headers, fact.model_copy(update=latency)
