"""Writes batches to ClickHouse, one set at a time, in a task of its own: the sink reads on meanwhile.

due cuts → announced in the commit's metadata → Arrow inserts with tokens → commit → pause
"""

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError

from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.batch_writer import BatchWriter
from headrace.streams.clickhouse.commits import Commit, TopicCommits
from headrace.streams.clickhouse.pending import PendingPartitions, TakenBatch
from headrace.streams.clickhouse.sink_config import SinkConfig

log = logging.getLogger(__name__)

LOST_PARTITION = (CommitFailedError, IllegalStateError, RebalanceInProgressError)
"""Errors of a commit or a seek once a partition belongs to another process."""

_PAUSE_LINGERS = 2.0
"""Longest pause between two writes, in lingers. Full batches are written during the pause."""
_PASSED_S = 5.0
"""Time without a write after which positions are committed that have passed offsets without records."""


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
        self._pauses_until = 0.0
        self._passed_at = 0.0
        self.size = 0
        """Bytes of the batches that are being written."""

    @property
    def is_writing(self) -> bool:
        """Whether a write is running."""
        return self._writing is not None

    def write_due(self, now: float) -> None:
        """Start writing the batches that are full or old enough, unless a write is running."""
        if self._writing is None and ((cuts := self._due(now)) or now >= self._passed_at):
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
        """Returns the ends of the batches to write now."""
        found: dict[TopicPartition, int] = {}
        for place, pending in self._held.items():
            if pending.is_empty:
                continue
            is_due = now >= self._pauses_until and pending.is_due(now, self._config.linger_s, self._assigned.end(place))
            end = pending.cut(early=is_due)
            if end is not None:
                found[place] = end
        return found

    async def _write(self, batches: Mapping[TopicPartition, TakenBatch]) -> None:
        """Announce the cuts, insert the batches, commit. If a partition was reassigned meanwhile, everything is read
        again.
        """
        begun = monotonic()
        try:
            new = {place: batch for place, batch in batches.items() if not batch.is_announced}
            await self._commits.commit({place: Commit(batch.first, batch.end) for place, batch in new.items()})
            async with asyncio.TaskGroup() as writers:
                # The smallest first: training records are visible before the events of the same second.
                for place, batch in sorted(batches.items(), key=lambda each: each[1].end - each[1].first):
                    writers.create_task(self._writer.write(place, batch, self._slots))
            written = {place: Commit(batch.end) for place, batch in batches.items()}
            await self._commits.commit(written | await self._passed())
        except LOST_PARTITION as error:
            log.info("partitions were reassigned during a write, reading again from the committed offsets: %s", error)
            self._held.generation = -1
        finally:
            self._writing, self.size = None, 0
            took = monotonic() - begun
            share = self._config.pause_share if self._has_backlog() else self._config.caught_up_pause_share
            self._pauses_until = begun + took + min(share * took, _PAUSE_LINGERS * self._config.linger_s)

    def _has_backlog(self) -> bool:
        """Whether any partition has a backlog in Kafka."""
        return any(pending.is_behind(self._assigned.end(place)) for place, pending in self._held.items())

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
