"""The Faust shell of score: trajectories and their feedback in, rewards out.

A trajectory whose spec needs neither feedback nor judges is scored as it comes and leaves no state. The others go
through a :class:`Join` a partition, kept in a table. Order of a batch: fold → ask judges, score → table (changelog
acknowledged) → rewards (acknowledged) → table without the rewards → acknowledge the input. A reward is durable before
anybody sees it: after a crash it is announced again as it was, though a judge that is asked again might say otherwise.
Nothing fences a worker that was suspended while another took its partitions: when it wakes up, it may announce a
judged reward in its own form. Both have one id, and group takes the first.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any, TypeAlias

import faust
from faust.types import TP

from headrace.schemas.records import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, FEEDBACK, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.continuity import Continuity
from headrace.streams.dead_letters import dead_letter_message
from headrace.streams.due_rewards import Case, all_questions, conclude, to_ask
from headrace.streams.durable_table import DurableTable
from headrace.streams.faust_app import all_done, batches, current, raw_topic, send_all, stored_record
from headrace.streams.feedback_clock import FeedbackClock
from headrace.streams.feedback_join import TRAJECTORY_GONE, Attempt, Changes, Due, Join, JoinLimits
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.read_back import read_back
from headrace.streams.rewards.judge_client import Judging
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.score import reward_message
from headrace.streams.score_intake import hears_feedback, take_feedback, take_trajectory
from headrace.streams.typed_record import typed

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""How often it is looked whether windows have ended."""

Hand: TypeAlias = dict[tuple[int, int], Trajectory]
"""Trajectories that need not be read back, by partition and offset."""


class _PartitionsRevoked(Exception):
    """The partitions go to somebody else: the batch in hand is his."""


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
        """Put agents, table and timer on ``app``.

        ``partitions`` are those of ``trajectories`` and of ``feedback``; ``batch`` records are read, and as many
        trajectories judged or read back, at a time. Judges have ``judge_wait_s`` seconds a batch.
        """
        self.app = app
        self.bootstrap = bootstrap
        self.rewards = rewards
        self.limits = limits
        self.batch = batch
        self.judging = judging
        self.judge_wait_s = judge_wait_s
        self.table = DurableTable(app, "attempts", partitions=partitions)
        self._reads: tuple[Topic, ...] = (TRAJECTORIES, FEEDBACK) if hears_feedback(rewards) else (TRAJECTORIES,)
        self._continuity = {
            topic.name: Continuity(app, bootstrap, topic, transactional=topic is TRAJECTORIES) for topic in self._reads
        }
        self._lock = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        self._owning = False
        self._revoked = asyncio.Event()
        self._joins: dict[int, Join] = {}
        self._clocks: dict[int, FeedbackClock] = {}
        self._seen_at: dict[tuple[str, int], float] = {}
        self._reported: Counter[str] = Counter()
        app.agent(raw_topic(app, TRAJECTORIES), name="score")(self._score)
        if FEEDBACK in self._reads:
            app.agent(raw_topic(app, FEEDBACK), name="hear")(self._hear)
        app.timer(interval=TICK_S)(self._tick)
        # Before it asks anybody to let go, Faust would wait for the batch in hand to be acknowledged: for judges too.
        app.conf.stream_wait_empty = False
        app.on_partitions_revoked.connect(self._let_go)
        app.on_before_shutdown.connect(self._let_go)
        app.on_rebalance_complete.connect(self._take_over)

    async def _score(self, stream: Any) -> None:
        await self._run(stream, TRAJECTORIES)

    async def _hear(self, stream: Any) -> None:
        await self._run(stream, FEEDBACK)

    async def _run(self, stream: Any, topic: Topic) -> None:
        async for events in batches(stream, self.batch):
            # Seen by the tick that may have the lock: this topic is not idle, whatever its last record says.
            self._waiting[topic.name] += 1
            async with self._lock:
                self._waiting[topic.name] -= 1
                await self._restore()
                ours = [event for event in current(self.app, events) if event.message.partition in self._joins]
                try:
                    await self._fold(topic, [stored_record(event) for event in ours])
                except _PartitionsRevoked:
                    continue
                for event in ours:
                    event.ack()

    async def _fold(self, topic: Topic, records: Sequence[LogRecord]) -> None:
        changes: dict[int, Changes] = defaultdict(Changes)
        hand: Hand = {}
        outgoing: list[Outgoing] = []
        for record in records:
            await self._continuity[topic.name].check(record)
            self._seen_at[topic.name, record.partition] = monotonic()
            self._clocks[record.partition].see(topic.name, record.timestamp)
            try:
                outgoing += self._take(record, changes[record.partition], hand)
            except UnreadableRecord as error:
                logger.warning("%s[%d]@%d cannot be scored: %s", record.topic, record.partition, record.offset, error)
                outgoing.append(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), record.timestamp))
        await self._settle(changes, hand, outgoing)

    def _take(self, record: LogRecord, changes: Changes, hand: Hand) -> list[Outgoing]:
        """Score a trajectory, or give it or its feedback to the join of its partition."""
        join = self._joins[record.partition]
        if record.topic == FEEDBACK.name:
            join.add_feedback(*take_feedback(record), changes)
            return []
        taken = take_trajectory(record, self.rewards)
        if isinstance(taken, Outgoing):
            return [taken]
        arrival, trajectory = taken
        hand[record.partition, record.offset] = trajectory
        join.add_trajectory(arrival, changes)
        return []

    async def _tick(self) -> None:
        """Close the windows that have ended, and forget what need not be remembered."""
        async with self._lock:
            await self._restore()
            try:
                for partition, now_ms in (await self._passed()).items():
                    while not self._revoked.is_set() and self._joins[partition].is_due(now_ms):
                        changes: dict[int, Changes] = defaultdict(Changes)
                        self._joins[partition].pass_time(now_ms, changes[partition], at_most=self.batch)
                        await self._settle(changes, {}, [])
            except _PartitionsRevoked:
                return
        self._report()

    async def _passed(self) -> dict[int, int]:
        """Log time of the partitions of which anything is remembered."""
        known = [partition for partition, join in self._joins.items() if len(join)]
        if not known:
            return {}
        now = monotonic()
        tps = [TP(topic.name, partition) for topic in self._reads for partition in known]
        ends = await self.app.consumer.highwaters(*tps)
        idle_s: dict[int, dict[str, float]] = {partition: {} for partition in known}
        for tp in tps:
            if not self._waiting[tp.topic] and await self.app.consumer.position(tp) == ends[tp]:
                idle_s[tp.partition][tp.topic] = now - self._seen_at[tp]
        return {partition: self._clocks[partition].passed_ms(idle_s[partition]) for partition in known}

    async def _settle(self, changes: Mapping[int, Changes], hand: Hand, outgoing: list[Outgoing]) -> None:
        """Make rewards of what is due, make ``changes`` durable, then announce what was decided."""
        dues = [(partition, due) for partition, change in changes.items() for due in change.due]
        for start in range(0, len(dues), self.batch):
            await self._decide(dues[start : start + self.batch], hand, changes)
        stored = [
            (partition, name, kept) for partition, change in changes.items() for name, kept in change.stored.items()
        ]
        await all_done([await self._put(*entry) for entry in stored])
        await self._announce([(partition, name, kept) for partition, name, kept in stored if kept], outgoing)

    async def _decide(self, dues: Sequence[tuple[int, Due]], hand: Hand, changes: Mapping[int, Changes]) -> None:
        found = hand | await self._read_back({(partition, due.offset) for partition, due in dues} - hand.keys())
        for partition, due in dues:
            if (partition, due.offset) not in found:
                self._joins[partition].counts[TRAJECTORY_GONE] += 1
        cases = [
            Case(partition, due, found[partition, due.offset])
            for partition, due in dues
            if (partition, due.offset) in found
        ]
        asked = to_ask(cases, self.rewards, self._joins)
        answers = iter(await self._ask(all_questions(asked)))
        conclude(cases, asked, answers, self.rewards, self._joins, changes)

    async def _ask(self, questions: Sequence[Question]) -> list[Answer]:
        """What judges say; raises :class:`_PartitionsRevoked` rather than hold up a rebalance."""
        if not questions:
            return []
        if self.judging is None:
            raise RuntimeError("a reward has judges and there is no endpoint to ask: set workers.judge_url")
        asking = asyncio.ensure_future(self.judging.ask(questions, within_s=self.judge_wait_s))
        revoked = asyncio.ensure_future(self._revoked.wait())
        try:
            await asyncio.wait({asking, revoked}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise _PartitionsRevoked
            return asking.result()
        finally:
            for task in (asking, revoked):
                task.cancel()
            await asyncio.gather(asking, revoked, return_exceptions=True)

    async def _read_back(self, places: Collection[tuple[int, int]]) -> Hand:
        if not places:
            return {}
        wanted: dict[int, list[int]] = defaultdict(list)
        for partition, offset in places:
            wanted[partition].append(offset)
        records = await read_back(self.bootstrap, TRAJECTORIES, wanted)
        return {
            (partition, record.offset): typed(record, Trajectory)[1]
            for partition, found in records.items()
            for record in found
        }

    async def _announce(self, kept: Sequence[tuple[int, str, Attempt]], outgoing: list[Outgoing]) -> None:
        """Send ``outgoing`` and the rewards of ``kept``; then keep those attempts without their rewards."""
        made = [(partition, name, attempt) for partition, name, attempt in kept if attempt.decided]
        outgoing += [
            Outgoing(REWARDS, reward_message(decided.reward, origin=attempt.origin), decided.time_ms)
            for _, _, attempt in made
            for decided in attempt.decided
        ]
        await send_all(self.app, outgoing)
        await all_done(
            [await self._put(partition, name, self._joins[partition].announced(name)) for partition, name, _ in made]
        )

    async def _put(self, partition: int, name: str, attempt: Attempt | None) -> Any:
        return await self.table.put(partition, name, attempt.model_dump_json().encode() if attempt else None)

    async def _restore(self) -> None:
        """After a rebalance: joins from the recovered table, and rewards that were decided but perhaps not sent."""
        if not self._owning or self._joins:
            return
        assigned = {tp.partition for tp in self.app.consumer.assignment() if tp.topic == TRAJECTORIES.name}
        found: dict[int, dict[str, Attempt]] = {partition: {} for partition in assigned}
        for partition, name, value in self.table.entries(assigned):
            found[partition][name] = Attempt.model_validate_json(value)
        self._joins = {partition: Join(self.limits, stored) for partition, stored in found.items()}
        names = tuple(topic.name for topic in self._reads)
        self._clocks = {
            partition: FeedbackClock(names, known_ms=join.newest_ms) for partition, join in self._joins.items()
        }
        self._seen_at = dict.fromkeys(((name, partition) for name in names for partition in assigned), monotonic())
        entries = [(partition, name, each) for partition, stored in found.items() for name, each in stored.items()]
        await self._announce(entries, [])
        logger.info("scoring partitions %s: %d trajectories remembered", sorted(assigned), len(entries))

    def _report(self) -> None:
        """What reached a limit since it was last reported, in the log."""
        counts = sum((join.counts for join in self._joins.values()), Counter[str]())
        news = counts - self._reported
        if news:
            logger.warning("limits of the feedback join: %s", ", ".join(f"{name} {n}" for name, n in news.items()))
        self._reported = counts

    async def _let_go(self, *_: Any, **__: Any) -> None:
        """Before a rebalance or the end: finish the batch in hand, or drop it where judges are at it; commit."""
        self._revoked.set()
        async with self._lock:
            self._owning = False
            self._joins = {}
        await self.app.consumer.commit()

    async def _take_over(self, *_: Any, **__: Any) -> None:
        """After a rebalance: the table is recovered for the partitions that are ours now."""
        self._revoked.clear()
        self._owning = True
