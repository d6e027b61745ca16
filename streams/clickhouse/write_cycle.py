"""Writes batches to ClickHouse, one set at a time, in a task of its own: the sink reads on meanwhile.

due cuts → inserts → announced in the commits' metadata → Arrow inserts with tokens → commit → pause

The records of a topic's partitions are inserted together. An insert that another process announced, and perhaps did not
finish, is repeated before anything else is written.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError

from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.batch_writer import BatchWriter
from headrace.streams.clickhouse.batches import RowBatch
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.cuts import PlannedInsert, planned
from headrace.streams.clickhouse.pending import PendingPartitions, TakenBatch
from headrace.streams.clickhouse.repeated_insert import ranges_again
from headrace.streams.clickhouse.sink_config import SinkConfig

log = logging.getLogger(__name__)

LOST_PARTITION = (CommitFailedError, IllegalStateError, RebalanceInProgressError)
"""Errors of a commit or a seek once a partition belongs to another process."""

_MOST_PAUSE_LINGERS = 3.0
"""Longest pause between two writes, in lingers. Full batches are written during the pause."""
_PASSED_S = 5.0
"""Time without a write after which positions are committed that have passed offsets without records."""


def pause_s(took_s: float, linger_s: float, share: float) -> float:
    """Returns the pause after a write that took ``took_s``, in seconds: ``share * took_s ** 2 / linger_s``, at most
    :data:`_MOST_PAUSE_LINGERS` lingers.

    Each insert costs ClickHouse about the same processor time whatever its size. On an idle machine a write is short,
    and rows are visible soon; on a saturated one it is long, and few large inserts save the time that is lacking.
    """
    return min(share * took_s * took_s / linger_s, _MOST_PAUSE_LINGERS * linger_s)


@dataclass(frozen=True, slots=True)
class AnnouncedInsert:
    """An announcement that was found at a partition."""

    insert: PlannedInsert
    """The insert."""
    first: int
    """First offset of the partition's range that was left when the partition was started."""


class WriteCycle:
    """Writes what is due, commits, and pauses."""

    def __init__(
        self,
        config: SinkConfig,
        held: PendingPartitions,
        assigned: AssignedPartitions,
        commits: TopicCommits,
        writer: BatchWriter,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Writes from ``held``; ``tasks`` runs the writes, and gets their errors."""
        self._config = config
        self._held = held
        self._assigned = assigned
        self._commits = commits
        self._writer = writer
        self._tasks = tasks
        self._slots = asyncio.Semaphore(config.concurrent_inserts)
        self._writing: asyncio.Task[None] | None = None
        self._announced: dict[TopicPartition, AnnouncedInsert] = {}
        self._pauses_until = 0.0
        self._passed_at = 0.0
        self.size = 0
        """Bytes of the batches that are being written."""

    @property
    def is_writing(self) -> bool:
        """Whether a write is running."""
        return self._writing is not None

    def note_announced(self, places: Mapping[TopicPartition, AnnouncedInsert | None]) -> None:
        """Note what was announced at ``places``, which are started: before anything else is written, these inserts are
        repeated. No write may be running.
        """
        for place, announced in places.items():
            self._announced.pop(place, None)
            if announced is not None:
                self._announced[place] = announced

    def forget(self) -> None:
        """Forget announced inserts: all partitions are started again."""
        self._announced.clear()

    def write_due(self, now: float) -> None:
        """Start writing the batches that are full or old enough, unless a write is running."""
        if self._writing is None and ((cuts := self._due(now)) or self._announced or now >= self._passed_at):
            self.write(cuts)

    def write(self, cuts: Mapping[TopicPartition, int]) -> None:
        """Start writing the batches that end at ``cuts``, and commit. No other write may be running."""
        assert self._writing is None
        self._passed_at = monotonic() + _PASSED_S
        taken = {place: self._held[place].take(end) for place, end in cuts.items()}
        self.size = sum(batch.size for batch in taken.values())
        self._writing = self._tasks.create_task(self._write(taken))

    async def written(self) -> None:
        """Wait until no write is running."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def _due(self, now: float) -> dict[TopicPartition, int]:
        """Returns the ends of the batches to write now. Once a partition is due, so are the others of its topic that
        have no backlog: their records are inserted together. A full batch is written during a pause, and with it what
        would be due without the pause: under a backlog a batch may be full in every pause.
        """
        waiting = {place: pending for place, pending in self._held.items() if not pending.is_empty}
        full = {place for place, pending in waiting.items() if pending.cut(early=False) is not None}
        due = {
            place
            for place, pending in waiting.items()
            if (full or now >= self._pauses_until)
            and pending.is_due(now, self._config.linger_s, self._assigned.end(place))
        }
        topics = {place.topic for place in due}
        found: dict[TopicPartition, int] = {}
        for place, pending in waiting.items():
            joins = place.topic in topics and not pending.is_behind(self._assigned.end(place))
            if (end := pending.cut(early=place in due or joins)) is not None:
                found[place] = end
        return found

    async def _write(self, batches: Mapping[TopicPartition, TakenBatch]) -> None:
        """Repeat announced inserts; then announce those of ``batches``, insert, and commit. If a partition was
        reassigned meanwhile, everything is read again.
        """
        begun = monotonic()
        generation = self._held.generation
        try:
            if self._announced:
                await self._repeat(generation)
            ranges = {place: (batch.first, batch.end) for place, batch in batches.items()}
            ids = {place: self._commits.topic_id(place) for place in batches}
            inserts = planned(ranges, ids, self._config.batch_records)
            announced = {place: Commit(batches[place].first, each.ranges) for each in inserts for place in each.places}
            await self._commit(announced, generation)
            async with asyncio.TaskGroup() as writers:
                # The smallest first: training records are visible before the events of the same second.
                for insert in inserts:
                    taken = {place.partition: batches[place] for place in insert.places}
                    writers.create_task(self._writer.write(insert, partial(_converted, taken), self._slots))
            written = {place: Commit(batch.end) for place, batch in batches.items()}
            await self._commit(written | await self._passed(), generation)
        except LOST_PARTITION as error:
            log.info("partitions were reassigned during a write, reading again from the committed offsets: %s", error)
            self._held.generation = -1
        finally:
            self._writing, self.size = None, 0
            took = monotonic() - begun
            self._pauses_until = begun + took + pause_s(took, self._config.linger_s, self._config.pause_share)

    async def _repeat(self, generation: int) -> None:
        """Repeat the announced inserts, and commit the ranges of this process's partitions. Raises
        ``IllegalStateError`` if records have expired since the partitions were started, which is then reported.
        """
        waiting = dict(self._announced)
        for insert in dict.fromkeys(each.insert for each in waiting.values()):
            again = await ranges_again(self._config.bootstrap, insert)
            if again is None:
                continue
            for place, announced in waiting.items():
                if announced.insert == insert and (
                    place.partition not in again or again[place.partition].first > announced.first
                ):
                    raise IllegalStateError(f"records of {place} from {announced.first} on have expired")
            rows = partial(_ready, {partition: each.batch for partition, each in again.items()})
            await self._writer.write(insert, rows, self._slots, is_repeated=True)
        await self._commit({place: Commit(each.insert.end(place)) for place, each in waiting.items()}, generation)
        self._announced.clear()

    async def _commit(self, commits: Mapping[TopicPartition, Commit], generation: int) -> None:
        """Commit. Raises ``IllegalStateError`` after a rebalance since ``generation``: another process may have had the
        partitions meanwhile, and have committed more.
        """
        if self._assigned.generation != generation:
            raise IllegalStateError("a rebalance began since these records were read")
        await self._commits.commit(commits)

    async def _passed(self) -> dict[TopicPartition, Commit]:
        """Returns the commits for partitions of which everything that was read is written: past transaction markers and
        aborted records too. Their offsets would otherwise count as lag, and as unread once they expire.
        """
        found: dict[TopicPartition, Commit] = {}
        # After a rebalance records may have been read and dropped: they are in front of the position.
        if self._held.generation == self._assigned.generation:
            for place, pending in list(self._held.items()):
                position = await self._assigned.position(place)
                if pending.is_written_to(position):
                    pending.first = position
                    found[place] = Commit(position)
        return found


async def _ready(rows: Mapping[int, RowBatch]) -> Mapping[int, RowBatch]:
    """Returns ``rows``."""
    return rows


async def _converted(taken: Mapping[int, TakenBatch]) -> dict[int, RowBatch]:
    """Returns the rows of batches, by partition."""
    return {partition: await asyncio.to_thread(batch.rows) for partition, batch in taken.items()}
