"""Assemble → score → group → sink in one process, without a broker: the operators that run live, record by record.

The workers' I/O layer adds the transaction; here :class:`CheckedPartition` takes the written records instead and checks
them. State is kept as bytes, and both processors restart from it on request.
"""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from headrace.schemas.bounds import is_time
from headrace.schemas.events import ClockTicked
from headrace.schemas.finite import refuse_not_finite
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import decode
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.clickhouse.batches import convert
from headrace.streams.grouping.group_policy import GroupBy, GroupPolicies, GroupPolicy
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.processors.group import restore_group
from headrace.streams.processors.score import restore_score
from headrace.streams.processors.score_hook import decide_due
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.context1 import SEARCH
from headrace.streams.rewards.outcome import OUTCOME, outcome
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.rewards.tab import TAB
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition
from headrace.streams.runtime.owned_partition import STATE_BYTES
from headrace.streams.runtime.processor import Outside, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.scoring.feedback_join import JoinLimits
from tests.streams.builders import event
from tests.streams.replayed_rewards import VOTES

RECORD_BYTES = 1024
"""Overhead of a record in Kafka's format, in addition to key, value and header contents."""
FOLD = FoldLimits(idle_timeout_ms=10_000, max_open=500, max_open_bytes=32 * 1024 * 1024, remember=2_000)
GROUPS = GroupLimits(timeout_ms=60_000, max_open=2_000, max_remembered=5_000)
JOIN = JoinLimits(max_open=200, max_remembered=2_000)
REWARDS_OF = Rewards(
    {"voted": VOTES, "search": SEARCH, "shop": TAB, "free": RewardSpec("free", 1, (outcome,))}, OUTCOME
)
POLICIES = GroupPolicies({"free@1": GroupPolicy(by=GroupBy.COHORT, size=2), "votes@1": GroupPolicy(size=3)})


RULES = Rules(REWARDS_OF, FOLD, GROUPS, POLICIES, JOIN)


class Broken(AssertionError):
    """An invariant does not hold; the message names it and the record."""


class CheckedPartition(MemoryPartition):
    """Checks every written entry of the state."""

    async def commit(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """Commit to memory, like the real partition."""
        for key, value in state.items():
            if value is not None:
                if len(key) + len(value) + RECORD_BYTES > STATE_BYTES:
                    raise Broken(f"state of {len(value):,} bytes under {key[:80]!r}")
                refuse_not_finite(value)
        await super().commit(offsets, state, outgoing)

    def start(self) -> Start:
        """Starting point of an operator, from the kept state."""
        return Start({key: StoredRecord("state", 0, 0, 0, key, value, ()) for key, value in self.state.items()})


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
        self._newest_ms = 0
        self._score_state, self._group_state = CheckedPartition(), CheckedPartition()
        self._start()

    def restart(self) -> None:
        """End score and group, and restart them from their stored state."""
        self._score_state = CheckedPartition(self._score_state.state)
        self._group_state = CheckedPartition(self._group_state.state)
        self._start()

    def _start(self) -> None:
        score, unread_score = restore_score(RULES, self._score_state.start())
        group, unread_group = restore_group(RULES, self._group_state.start())
        if aside := [*unread_score, *unread_group]:
            raise Broken(f"state that cannot be read back: {aside[:3]}")
        self._score = Runtime("/streams/score", decide_due(RULES, Outside(self._read_back)))
        self._score.assign(0, score, self._score_state)
        self._group = Runtime("/streams/group")
        self._group.assign(0, group, self._group_state)

    async def _read_back(self, topic: Topic, places: Collection[Place]) -> dict[Place, StoredRecord]:
        return {place: self._kept[place[1]] for place in places if place[1] in self._kept}

    async def send(self, records: Iterable[StoredRecord]) -> float:
        """Process ``records`` and everything that follows; returns the amount of work, in bytes and similar units."""
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
        """Advance stream time until nothing is open; then every trajectory must have its fate.

        If an ID comes again after the assembler has forgotten it, its trajectory is written a second time. A processor
        that still remembers the ID treats it as a repetition, and the ID already has its fate.
        """
        now_ms = max(self._newest_ms, self.assembly.fold.stream_ms) + 10**9
        times = FOLD.tick_times(self.assembly.fold.stream_ms, now_ms)
        await self.send([event("clock", 0, ClockTicked(unix_ms=time_ms), time_ms=time_ms) for time_ms in times])
        await self._score.advance({0: now_ms * 2})
        scored = self._next(self._score_state.written())
        await self._grouped([each for each in scored if each.topic == REWARDS.name])
        await self._group.advance({0: now_ms * 4})
        self._next(self._group_state.written())
        without = {offset: each.key for offset, each in self._kept.items() if not self._fate_of[offset]}
        self.counts["repeated"] = sum(key in self._with_fate for key in without.values())
        if wrong := {offset: key for offset, key in without.items() if key not in self._with_fate}:
            raise Broken(f"trajectories without a fate, by offset: {dict(list(wrong.items())[:20])}")

    async def _scored(self, records: list[StoredRecord]) -> list[StoredRecord]:
        for record in records:
            self._newest_ms = max(self._newest_ms, record.timestamp if is_time(record.timestamp) else 0)
        await self._score.process(records)
        await self._score.advance({0: self._newest_ms})
        return self._next(self._score_state.written())

    async def _grouped(self, records: list[StoredRecord]) -> list[StoredRecord]:
        await self._group.process(records)
        return self._next(self._group_state.written())

    def _placed(self, record: StoredRecord) -> StoredRecord:
        offset = self._offsets[record.topic]
        self._offsets[record.topic] += 1
        return StoredRecord(
            record.topic, 0, offset, record.timestamp, record.key, record.value, record.headers
        )  # fmt: skip

    def _next(self, outgoing: list[Outgoing]) -> list[StoredRecord]:
        """``outgoing`` as stored in its topics, checked; the list is emptied."""
        stored = []
        for topic, message, timestamp_ms in outgoing:
            record = self._placed(
                StoredRecord(topic.name, 0, 0, timestamp_ms, message.key, message.value, message.headers)
            )
            stored.append(record)
            self._look_at(topic, record)
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
    """Processor time of this thread, in seconds: other programs on the machine do not count."""
    return time.thread_time()
