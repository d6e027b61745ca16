"""The Faust shell of group: one :class:`Groups` a partition, kept in a table, expired by a timer when nothing flows.

Order of a batch: fold → table (changelog acknowledged) → outputs (acknowledged) → table without the outputs →
acknowledge the input. A decision is durable before anybody sees it, so whatever is cut off is only said again; after a
restart or a rebalance the table's unannounced outputs are sent first.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import faust
from faust.types import TP

from headrace.schemas.records import Reward
from headrace.schemas.topics import DEAD_LETTERS, REWARDS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.continuity import Continuity
from headrace.streams.dead_letters import dead_letter_message
from headrace.streams.faust_app import all_done, batches, current, decode_as, raw_topic, send_all, stored_record
from headrace.streams.group import output_message
from headrace.streams.groups import Changes, GroupLimits, Groups, StoredGroup
from headrace.streams.raw import Outgoing

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""How often an idle partition's log time is looked at."""
IDLE_GRACE_S = 5.0
"""A partition is idle after this long without a record, and its time then runs this far behind the wall: a record
that is on its way keeps its place before the deadline."""


class GroupWorker:
    """Folds ``rewards`` into ``training`` and ``rejected`` on a Faust app."""

    def __init__(
        self, app: faust.App, bootstrap: str, limits: GroupLimits, *, partitions: int, sources: int, batch: int
    ) -> None:
        """Put agent, table and timer on ``app``.

        ``partitions`` are those of ``rewards``, ``sources`` those of ``trajectories``; ``batch`` records are read at
        a time.
        """
        self.app = app
        self.limits = limits
        self.batch = batch
        self.sources = sources
        # Written by _put alone: table[key] = value cannot be awaited, nor be used by a timer.
        self.table = app.Table("groups", key_type=bytes, value_type=bytes, partitions=partitions)
        self._changelog = self.table.changelog_topic.get_topic_name()
        self._lock = asyncio.Lock()
        self._owning = False
        self._groups: dict[int, Groups] = {}
        self._continuity = Continuity(app, bootstrap, REWARDS, transactional=False)
        self._seen_at: dict[int, float] = {}
        app.agent(raw_topic(app, REWARDS), name="group")(self._run)
        app.timer(interval=TICK_S)(self._tick)
        app.on_partitions_revoked.connect(self._let_go)
        app.on_rebalance_complete.connect(self._take_over)

    async def _run(self, stream: Any) -> None:
        async for events in batches(stream, self.batch):
            async with self._lock:
                await self._restore()
                ours = [event for event in current(self.app, events) if event.message.partition in self._groups]
                await self._fold(ours)
                for event in ours:
                    event.ack()

    async def _fold(self, events: list[faust.Event]) -> None:
        changes: dict[int, Changes] = defaultdict(Changes)
        letters = []
        for event in events:
            record = stored_record(event)
            await self._continuity.check(record)
            self._seen_at[record.partition] = monotonic()
            try:
                reward = decode_as(record, Reward)
            except UnreadableRecord as error:
                logger.warning("%s[%d]@%d cannot be grouped: %s", record.topic, record.partition, record.offset, error)
                letters.append(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), record.timestamp))
            else:
                self._groups[record.partition].add(reward, record.timestamp, changes[record.partition])
        await self._settle(changes, letters)

    async def _tick(self) -> None:
        """Expire what is due on partitions where nothing flows."""
        async with self._lock:
            await self._restore()
            changes: dict[int, Changes] = defaultdict(Changes)
            for partition, groups in self._groups.items():
                idle_s = monotonic() - self._seen_at[partition] - IDLE_GRACE_S
                now_ms = groups.newest_ms + round(idle_s * 1000)
                if idle_s > 0 and groups.is_due(now_ms) and await self._caught_up(partition):
                    groups.expire_due(now_ms, changes[partition])
            await self._settle(changes, [])

    async def _settle(self, changes: Mapping[int, Changes], outgoing: list[Outgoing]) -> None:
        """Make ``changes`` durable, then announce what was decided."""
        stored = [
            (partition, group_id, kept)
            for partition, change in changes.items()
            for group_id, kept in change.stored.items()
        ]
        await all_done([await self._put(*entry) for entry in stored])
        for change in changes.values():
            outgoing += [Outgoing(*output_message(record, time_ms), time_ms) for record, time_ms in change.at_once]
        await self._announce(stored, outgoing)

    async def _announce(self, stored: Sequence[tuple[int, str, StoredGroup | None]], outgoing: list[Outgoing]) -> None:
        """Send ``outgoing`` and the outputs of ``stored``; then keep those groups without their outputs."""
        decided = [(partition, group_id, kept) for partition, group_id, kept in stored if kept and kept.outputs]
        for _, _, kept in decided:
            time_ms = kept.state.closed_ms or kept.state.opened_ms
            outgoing += [Outgoing(*output_message(output, time_ms), time_ms) for output in kept.outputs]
        await send_all(self.app, outgoing)
        await all_done(
            [await self._put(partition, group_id, kept.announced()) for partition, group_id, kept in decided]
        )

    async def _put(self, partition: int, group_id: str, kept: StoredGroup | None) -> Any:
        """Keep or forget a group; the future that it returns resolves once the changelog has it."""
        key = f"{partition}/{group_id}".encode()
        value = kept.model_dump_json().encode() if kept else None
        if value is None:
            self.table.data.pop(key, None)
        else:
            self.table.data[key] = value
        return await self.app.producer.send(self._changelog, key, value, partition, None, None)

    async def _restore(self) -> None:
        """After a rebalance: groups from the recovered table, and outputs that were decided but perhaps not sent."""
        if not self._owning or self._groups:
            return
        assigned = {tp.partition for tp in self.app.consumer.assignment() if tp.topic == REWARDS.name}
        found: dict[int, dict[str, StoredGroup]] = {partition: {} for partition in assigned}
        for key, value in self.table.data.items():
            number, _, group_id = key.decode().partition("/")
            if int(number) in found:
                found[int(number)][group_id] = StoredGroup.model_validate_json(value)
        now = monotonic()
        self._seen_at = dict.fromkeys(assigned, now)
        self._groups = {
            partition: Groups(self.limits, stored, sources=self.sources) for partition, stored in found.items()
        }
        entries = [(partition, *entry) for partition, stored in found.items() for entry in stored.items()]
        await self._announce(entries, [])
        logger.info("grouping partitions %s: %d groups known", sorted(assigned), len(entries))

    async def _caught_up(self, partition: int) -> bool:
        """Whether nothing in ``rewards`` waits to be folded: then silence means that nothing came."""
        tp = TP(REWARDS.name, partition)
        ends = await self.app.consumer.highwaters(tp)
        following = self._continuity.following(partition)
        if following is None:
            following = await self.app.consumer.position(tp)
        return bool(ends[tp] == following)

    async def _let_go(self, *_: Any, **__: Any) -> None:
        """Before a rebalance: finish the batch in hand, then touch nothing until the table is recovered."""
        async with self._lock:
            self._owning = False
            self._groups = {}

    async def _take_over(self, *_: Any, **__: Any) -> None:
        """After a rebalance: the table is recovered for the partitions that are ours now."""
        self._owning = True
