"""The Faust shell of score: trajectories and their feedback in, rewards out.

A trajectory whose spec needs neither feedback nor judges is scored as it comes and leaves no state. The others go
through a :class:`Join` a partition. Order of a batch: fold → ask judges, score → settle. What a batch did is settled a
partition in one transaction (:class:`OwnedPartition`): rewards, dead letters, state and the offsets of both topics. So
a reward is said once and in one form, though a judge that is asked again after a crash might say otherwise, and a
worker that was suspended while another took its partitions can write nothing when it wakes up. A Kafka that is away is
waited for, and what was under way is done again (``outage.py``).
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

import faust

from headrace.schemas.bounds import is_time
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, FEEDBACK, REWARDS, TRAJECTORIES, Topic
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
from headrace.streams.faust_shell.state_reader import read_state, told
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.letters.raised import raised
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rewards.judge_client import Judging
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring.attempt import Attempt
from headrace.streams.scoring.decider import Decider, Hand
from headrace.streams.scoring.due_rewards import announcements
from headrace.streams.scoring.feedback_clock import FeedbackClock
from headrace.streams.scoring.feedback_join import Changes, Join, JoinLimits
from headrace.streams.scoring.score import SOURCE
from headrace.streams.scoring.score_intake import hears_feedback, take_feedback, take_trajectory

logger = logging.getLogger(__name__)

STATE = "headrace-score-state"
"""Topic of what waits for feedback, and of what is remembered of the scored."""
TICK_S = 1.0
"""How often it is looked whether windows have ended."""


@dataclass(slots=True)
class _Intake:
    """What the records of one partition in a batch come to."""

    changes: Changes = field(default_factory=Changes)
    outgoing: list[Outgoing] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    """Behind the last of them, by topic."""


def _named_attempt(key: bytes, value: bytes) -> tuple[str, Attempt]:
    return key.decode(), Attempt.model_validate_json(value)


class _Partition:
    """What is at work for one partition of ``trajectories`` and the same of ``feedback``."""

    def __init__(self, owned: OwnedPartition, limits: JoinLimits, topics: Sequence[Topic]) -> None:
        stored, self.set_aside = read_state(owned.state, _named_attempt)
        owned.state.clear()
        self.owned = owned
        self.join = Join(limits, dict(stored.values()))
        self.clock = FeedbackClock(tuple(topic.name for topic in topics), known_ms=self.join.newest_ms)
        self.seen_at = {topic.name: monotonic() for topic in topics}
        """When a record of a topic came last, on the monotonic clock."""

    def take(self, record: LogRecord, rewards: Rewards, intake: _Intake, hand: Hand) -> None:
        """Score a trajectory, or give it or its feedback to the join."""
        self.seen_at[record.topic] = monotonic()
        intake.offsets[record.topic] = record.offset + 1
        if is_time(record.timestamp):
            self.clock.see(record.topic, record.timestamp)
        try:
            self._take(record, rewards, intake, hand)
        except UnreadableRecord as error:
            logger.warning("%s[%d]@%d cannot be scored: %s", record.topic, record.partition, record.offset, error)
            intake.outgoing.append(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), time_of(record)))
        except MemoryError:
            raise
        except Exception as error:
            logger.exception("%s[%d]@%d is set aside", record.topic, record.partition, record.offset)
            intake.outgoing += raised(record, error, SOURCE)

    def _take(self, record: LogRecord, rewards: Rewards, intake: _Intake, hand: Hand) -> None:
        if record.topic == FEEDBACK.name:
            name, feedback = take_feedback(record)
            with self.join.undone_if_it_raises(name, intake.changes):
                self.join.add_feedback(name, feedback, intake.changes)
            return
        taken = take_trajectory(record, rewards)
        if isinstance(taken, list):
            intake.outgoing += taken
            return
        arrival, trajectory = taken
        with self.join.undone_if_it_raises(arrival.trajectory_id, intake.changes):
            self.join.add_trajectory(arrival, intake.changes)
        hand[record.partition, record.offset] = trajectory

    async def settle(self, intake: _Intake) -> None:
        """Write what the intake, whose rewards are decided, comes to."""
        state = {
            name.encode(): kept.model_dump_json(exclude_defaults=True).encode() if kept else None
            for name, kept in intake.changes.stored.items()
        }
        await self.owned.settle(intake.offsets, state, [*intake.outgoing, *announcements(intake.changes)])


class ScoreWorker:
    """Scores ``trajectories`` into ``rewards`` on a Faust app."""

    def __init__(
        self,
        app: faust.App,
        bootstrap: str,
        rewards: Rewards,
        limits: JoinLimits,
        *,
        partitions: int,
        batch: int,
        judging: Judging | None = None,
        judge_wait_s: float = 120.0,
    ) -> None:
        """Put agents and timer on ``app``.

        ``partitions`` are those of ``trajectories`` and of ``feedback``; ``batch`` records are read, and as many
        trajectories judged or read back, at a time. Judges have ``judge_wait_s`` seconds a batch.
        """
        self.set_aside = 0
        """Entries of the state that could not be read, since the start."""
        self.app = app
        self.bootstrap = bootstrap
        self.rewards = rewards
        self.limits = limits
        self.batch = batch
        self._source_partitions = partitions
        self._reads: tuple[Topic, ...] = (TRAJECTORIES, FEEDBACK) if hears_feedback(rewards) else (TRAJECTORIES,)
        self._continuity = {topic.name: Continuity(app, bootstrap, topic) for topic in self._reads}
        self._decider = Decider(bootstrap, rewards, batch=batch, judging=judging, judge_wait_s=judge_wait_s)
        self._lock = asyncio.Lock()
        self._assigned_anew = False
        self._outages = Outages("score", self._lose)
        self._lost = False
        self._partitions: dict[int, _Partition] = {}
        self._reported: Counter[str] = Counter()
        app.agent(raw_topic(app, TRAJECTORIES), name="score")(self._run)
        if FEEDBACK in self._reads:
            app.agent(raw_topic(app, FEEDBACK), name="hear")(self._run)
        app.timer(interval=TICK_S)(self._tick)
        app.on_partitions_revoked.connect(self._let_go)
        app.on_before_shutdown.connect(self._let_go)
        app.on_rebalance_complete.connect(self._take_over)

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

    async def _fold(self, records: Sequence[LogRecord]) -> None:
        intakes: dict[int, _Intake] = defaultdict(_Intake)
        hand: Hand = {}
        for record in records:
            partition = self._partitions[record.partition]
            # What whoever had the partition before settled after Faust had asked for the committed offset.
            if record.offset >= partition.owned.offsets.get(record.topic, 0):
                await self._continuity[record.topic].check(record)
                partition.take(record, self.rewards, intakes[record.partition], hand)
        await self._settle(intakes, hand)

    async def _tick(self) -> None:
        """Close the windows that have ended, and forget what need not be remembered."""
        async with self._lock:
            try:
                await self._outages.through(self._close_due)
            except PartitionsRevoked:
                return
        self._report()

    async def _close_due(self) -> None:
        await self._take()
        for number, partition in self._partitions.items():
            now_ms = await self._passed_ms(number) if len(partition.join) else 0
            while not self._outages.revoked.is_set() and partition.join.is_due(now_ms):
                intake = _Intake()
                partition.join.pass_time(now_ms, intake.changes, at_most=self.batch)
                await self._settle({number: intake}, {})

    async def _passed_ms(self, number: int) -> int:
        """Log time of a partition."""
        partition, now = self._partitions[number], monotonic()
        idle_s = {
            topic.name: now - partition.seen_at[topic.name]
            for topic in self._reads
            if await self._continuity[topic.name].caught_up(number)
        }
        return partition.clock.passed_ms(idle_s)

    async def _settle(self, intakes: Mapping[int, _Intake], hand: Hand) -> None:
        """Make rewards of what is due, then write each partition's by itself, side by side."""
        changes = {number: intake.changes for number, intake in intakes.items()}
        joins = {number: self._partitions[number].join for number in intakes}
        await self._decider.decide(changes, joins, hand, self._outages.revoked)
        await all_done([self._partitions[number].settle(intake) for number, intake in intakes.items()])

    def _report(self) -> None:
        """What reached a limit since it was last reported, in the log."""
        counts = sum((each.join.counts for each in self._partitions.values()), Counter[str]())
        news = counts - self._reported
        if news:
            logger.warning("limits of the feedback join: %s", ", ".join(f"{name} {n}" for name, n in news.items()))
        self._reported = counts

    async def _take(self) -> None:
        """After a rebalance: the partitions that are ours now, each from where its last owner came to."""
        if not self._assigned_anew:
            return
        places = self.app.consumer.assignment()
        if self._lost:
            names = {topic.name for topic in self._reads}
            mine = {place for place in places if place.topic in names}
            if elsewhere := mine - await assigned_by_group(self.app, self.bootstrap, names):
                raise not_ours(str(self.app.conf.id), {place.partition for place in elsewhere})
        state = await create_state_topic(
            self.bootstrap,
            STATE,
            partitions=self._source_partitions,
            about="Trajectories that wait for feedback, and memories of scored ones.",
        )
        ownership = Ownership(
            self.bootstrap, str(self.app.conf.id), self._reads, state, writes=(REWARDS, DEAD_LETTERS, ALERTS)
        )
        assigned, *others = ({tp.partition for tp in places if tp.topic == topic.name} for topic in self._reads)
        if any(other != assigned for other in others):
            raise RuntimeError(
                f"partitions {sorted(assigned)} of {TRAJECTORIES.name} came without their {FEEDBACK.name}: another "
                "worker of score does not read it. Give all of them the same rewards."
            )
        for number, owned in (await take_all(ownership, assigned)).items():
            partition = self._partitions[number] = _Partition(owned, self.limits, self._reads)
            if partition.set_aside:
                self.set_aside += len(partition.set_aside)
                await owned.settle({}, {}, told(partition.set_aside, SOURCE))
        for topic in self._reads:
            self._continuity[topic.name].begin(
                {number: each.owned.offsets.get(topic.name, 0) for number, each in self._partitions.items()}
            )
        self._assigned_anew = self._lost = False

    async def _let_go(self, *_: Any, **__: Any) -> None:
        """Before a rebalance, and at the end: finish the batch in hand, or drop it where judges are at it."""
        self._outages.revoked.set()
        async with self._lock:
            await self._release()
            self._assigned_anew = self._lost = False

    async def _lose(self) -> None:
        """While Kafka is away: let go of the partitions, to take them again and to do again what was not settled."""
        await self._release()
        self._assigned_anew = self._lost = True

    async def _release(self) -> None:
        for each in self._continuity.values():
            each.end()
        partitions, self._partitions = self._partitions, {}
        await release_all(each.owned for each in partitions.values())

    async def _take_over(self, *_: Any, **__: Any) -> None:
        """After a rebalance: the partitions of the assignment are ours."""
        self._outages.revoked.clear()
        self._assigned_anew = True
