"""Writes batches to ClickHouse, one set at a time, in a task of its own: the sink reads on meanwhile.

due cuts → announced in the commit's metadata → Arrow inserts with tokens → commit → pause

The records of a topic's partitions are inserted together. An insert that another process announced, and perhaps did not
finish, is repeated before anything else is written.
"""

import asyncio
import logging
from collections.abc import Mapping
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
from headrace.streams.clickhouse.repeated_insert import rows_again
from headrace.streams.clickhouse.sink_config import SinkConfig

log = logging.getLogger(__name__)

LOST_PARTITION = (CommitFailedError, IllegalStateError, RebalanceInProgressError)
"""Errors of a commit or a seek once a partition belongs to another process."""

_MOST_PAUSE_LINGERS = 3.0
"""Longest pause between two writes, in lingers. Full batches are written during the pause."""
_PASSED_S = 5.0
"""Time without a write after which positions are committed that have passed offsets without records."""


def pause_s(took_s: float, linger_s: float, share: float) -> float:
    """Returns the pause after a write that took ``took_s``, in seconds: ``share`` of a write that took one linger, and
    growing with its square, up to :data:`_MOST_PAUSE_LINGERS`.

    Each insert costs ClickHouse about the same processor time whatever its size. On an idle machine a write is short,
    and rows are visible soon; on a saturated one it is long, and few large inserts save the time that is lacking.
    """
    return min(share * took_s * took_s / linger_s, _MOST_PAUSE_LINGERS * linger_s)


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
        self._announced: dict[TopicPartition, PlannedInsert] = {}
        self._pauses_until = 0.0
        self._passed_at = 0.0
        self.size = 0
        """Bytes of the batches that are being written."""

    @property
    def is_writing(self) -> bool:
        """Whether a write is running."""
        return self._writing is not None

    def start(self, places: Mapping[TopicPartition, PlannedInsert | None]) -> None:
        """Note that ``places`` are started: before anything else is written, the inserts that were announced there are
        repeated. No write may be running.
        """
        for place, insert in places.items():
            self._announced.pop(place, None)
            if insert is not None:
                self._announced[place] = insert

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
        have no backlog: their records are inserted together.
        """
        pauses, lingers = now < self._pauses_until, self._config.linger_s
        held = {place: pending for place, pending in self._held.items() if not pending.is_empty}
        due = {
            place
            for place, pending in held.items()
            if not pauses and pending.is_due(now, lingers, self._assigned.end(place))
        }
        topics = {place.topic for place in due}
        found: dict[TopicPartition, int] = {}
        for place, pending in held.items():
            joins = place.topic in topics and not pending.is_behind(self._assigned.end(place))
            if (end := pending.cut(early=place in due or joins)) is not None:
                found[place] = end
        return found

    async def _write(self, batches: Mapping[TopicPartition, TakenBatch]) -> None:
        """Repeat announced inserts; then announce those of ``batches``, insert, and commit. If a partition was
        reassigned meanwhile, everything is read again.
        """
        begun = monotonic()
        try:
            if self._announced:
                await self._repeat()
            ranges = {place: (batch.first, batch.end) for place, batch in batches.items()}
            ids = {place.topic: self._commits.topic_id(place) for place in batches}
            inserts = planned(ranges, ids, self._config.batch_records)
            await self._commits.commit(
                {place: Commit(batches[place].first, each.ranges) for each in inserts for place in each.places}
            )
            async with asyncio.TaskGroup() as writers:
                # The smallest first: training records are visible before the events of the same second.
                for insert in inserts:
                    taken = {place.partition: batches[place] for place in insert.places}
                    writers.create_task(self._writer.write(insert, partial(_converted, taken), self._slots))
            written = {place: Commit(batch.end) for place, batch in batches.items()}
            await self._commits.commit(written | await self._passed())
        except LOST_PARTITION as error:
            log.info("partitions were reassigned during a write, reading again from the committed offsets: %s", error)
            self._held.generation = -1
        finally:
            self._writing, self.size = None, 0
            took = monotonic() - begun
            self._pauses_until = begun + took + pause_s(took, self._config.linger_s, self._config.pause_share)

    async def _repeat(self) -> None:
        """Repeat the announced inserts, and commit the ranges of this process's partitions."""
        async with asyncio.TaskGroup() as writers:
            for insert in {*self._announced.values()}:
                rows = partial(rows_again, self._config.bootstrap, insert)
                writers.create_task(self._writer.write(insert, rows, self._slots))
        await self._commits.commit({place: Commit(each.end(place)) for place, each in self._announced.items()})
        self._announced.clear()

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


async def _converted(taken: Mapping[int, TakenBatch]) -> dict[int, RowBatch]:
    """Returns the rows of batches, by partition."""
    return {partition: await asyncio.to_thread(batch.rows) for partition, batch in taken.items()}
