"""Assemble → score → group → sink in one process, without a broker: the operators that run live, record by record.

What the workers' shells add is the transaction; here :class:`Settled` takes what they would write, and checks it. State
is kept as bytes, and both workers start again from it whenever they are told to.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from headrace.schemas.bounds import is_time
from headrace.schemas.events import ClockTicked
from headrace.schemas.finite import refuse_not_finite
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, FEEDBACK, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import decode
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.clickhouse.batches import convert
from headrace.streams.faust_shell.owned_partition import STATE_BYTES
from headrace.streams.grouping import group_worker
from headrace.streams.grouping.group_policy import GroupBy, GroupPolicies, GroupPolicy
from headrace.streams.grouping.groups import Changes, GroupLimits, Groups
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.context1 import SEARCH
from headrace.streams.rewards.outcome import OUTCOME, outcome
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.rewards.tab import TAB
from headrace.streams.scoring import score_worker
from headrace.streams.scoring.decider import Decider, Hand
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.typed_record import typed
from tests.streams.builders import event
from tests.streams.replayed_rewards import VOTES

RECORD_BYTES = 1024
"""What a record may take beside key, value and header contents in Kafka's format."""
FOLD = FoldLimits(idle_timeout_ms=10_000, max_open=500, max_open_bytes=32 * 1024 * 1024, remember=2_000)
GROUPS = GroupLimits(timeout_ms=60_000, max_open=2_000, max_remembered=5_000)
JOIN = JoinLimits(max_open=200, max_remembered=2_000)
REWARDS_OF = Rewards(
    {"voted": VOTES, "search": SEARCH, "shop": TAB, "free": RewardSpec("free", 1, (outcome,))}, OUTCOME
)
POLICIES = GroupPolicies({"free@1": GroupPolicy(by=GroupBy.COHORT, size=2), "votes@1": GroupPolicy(size=3)})


class Broken(AssertionError):
    """An invariant does not hold; the message says which, and for what."""


class Settled:
    """An owned partition that keeps what is written: state by key, and the records for the next stage."""

    def __init__(self, state: Mapping[bytes, bytes] | None = None) -> None:
        self.kept: dict[bytes, bytes] = dict(state or {})
        self.state = {key: StoredRecord("state", 0, 0, 0, key, value, ()) for key, value in self.kept.items()}
        self.offsets: dict[str, int] = {}
        self.written: list[Outgoing] = []

    async def settle(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """As the real one's, into memory."""
        for key, value in state.items():
            self.kept.pop(key, None)
            if value is not None:
                if len(key) + len(value) + RECORD_BYTES > STATE_BYTES:
                    raise Broken(f"state of {len(value):,} bytes under {key[:80]!r}")
                refuse_not_finite(value)
                self.kept[key] = value
        self.offsets |= offsets
        self.written += outgoing


class _FromMemory(Decider):
    """Reads trajectories back from where the pipeline keeps them."""

    def __init__(self, kept: Mapping[int, StoredRecord]) -> None:
        super().__init__("", REWARDS_OF, batch=500, judging=None, judge_wait_s=1.0)
        self._kept = kept

    async def _read_back(self, places: Collection[Any]) -> Hand:
        return {place: typed(self._kept[place[1]], Trajectory)[1] for place in places if place[1] in self._kept}


class Pipeline:
    """One partition of every topic."""

    def __init__(self) -> None:
        self.assembly = PartitionAssembly.resume(FOLD, None, [], position=0, output_end=0)
        self.counts: Counter[str] = Counter()
        """Records written by topic, dead letters by error, fates by reason."""
        self._fate_of: Counter[int] = Counter()
        self._with_fate: set[bytes | None] = set()  # ids of trajectories that have their fate
        self._kept: dict[int, StoredRecord] = {}
        self._offsets: Counter[str] = Counter()
        self._decider = _FromMemory(self._kept)
        self._newest_ms = 0
        self._score_state, self._group_state = Settled(), Settled()
        self._start()

    def restart(self) -> None:
        """Score and group end, and start from what they stored."""
        self._score_state, self._group_state = Settled(self._score_state.kept), Settled(self._group_state.kept)
        self._start()

    def _start(self) -> None:
        topics = (TRAJECTORIES, FEEDBACK)
        self._score = score_worker._Partition(self._score_state, JOIN, topics)  # type: ignore[arg-type]
        entries, aside = group_worker.read_entries(self._group_state.state)
        if aside or self._score.set_aside:
            raise Broken(f"state that cannot be read back: {[*aside, *self._score.set_aside][:3]}")
        groups = Groups(GROUPS, entries, policies=POLICIES, sources=1)
        self._group = group_worker._Partition(self._group_state, groups)  # type: ignore[arg-type]

    async def send(self, records: Iterable[StoredRecord]) -> float:
        """Everything that ``records`` bring about; returns how much there was to do, in bytes and their like."""
        held, work = self.assembly.fold.held_bytes, 0.0
        everything: list[StoredRecord] = []
        events, said = [], []
        for record in records:
            placed = self._placed(record)
            everything.append(placed)
            (events if placed.topic == EVENTS.name else said).append(placed)
        for _ in self.assembly.take_all([arrival_of(each) for each in events]):
            pass
        made = self._next(self.assembly.pending)
        self.assembly.sent([each.offset for each in made if each.topic == TRAJECTORIES.name])
        scored = await self._scored([*(each for each in made if each.topic == TRAJECTORIES.name), *said])
        grouped = await self._grouped([each for each in scored if each.topic == REWARDS.name])
        everything += [*made, *scored, *grouped]
        convert(everything)
        for each in everything:
            work += 2048 + len(each.value or b"") + sum(len(name) + len(text or b"") for name, text in each.headers)
        return work + max(0, held - self.assembly.fold.held_bytes)

    async def finish(self) -> None:
        """Log time goes on until nothing is open, and every trajectory must have its fate.

        One whose id comes again once the assembler has forgotten it is made a second time. Whoever still remembers the
        id takes that for a repetition, and the id has had its fate.
        """
        now_ms = max(self._newest_ms, self.assembly.fold.log_ms) + 10**9
        times = FOLD.tick_times(self.assembly.fold.log_ms, now_ms)
        await self.send([event("clock", 0, ClockTicked(unix_ms=time_ms), time_ms=time_ms) for time_ms in times])
        intake = score_worker._Intake()
        self._score.join.pass_time(now_ms * 2, intake.changes)
        scored = await self._decided(intake, {})
        await self._grouped([each for each in scored if each.topic == REWARDS.name])
        changes = Changes()
        self._group.groups.expire_due(now_ms * 4, changes)
        await self._group.settle(changes, [], {})
        self._next(self._group_state.written)
        without = {offset: each.key for offset, each in self._kept.items() if not self._fate_of[offset]}
        self.counts["repeated"] = sum(key in self._with_fate for key in without.values())
        if wrong := {offset: key for offset, key in without.items() if key not in self._with_fate}:
            raise Broken(f"trajectories without a fate, by offset: {dict(list(wrong.items())[:20])}")

    async def _scored(self, records: list[StoredRecord]) -> list[StoredRecord]:
        intake, hand = score_worker._Intake(), Hand()
        for record in records:
            self._newest_ms = max(self._newest_ms, record.timestamp if is_time(record.timestamp) else 0)
            self._score.take(record, REWARDS_OF, intake, hand)
        self._score.join.pass_time(self._newest_ms, intake.changes, at_most=500)
        return await self._decided(intake, hand)

    async def _decided(self, intake: score_worker._Intake, hand: Hand) -> list[StoredRecord]:
        never = SimpleNamespace(wait=None)
        await self._decider.decide({0: intake.changes}, {0: self._score.join}, hand, never)  # type: ignore[arg-type]
        await self._score.settle(intake)
        return self._next(self._score_state.written)

    async def _grouped(self, records: list[StoredRecord]) -> list[StoredRecord]:
        if records:
            worker = SimpleNamespace(_tally=lambda changes: None)
            await group_worker.GroupWorker._fold_partition(worker, self._group, records)  # type: ignore[arg-type]
        return self._next(self._group_state.written)

    def _placed(self, record: StoredRecord) -> StoredRecord:
        offset = self._offsets[record.topic]
        self._offsets[record.topic] += 1
        return StoredRecord(
            record.topic, 0, offset, record.timestamp, record.key, record.value, record.headers
        )  # fmt: skip

    def _next(self, outgoing: list[Outgoing]) -> list[StoredRecord]:
        """``outgoing`` as it stands in its topics, looked at; the list is emptied."""
        stored = []
        for topic, message, timestamp_ms in outgoing:
            record = self._placed(
                StoredRecord(topic.name, 0, 0, timestamp_ms, message.key, message.value, message.headers)
            )
            stored.append(record)
            self._look_at(topic, record)
        outgoing.clear()
        return stored

    def _look_at(self, topic: Topic, record: StoredRecord) -> None:
        value = record.value or b""
        size = len(value) + len(record.key or b"") + sum(len(n) + len(v or b"") for n, v in record.headers)
        if size + RECORD_BYTES > topic.max_bytes:
            raise Broken(f"a record of {size:,} bytes for {topic.name}, which takes {topic.max_bytes:,}")
        refuse_not_finite(value)
        _, payload = decode(record.headers, value)
        self.counts[topic.name] += 1
        match payload:
            case Trajectory():
                self._kept[record.offset] = record
                json.loads(value, parse_constant=_no_constant)
            case DeadLetter():
                self.counts[f"dead {payload.topic} {payload.error}"] += 1
                if payload.topic == TRAJECTORIES.name:
                    self._fate(payload.offset)
                elif payload.topic == REWARDS.name:
                    raise Broken(f"group could not read what score wrote: {payload.message}")
            case Rejection():
                self.counts[f"rejected {payload.reason}"] += 1
                self._fate(payload.trajectory.offset)
            case TrainingGroup():
                for member in payload.members:
                    self.counts["trained"] += 1
                    self._fate(member.trajectory.offset)
            case Reward():
                if payload.unscored:
                    self.counts[f"unscored {payload.unscored}"] += 1

    def _fate(self, offset: int) -> None:
        self._fate_of[offset] += 1
        kept = self._kept.pop(offset, None)
        if kept is not None:
            self._with_fate.add(kept.key)
        if self._fate_of[offset] > 1:
            raise Broken(f"the trajectory at {offset} has a second fate")


def _no_constant(text: str) -> None:
    raise Broken(f"{text} in a record")


def clock() -> float:
    """Processor time of this thread, in seconds: what others do on the machine does not count."""
    return time.thread_time()
