"""The Faust shell of group: one :class:`Groups` a partition of ``rewards``, moved by a timer when nothing flows.

Faust says which partitions are this process's, and reads. What a batch did is settled a partition in one transaction:
decisions, state and offset (:class:`OwnedPartition`), so a decision is announced exactly once, and a worker that was
suspended while another took its partitions can write nothing when it wakes up. A Kafka that is away is waited for, and
what was under way is done again (``outage.py``).
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import faust
from aiokafka.errors import KafkaError

from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, REJECTED, REWARDS, TRAINING, TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.faust_shell.continuity import Continuity
from headrace.streams.faust_shell.faust_app import (
    all_done,
    assigned_by_group,
    batches,
    current,
    raw_topic,
    stored_record,
)
from headrace.streams.faust_shell.outage import Outages, PartitionsRevoked
from headrace.streams.faust_shell.owned_partition import (
    OwnedPartition,
    Ownership,
    create_state_topic,
    not_ours,
    release_all,
    take_all,
)
from headrace.streams.faust_shell.state_reader import SetAside, read_state, told
from headrace.streams.grouping.group import SOURCE, output_message
from headrace.streams.grouping.group_policy import DEFAULT_POLICIES, GroupPolicies
from headrace.streams.grouping.group_state import Entry, decoded, to_record, without_group
from headrace.streams.grouping.groups import Changes, GroupLimits, Groups
from headrace.streams.grouping.upstream import Upstream, look_upstream
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.letters.raised import raised, raised_alert
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.typed_reader import TypedReader
from headrace.streams.typed_record import check_time

logger = logging.getLogger(__name__)

_REWARDS = TypedReader(Reward)

STATE = "headrace-group-state"
"""Topic of the open groups, and of what is remembered."""
TICK_S = 1.0
"""How often an idle partition's log time is looked at."""
LOOK_S = 10.0
"""How often the broker is asked what is on its way to groups that wait, at least; short timeouts ask more often."""
IDLE_GRACE_S = 5.0
"""A partition is idle after this long without a record, and its time then runs this far behind the wall: a record
that is on its way keeps its place before the deadline."""


class _Partition:
    """What is at work for one partition of ``rewards``."""

    def __init__(self, owned: OwnedPartition, groups: Groups) -> None:
        self.owned = owned
        self.groups = groups
        self.seen_at = monotonic()
        """When something came last, on the monotonic clock."""

    @property
    def quiet_ms(self) -> int | None:
        """Log time now, if nothing is on its way here: the newest record's, and goes on after a while without one."""
        newest_ms = self.groups.time.newest_ms
        silent_s = max(0.0, monotonic() - self.seen_at - IDLE_GRACE_S)
        return None if newest_ms is None else newest_ms + round(silent_s * 1000)

    async def settle(self, changes: Changes, letters: list[Outgoing], offsets: dict[str, int]) -> None:
        state = dict(to_record(key, entry) for key, entry in changes.stored.items())
        outgoing = [
            Outgoing(
                *output_message(each.record, each.time_ms, origin=each.origin, rollouts=each.rollouts), each.time_ms
            )
            for each in changes.outputs
        ]
        if state or outgoing or letters or offsets:
            await self.owned.settle(offsets, state, outgoing + letters + raised_in(changes))


def read_entries(state: Mapping[bytes, LogRecord]) -> tuple[list[Entry], list[SetAside]]:
    """The entries of ``state``, and what is set aside: what cannot be read, and members whose group cannot be."""
    entries, aside = read_state(state, decoded)
    orphans = without_group(entries)
    aside += [SetAside(state[key], "a member of a group that is not there, or cannot be read") for key in orphans]
    return [entry for key, entry in entries.items() if key not in orphans], aside


def raised_in(changes: Changes) -> list[Outgoing]:
    """An alert for each group among ``changes`` whose decision raised: its members are rejected."""
    found: dict[str | None, Outgoing] = {}
    for record, time_ms, *_ in changes.outputs:
        if isinstance(record, Rejection) and record.reason is Reason.RAISED and record.group_id not in found:
            place = record.trajectory
            found[record.group_id] = raised_alert(
                None, SOURCE, time_ms, topic=TRAJECTORIES.name, partition=place.partition, offset=place.offset
            )
    return list(found.values())


class GroupWorker:
    """Folds ``rewards`` into ``training`` and ``rejected`` on a Faust app."""

    def __init__(
        self,
        app: faust.App,
        bootstrap: str,
        limits: GroupLimits,
        *,
        policies: GroupPolicies = DEFAULT_POLICIES,
        partitions: int,
        sources: int,
        batch: int,
    ) -> None:
        """Put agent and timer on ``app``.

        ``partitions`` are those of ``rewards``, ``sources`` those of ``trajectories``; ``batch`` records are read at
        a time.
        """
        self.fates: Counter[str] = Counter()
        """Trajectories decided since the start, durably: ``trained``, or the reason why not."""
        self.ignored = 0
        """Rewards that changed nothing: repeated, or revisions of what had had its fate."""
        self.set_aside = 0
        """Entries of the state that could not be read, since the start."""
        self.app = app
        self.limits = limits
        self.policies = policies
        self.batch = batch
        self.sources = sources
        self._bootstrap = bootstrap
        self._source_partitions = partitions
        self._lock = asyncio.Lock()
        self._assigned_anew = False
        self._outages = Outages("group", self._lose)
        self._lost = False
        self._look_at = 0.0
        self._known: dict[int, tuple[int, int]] = {}  # log time by partition, and the end up to which it must be read
        self._partitions: dict[int, _Partition] = {}
        self._continuity = Continuity(app, bootstrap, REWARDS)
        app.agent(raw_topic(app, REWARDS), name="group")(self._run)
        app.timer(interval=TICK_S)(self._tick)
        app.on_partitions_revoked.connect(self._let_go)
        app.on_before_shutdown.connect(self._let_go)
        app.on_rebalance_complete.connect(self._take_over)

    @property
    def open_groups(self) -> int:
        """Groups that wait for members."""
        return sum(partition.groups.open for partition in self._partitions.values())

    async def _run(self, stream: Any) -> None:
        async for events in batches(stream, self.batch):
            async with self._lock:
                with suppress(PartitionsRevoked):
                    await self._outages.through(partial(self._take_batch, events))

    async def _take_batch(self, events: list[faust.Event]) -> None:
        await self._take()
        ours = [event for event in current(self.app, events) if event.message.partition in self._partitions]
        await self._fold([stored_record(event) for event in ours])
        for event in ours:
            event.ack()

    async def _fold(self, records: list[StoredRecord]) -> None:
        arrived: dict[int, list[StoredRecord]] = defaultdict(list)
        for record in records:
            # What whoever had the partition before settled after Faust had asked for the committed offset.
            if record.offset >= self._partitions[record.partition].owned.offsets.get(REWARDS.name, 0):
                await self._continuity.check(record)
                arrived[record.partition].append(record)
        await all_done([self._fold_partition(self._partitions[number], each) for number, each in arrived.items()])

    async def _fold_partition(self, partition: _Partition, records: list[StoredRecord]) -> None:
        changes, letters = Changes(), []
        partition.seen_at = monotonic()
        for record in records:
            try:
                check_time(record)
                reward, traceparent = _REWARDS.read(record)
                partition.groups.add(reward, record.timestamp, changes, traceparent)
            except UnreadableRecord as error:
                logger.warning("%s[%d]@%d cannot be grouped: %s", record.topic, record.partition, record.offset, error)
                letters.append(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), time_of(record)))
            except MemoryError:
                raise
            except Exception as error:
                logger.exception("%s[%d]@%d is set aside", record.topic, record.partition, record.offset)
                letters += raised(record, error, SOURCE)
        await partition.settle(changes, letters, {REWARDS.name: records[-1].offset + 1})
        self._tally(changes)

    async def _tick(self) -> None:
        """Close what is due on partitions where nothing flows."""
        async with self._lock:
            with suppress(PartitionsRevoked):
                await self._outages.through(self._close_due)

    async def _close_due(self) -> None:
        await self._take()
        # Before the look: what arrives during it may be later than what is still on its way from another source.
        quiet = {number: partition.quiet_ms for number, partition in self._partitions.items()}
        upstream = await self._look_upstream()
        if upstream is not None:
            self._known = {
                number: (now_ms, upstream.ends.get(number, 0))
                for number, partition in self._partitions.items()
                if (now_ms := partition.groups.time.passed_without(upstream.drained, quiet[number])) is not None
            }
        for number, (now_ms, end) in list(self._known.items()):
            partition = self._partitions.get(number)
            # What had been said by then must have been read; where much flows, that is a moment later.
            if partition is not None and await self._continuity.has_taken(number, end):
                del self._known[number]
                changes = Changes()
                partition.groups.pass_time(now_ms, changes)
                await partition.settle(changes, [], {})
                self._tally(changes)

    async def _look_upstream(self) -> Upstream | None:
        """What is on its way; ``None`` where no time need pass, it was asked a moment ago, or nobody answers."""
        if not self.open_groups or monotonic() < self._look_at:
            return None
        self._look_at = monotonic() + min(LOOK_S, self.limits.step_ms / 2000)
        try:
            return await look_upstream(self._bootstrap)
        except (KafkaError, LookupError) as error:
            logger.warning("groups' time stands still: what is on its way to them could not be asked: %s", error)
            return None

    def _tally(self, changes: Changes) -> None:
        for record, *_ in changes.outputs:
            if isinstance(record, TrainingGroup):
                self.fates["trained"] += len(record.members)
            else:
                self.fates[record.reason.value] += 1
        self.ignored += changes.ignored

    async def _take(self) -> None:
        """After a rebalance: the partitions that are ours now, each from where its last owner came to."""
        if not self._assigned_anew:
            return
        assigned = {tp.partition for tp in self.app.consumer.assignment() if tp.topic == REWARDS.name}
        if self._lost:
            held = {tp.partition for tp in await assigned_by_group(self.app, self._bootstrap, {REWARDS.name})}
            if assigned - held:
                raise not_ours(str(self.app.conf.id), assigned - held)
        state = await create_state_topic(
            self._bootstrap,
            STATE,
            partitions=self._source_partitions,
            about="Open groups, and memories of closed ones.",
        )
        ownership = Ownership(
            self._bootstrap, str(self.app.conf.id), (REWARDS,), state, writes=(TRAINING, REJECTED, DEAD_LETTERS, ALERTS)
        )
        for number, owned in (await take_all(ownership, assigned)).items():
            entries, aside = read_entries(owned.state)
            owned.state.clear()
            groups = Groups(
                self.limits, entries, policies=self.policies, sources=self.sources, step_ms=self.limits.step_ms
            )
            self._partitions[number] = _Partition(owned, groups)
            if aside:
                self.set_aside += len(aside)
                await owned.settle({}, {}, told(aside, SOURCE))
        self._continuity.begin(
            {number: each.owned.offsets.get(REWARDS.name, 0) for number, each in self._partitions.items()}
        )
        self._assigned_anew = self._lost = False

    async def _let_go(self, *_: Any, **__: Any) -> None:
        """Before a rebalance, and at the end: finish the batch in hand, then touch nothing."""
        self._outages.revoked.set()
        async with self._lock:
            await self._release()
            self._assigned_anew = self._lost = False

    async def _lose(self) -> None:
        """While Kafka is away: let go of the partitions, to take them again and to do again what was not settled."""
        await self._release()
        self._assigned_anew = self._lost = True

    async def _release(self) -> None:
        self._continuity.end()
        partitions, self._partitions = self._partitions, {}
        await release_all(each.owned for each in partitions.values())

    async def _take_over(self, *_: Any, **__: Any) -> None:
        """After a rebalance: the partitions of the assignment are ours."""
        self._outages.revoked.clear()
        self._assigned_anew = True
