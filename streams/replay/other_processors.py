"""Processors of the topology other than assemble, score and group, in a replay: the runtime that runs them live.

    records read, records written to side topics ──▶ operator of their partition ──▶ records of further side topics

An operator starts without state, as the log does for a replay. Its stream time is the replay's, and a record is
processed as soon as it is read or written, before the next one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.schemas.topics import DEAD_LETTERS, Topic
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.replay.placed import Placed, Placement
from headrace.streams.replay.rewards import UNREADABLE
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Operator, Processor, Start
from headrace.streams.runtime.runtime import Runtime

CORE = ("assemble", "score", "group")
"""Names of the processors that a replay runs with operators of its own, because a range may cut what they work on."""


class FurtherSelection(NamedTuple):
    """The further processors of a topology."""

    run: tuple[Processor[Rules], ...] = ()
    """Those that the replay runs."""
    left_out: Mapping[str, str] = {}
    """Why it does not run the others, by name."""

    @property
    def makes(self) -> tuple[Topic, ...]:
        """The topics that they write."""
        return tuple(dict.fromkeys(topic for processor in self.run for topic in processor.writes))


def further_processors(
    topology: Sequence[Processor[Rules]], available: Iterable[Topic], rules: Rules
) -> FurtherSelection:
    """Returns the further processors of ``topology`` whose inputs are ``available`` or written by one before them.

    ``available``: topics whose records the replay reads or writes.
    """
    topics, run, left_out = set(available), list[Processor[Rules]](), dict[str, str]()
    needed = {topic for processor in topology if processor.name in CORE for topic in processor.reads}
    for processor in topology:
        needs = [topic for topic in processor.inputs(rules) if topic not in processor.optional]
        missing = [topic.name for topic in needs if topic not in topics]
        fed_back = [topic.name for topic in processor.writes if topic in needed]
        if processor.name in CORE:
            continue
        if processor.hook is not None:
            left_out[processor.name] = "its hook needs services that a replay does not have"
        elif missing:
            left_out[processor.name] = f"the replay has no records of {', '.join(missing)}"
        elif fed_back:
            left_out[processor.name] = f"it writes {', '.join(fed_back)}, which the replay itself processes"
        else:
            run.append(processor)
            topics.update(processor.writes)
    return FurtherSelection(tuple(run), left_out)


class FurtherProcessors:
    """Further processors, running on all their partitions."""

    def __init__(
        self,
        processors: Iterable[Processor[Rules]],
        rules: Rules,
        placement: Placement,
        partitions: Mapping[Topic, int],
    ) -> None:
        """``placement`` and ``partitions``: of the topics that the replay writes."""
        self._nodes = [_Node(processor, rules, partitions) for processor in processors]
        self._placement = placement
        self._read_by: dict[str, list[_Node]] = {}
        for node in self._nodes:
            for topic in node.reads:
                self._read_by.setdefault(topic, []).append(node)
        self._next_offset: Counter[tuple[str, int]] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Numbers of written records by topic, and the operators' counts, prefixed with the processor's name."""
        total: Counter[str] = Counter()
        for node in self._nodes:
            total += node.counts
        return total

    def read(self, record: LogRecord) -> Iterator[Placed]:
        """Process a record that the replay read. Yields the records to write because of it."""
        for node in self._read_by.get(record.topic, ()):
            yield from self.written(self._placed(node.process(record)))

    def written(self, placed: Iterable[Placed]) -> Iterator[Placed]:
        """Yields each of ``placed``, which the replay writes, followed by the records to write because of it."""
        waiting = deque(placed)
        while waiting:
            each = waiting.popleft()
            yield each
            if nodes := self._read_by.get(each.outgoing.topic.name):
                stored = self._stored(each)
                made = [outgoing for node in nodes for outgoing in node.process(stored)]
                waiting.extendleft(reversed(self._placed(made)))

    def advance(self, now_ms: int) -> Iterator[Placed]:
        """Advance stream time to ``now_ms``. Yields the records to write because of it."""
        for node in self._nodes:
            yield from self.written(self._placed(node.advance(now_ms)))

    def _placed(self, made: Iterable[Outgoing]) -> list[Placed]:
        return [self._placement.place(outgoing) for outgoing in made]

    def _stored(self, placed: Placed) -> StoredRecord:
        (topic, message, timestamp_ms), partition = placed
        offset = self._next_offset[topic.name, partition]
        self._next_offset[topic.name, partition] += 1
        return StoredRecord(topic.name, partition, offset, timestamp_ms, message.key, message.value, message.headers)


class _Node:
    """A processor that runs."""

    def __init__(self, processor: Processor[Rules], rules: Rules, partitions: Mapping[Topic, int]) -> None:
        self.reads = [topic.name for topic in processor.inputs(rules)]
        self._processor = processor
        self._rules = rules
        self._start = Start(partitions=partitions)
        self._writes = {*processor.writes, DEAD_LETTERS}
        self._runtime = Runtime(processor.source, strict=False)
        self._partitions: dict[int, tuple[Operator, MemoryPartition]] = {}
        self._now_ms = 0
        self._unreadable = 0

    @property
    def counts(self) -> Counter[str]:
        counted = Counter({f"{self._processor.name}_{name}": count for name, count in self._runtime.counts.items()})
        written = {topic.name: self._runtime.written[topic.name] for topic in self._processor.writes}
        return counted + Counter(written) + Counter({UNREADABLE: self._unreadable})

    def process(self, record: LogRecord) -> list[Outgoing]:
        if record.partition not in self._partitions:
            operator, _ = self._processor.restore(self._rules, self._start)
            self._partitions[record.partition] = (operator, MemoryPartition())
            self._runtime.assign(record.partition, *self._partitions[record.partition])
        made = self._advance(record.partition, record.timestamp)
        run_to_end(self._runtime.process([record]))
        return made + self._written(record.partition)

    def advance(self, now_ms: int) -> list[Outgoing]:
        return [each for number in sorted(self._partitions) for each in self._advance(number, now_ms)]

    def _advance(self, number: int, now_ms: int) -> list[Outgoing]:
        self._now_ms = max(now_ms, self._now_ms)
        if not self._partitions[number][0].waits:
            return []
        run_to_end(self._runtime.advance({number: self._now_ms}))
        return self._written(number)

    def _written(self, number: int) -> list[Outgoing]:
        made = [each for each in self._partitions[number][1].written() if each.topic in self._writes]
        self._unreadable += sum(each.topic is DEAD_LETTERS for each in made)
        return made
