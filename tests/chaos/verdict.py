"""The verdict: the committed log against the result expected from ``events``.

Two comparisons: every record in full (key, value, headers, timestamp, and in ``trajectories`` the order) against one
uninterrupted pass of the assembler's own fold; and that pass against the oracle, which does not use the fold.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from aiokafka import TopicPartition

from headrace.schemas.envelope import ID
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES, Topic
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.raw import LogRecord, Outgoing
from tests.streams.oracle import expected as expected_of

_MAX_SHOWN = 5
_SHOWN_CHARACTERS = 400


class Bytes(NamedTuple):
    """A record as a reader gets it, without its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def id(self) -> str:
        """The ID in its envelope."""
        return (dict(self.headers).get(ID) or b"").decode(errors="replace")


@dataclass(slots=True)
class Comparison:
    """Comparison of one topic. ``lost``, ``doubled``, ``strange`` and ``changed`` count records, and must be 0."""

    expected: int = 0
    """Records expected."""
    found: int = 0
    """Records found."""
    lost: int = 0
    """Expected and missing."""
    doubled: int = 0
    """Found more often than expected."""
    strange: int = 0
    """Found and not expected."""
    changed: int = 0
    """Found with other bytes."""
    out_of_order: int = 0
    """Partitions with the right records in another order."""
    differences: list[str] = field(default_factory=list)
    """Descriptions of the first differences."""

    @property
    def is_exact(self) -> bool:
        """Nothing differs."""
        return not (self.lost or self.doubled or self.strange or self.changed or self.out_of_order)

    def compare(self, where: str, expected: Sequence[Bytes], found: Sequence[Bytes]) -> None:
        """Add a partition."""
        self.expected += len(expected)
        self.found += len(found)
        if list(expected) == list(found):
            return
        wanted, there = Counter(record.id for record in expected), Counter(record.id for record in found)
        wanted_bytes, there_bytes = Counter(expected), Counter(found)
        for record, missing in (wanted_bytes - there_bytes).items():
            if there[record.id] < wanted[record.id]:
                self._note("lost", where, record, missing)
            else:
                self._note("changed", where, record, missing)
        for record, surplus in (there_bytes - wanted_bytes).items():
            if not wanted[record.id]:
                self._note("strange", where, record, surplus)
            elif there[record.id] > wanted[record.id]:
                self._note("doubled", where, record, surplus)
            elif len(self.differences) < 2 * _MAX_SHOWN:
                self.differences.append(f"{where}: found instead: {_shown(record)}")
        if wanted_bytes == there_bytes:
            self.out_of_order += 1
            at = next(number for number, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
            self.differences.append(f"{where}: in another order from record {at} on: {_shown(found[at])}")

    def _note(self, what: str, where: str, record: Bytes, count: int) -> None:
        setattr(self, what, getattr(self, what) + count)
        if len(self.differences) < _MAX_SHOWN:
            self.differences.append(f"{where}: {what}: {_shown(record)}")


@dataclass(slots=True)
class Verdict:
    """Verdict on a whole run."""

    events: int
    """Records in ``events``, including ticks."""
    trajectories: Comparison
    dead_letters: Comparison
    disputed: list[str]
    """Descriptions of disagreements between fold and oracle."""

    @property
    def is_exact(self) -> bool:
        """Whether no record is lost, doubled or unexpected, and every byte is as expected."""
        return self.trajectories.is_exact and self.dead_letters.is_exact and not self.disputed

    @property
    def differences(self) -> list[str]:
        """Descriptions of the first differences."""
        return [*self.trajectories.differences, *self.dead_letters.differences, *self.disputed]


async def judge(bootstrap: str, partitions: int, limits: FoldLimits) -> Verdict:
    """Compare written with expected records, one partition in memory at a time."""
    verdict = Verdict(0, Comparison(), Comparison(), [])
    expected_dead_letters: list[Bytes] = []
    for number in range(partitions):
        events = await read_partition(bootstrap, EVENTS, number)
        verdict.events += len(events)
        expected = batch(events, limits)
        verdict.disputed += disagreements(number, events, expected, limits)
        expected_dead_letters += of_topic(DEAD_LETTERS, expected)
        found = [stored(record) for record in await read_partition(bootstrap, TRAJECTORIES, number)]
        verdict.trajectories.compare(f"trajectories[{number}]", of_topic(TRAJECTORIES, expected), found)
    dead_letters = [record async for record in read_to_end(bootstrap, DEAD_LETTERS)]
    ours = [stored(record) for record in dead_letters if _is_of_events(record)]
    # Every assembler writes to their one partition: the order is defined only per source partition, by offset.
    verdict.dead_letters.compare("dead-letters", sorted(expected_dead_letters, key=_place), sorted(ours, key=_place))
    return verdict


def batch(events: Iterable[LogRecord], limits: FoldLimits) -> list[Outgoing]:
    """The expected output for a partition's ``events``, in order."""
    assembly = PartitionAssembly.resume(limits, None, [], position=0, output_end=0)
    for event in events:
        assembly.take(event)
    return assembly.pending


def disagreements(
    number: int, events: Sequence[LogRecord], outgoing: Iterable[Outgoing], limits: FoldLimits
) -> Iterator[str]:
    """Descriptions of differences between fold and oracle for partition ``number``."""
    oracle = expected_of({number: events}, limits)
    values = [record.value for record in of_topic(TRAJECTORIES, outgoing)]
    if values != oracle.trajectories[number]:
        differing = sum(ours != theirs for ours, theirs in zip_longest(values, oracle.trajectories[number]))
        yield f"events[{number}]: fold and oracle differ in {differing} of {len(values)} trajectories"
    dead_letters = [DeadLetter.model_validate_json(record.value or b"") for record in of_topic(DEAD_LETTERS, outgoing)]
    if Counter((each.partition, each.offset, each.error) for each in dead_letters) != Counter(
        (*place, error) for place, error in oracle.letters.items()
    ):
        yield f"events[{number}]: fold and oracle differ in dead letters"
    if oracle.open[number]:
        yield f"events[{number}]: {len(oracle.open[number])} trajectories are open at the end"


async def read_partition(bootstrap: str, topic: Topic, number: int) -> list[KafkaRecord]:
    """Every committed record of one partition."""
    partition = TopicPartition(topic.name, number)
    found: list[KafkaRecord] = []
    async with open_consumer(bootstrap) as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        await consumer.seek_to_beginning(partition)
        while await consumer.position(partition) < end:
            found += (await consumer.getmany(partition, timeout_ms=500)).get(partition, [])
    return found


def stored(record: KafkaRecord) -> Bytes:
    """``record`` without its offset."""
    return Bytes(record.key, record.value, tuple(record.headers), record.timestamp)


def of_topic(topic: Topic, outgoing: Iterable[Outgoing]) -> list[Bytes]:
    """The records of ``outgoing`` for ``topic``."""
    return [
        Bytes(each.message.key, each.message.value, tuple(each.message.headers), max(0, each.timestamp_ms))
        for each in outgoing
        if each.topic is topic
    ]


def _is_of_events(record: KafkaRecord) -> bool:
    return DeadLetter.model_validate_json(record.value or b"").topic == EVENTS.name


def _place(record: Bytes) -> tuple[int, int, Bytes]:
    letter = DeadLetter.model_validate_json(record.value or b"")
    return letter.partition, letter.offset, record


def _shown(record: Bytes) -> str:
    value = (record.value or b"").decode(errors="replace")
    return f"{record.id} of {(record.key or b'').decode(errors='replace')}: {value[:_SHOWN_CHARACTERS]}"
