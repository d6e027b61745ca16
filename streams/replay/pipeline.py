"""A replay without I/O: turns records of the range into records of the side topics, by the rules that run live.

    read:   a record of one partition, or a portion of folded events  →  items with stream times
    take:   the next item in stream time  →  trajectory, reward, decisions of groups; each with its partition

Items are read partition by partition and taken in stream time, so the output depends on the log alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from headrace.schemas.bounds import is_time
from headrace.schemas.side_topics import OffsetRange, ReplayStage
from headrace.schemas.topics import EVENTS, FEEDBACK, REWARDS, TRAJECTORIES, Topic
from headrace.streams.processors.score_hook import Verdicts
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.replay.groups import Regrouping
from headrace.streams.replay.other_processors import FurtherProcessors
from headrace.streams.replay.placed import Placed, Placement
from headrace.streams.replay.rewards import Rescoring
from headrace.streams.replay.trajectories import Folded, LeftOut, Portion
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Processor

Item: TypeAlias = LogRecord | Folded
"""An item with a stream time: a record that was read, or an output of the fold of events."""

SOURCE_OF: Mapping[ReplayStage, Topic] = {
    ReplayStage.EVENTS: EVENTS,
    ReplayStage.TRAJECTORIES: TRAJECTORIES,
    ReplayStage.REWARDS: REWARDS,
}
"""Topic that each stage reads."""


class ReplayPipeline:
    """One replay: a function of the records in the spans, independent of how they are divided into portions."""

    def __init__(
        self,
        rules: Rules,
        spans: Mapping[int, OffsetRange],
        partitions: Mapping[Topic, int],
        verdicts: Verdicts | None = None,
        further: Iterable[Processor[Rules]] = (),
    ) -> None:
        """``spans``: ranges of the stage's topic by partition; ``partitions``: number of partitions of each topic that
        is written; ``verdicts``: of judges; ``further``: processors that run in addition to score and group.
        """
        self.begin_ms: int | None = None
        """Earliest stream time at which a partition of the range begins, Unix milliseconds."""
        self.end_ms = 0
        """Latest stream time of the range."""
        self._spans = spans
        self._begun: set[int] = set()
        self._placement = Placement(partitions)
        self._next_offset: Counter[tuple[str, int]] = Counter()
        self._rescoring = Rescoring(rules, verdicts or {})
        self._regrouping = Regrouping(rules, partitions=partitions.get(REWARDS, max(spans, default=0) + 1))
        further = tuple(further)
        self._further = FurtherProcessors(further, rules, self._placement, partitions) if further else None
        self._read: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of records that were read, made, decided and left out, by name."""
        total = self._read + self._rescoring.counts
        total.update(self._regrouping.counts)
        if self._further is not None:
            total.update(self._further.counts)
        return {name: count for name, count in sorted(total.items()) if count}

    def read(self, record: LogRecord) -> list[tuple[int, Item]]:
        """Returns the next record of its partition with its stream time."""
        self._read[f"read_{record.topic}"] += 1
        self.end_ms = max(self.end_ms, record.timestamp if is_time(record.timestamp) else 0)
        if record.topic != FEEDBACK.name and record.partition not in self._begun:
            self._begin(record.partition, record.timestamp)
        return [(record.timestamp, record)]

    def read_folded(self, portion: Portion) -> list[tuple[int, Item]]:
        """Returns the outputs of the next events of a partition with their stream times."""
        self._read.update(portion.counts)
        self.end_ms = max(self.end_ms, portion.end_ms)
        if portion.begin_ms is not None:
            self._begin(portion.partition, portion.begin_ms)
        return [(item.closed_ms if isinstance(item, LeftOut) else item.timestamp_ms, item) for item in portion.items]

    def take(self, time_ms: int, partition: int, item: Item) -> list[Placed]:
        """Returns the records to write because of ``item``, the next in stream time, which comes from ``partition``."""
        due = self._rewarded(self._rescoring.pass_time(time_ms))
        if self._further is None:
            return [*due, *self._take(partition, item)]
        placed = [*self._further.written(due), *self._further.advance(time_ms)]
        if not isinstance(item, Outgoing | LeftOut):
            placed += self._further.read(item)
        return [*placed, *self._further.written(self._take(partition, item))]

    def finish(self) -> list[Placed]:
        """Advance stream time to the end of the range, after the last record. Returns the records to write."""
        rewarded = self._rewarded(self._rescoring.finish(self.end_ms))
        placed = [*rewarded, *map(self._placement.place, self._regrouping.finish(self.end_ms))]
        if self._further is None:
            return placed
        return [*self._further.written(placed), *self._further.advance(self.end_ms)]

    def _take(self, partition: int, item: Item) -> list[Placed]:
        match item:
            case LeftOut():
                self._regrouping.cut(item.closed_ms)
                return []
            case Outgoing() if item.topic is not TRAJECTORIES:
                return [self._placement.place(item)]
            case Outgoing():
                stored = self._stored(item, partition)
                return [Placed(item, partition), *self._rewarded(self._rescoring.take(stored))]
            case _ if item.topic == REWARDS.name:
                return self._grouped(item)
            case _:
                return self._rewarded(self._rescoring.take(item))

    def _begin(self, partition: int, time_ms: int) -> None:
        self._begun.add(partition)
        time_ms = max(0, time_ms)
        self.begin_ms = time_ms if self.begin_ms is None else min(time_ms, self.begin_ms)
        if not self._spans[partition].begins_log:
            self._regrouping.cut(time_ms)

    def _rewarded(self, made: Iterable[Outgoing]) -> list[Placed]:
        """Returns rewards, each followed by the group decisions that it completes, and dead letters."""
        out = []
        for outgoing in made:
            placed = self._placement.place(outgoing)
            out.append(placed)
            if outgoing.topic is REWARDS:
                out += self._grouped(self._stored(outgoing, placed.partition))
        return out

    def _grouped(self, record: LogRecord) -> list[Placed]:
        return list(map(self._placement.place, self._regrouping.take(record)))

    def _stored(self, outgoing: Outgoing, partition: int) -> StoredRecord:
        """Returns ``outgoing`` as a record of its side topic."""
        topic, message, timestamp_ms = outgoing
        offset = self._next_offset[topic.name, partition]
        self._next_offset[topic.name, partition] = offset + 1
        return StoredRecord(topic.name, partition, offset, timestamp_ms, message.key, message.value, message.headers)
