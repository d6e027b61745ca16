"""What a replay does, without I/O: records of the range in, records of the side topics out, by the rules that run live.

    read:   a record of one partition  →  what takes its place in log time (events fold into trajectories here)
    take:   the next in log time       →  trajectory, reward, decisions of groups; each with its partition

A record is read when its partition is read and taken when its time has come: what comes out depends on the log alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from aiokafka.partitioner import DefaultPartitioner

from headrace.schemas.envelope import from_headers
from headrace.schemas.records.reward import Reward
from headrace.schemas.side_topics import ReplayStage, Span
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, FEEDBACK, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.grouping.group_policy import DEFAULT_POLICIES, GroupPolicies
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.letters.dead_letters import dead_letter_message, time_of
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.replay.groups import Regrouping
from headrace.streams.replay.rewards import Made, Rescoring, Verdicts
from headrace.streams.replay.trajectories import LeftOut, Rederivation
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.scoring.score import REWARDS_OF_AGENTS
from headrace.streams.typed_record import typed

Item: TypeAlias = LogRecord | Outgoing | LeftOut
"""What has a place in log time: a record that was read, or what events were folded to."""

SOURCE_OF: Mapping[ReplayStage, Topic] = {
    ReplayStage.EVENTS: EVENTS,
    ReplayStage.TRAJECTORIES: TRAJECTORIES,
    ReplayStage.REWARDS: REWARDS,
}
"""What each stage reads."""

_PARTITIONER = DefaultPartitioner()


@dataclass(frozen=True, slots=True)
class Rules:
    """What a replay does otherwise than live processing did, if anything."""

    rewards: Rewards = REWARDS_OF_AGENTS
    """Which agent is scored by which spec."""
    fold: FoldLimits = field(default_factory=FoldLimits)
    """Limits of the assembler."""
    groups: GroupLimits = field(default_factory=GroupLimits)
    """Limits of grouping."""
    policies: GroupPolicies = DEFAULT_POLICIES
    """How rewards become groups."""
    join: JoinLimits = field(default_factory=JoinLimits)
    """Limits of the feedback join."""


class Placed(NamedTuple):
    """A record and the partition that it goes to."""

    outgoing: Outgoing
    partition: int


class ReplayPipeline:
    """One replay. A function of the spans' records, whatever portions they come in."""

    def __init__(
        self,
        stage: ReplayStage,
        rules: Rules,
        spans: Mapping[int, Span],
        partitions: Mapping[Topic, int],
        verdicts: Verdicts | None = None,
    ) -> None:
        """``spans``: what is read of the stage's topic, by partition; ``partitions``: how many each topic that is
        written has; ``verdicts``: what judges said.
        """
        self.begin_ms: int | None = None
        """Earliest log time at which a partition of the range begins, Unix milliseconds."""
        self.end_ms = 0
        """Latest log time of the range."""
        self._stage = stage
        self._spans = spans
        self._begun: set[int] = set()
        self._numbers = {topic: list(range(count)) for topic, count in partitions.items()}
        self._next_offset = dict.fromkeys(spans, 0)
        self._rederivations = {
            number: Rederivation(rules.fold, begins_log=span.begins_log)
            for number, span in spans.items()
            if stage is ReplayStage.EVENTS
        }
        self._rescoring = Rescoring(rules.rewards, rules.join, verdicts or {})
        self._regrouping = Regrouping(
            rules.groups, rules.policies, partitions=partitions.get(REWARDS, max(spans, default=0) + 1)
        )
        self._read: Counter[str] = Counter()
        self._unreadable = 0

    @property
    def counts(self) -> dict[str, int]:
        """How many of what were read, made, decided, and left out."""
        total = Counter({f"read_{name}": count for name, count in self._read.items()})
        total["unreadable"] = self._unreadable
        parts = [each.counts for each in self._rederivations.values()]
        for counts in (*parts, self._rescoring.counts, self._regrouping.counts):
            total.update(counts)
        return {name: count for name, count in sorted(total.items()) if count}

    def read(self, record: LogRecord) -> list[tuple[int, Item]]:
        """The next record of its partition: what takes part in log time because of it, with timestamps."""
        self._read[record.topic] += 1
        self.end_ms = max(self.end_ms, record.timestamp)
        if record.topic == FEEDBACK.name:
            return [(record.timestamp, record)]
        if record.partition not in self._begun:
            self._begin(record)
        if self._stage is not ReplayStage.EVENTS:
            return [(record.timestamp, record)]
        made = self._rederivations[record.partition].take(record)
        return [(each.closed_ms if isinstance(each, LeftOut) else each.timestamp_ms, each) for each in made]

    def take(self, time_ms: int, partition: int, item: Item) -> list[Placed]:
        """What ``item``, next in log time and made of a record of ``partition``, brings about."""
        return [*self._rewarded(self._rescoring.pass_time(time_ms)), *self._take(partition, item)]

    def finish(self) -> list[Placed]:
        """Nothing more comes: log time goes on to the end of the range."""
        for rederivation in self._rederivations.values():
            rederivation.finish()
        rewarded = self._rewarded(self._rescoring.finish(self.end_ms))
        return [*rewarded, *map(self._placed, self._regrouping.finish(self.end_ms))]

    def _take(self, partition: int, item: Item) -> list[Placed]:
        match item:
            case LeftOut():
                self._regrouping.cut(item.closed_ms)
                return []
            case Outgoing() if item.topic is not TRAJECTORIES:
                return [self._placed(item)]
            case Outgoing():
                offset = self._next_offset[partition]
                self._next_offset[partition] += 1
                message = item.message
                stored = StoredRecord(
                    TRAJECTORIES.name, partition, offset, item.timestamp_ms, message.key, message.value, message.headers
                )
                return [Placed(item, partition), *self._rewarded(self._rescoring.take(stored))]
            case _ if item.topic == REWARDS.name:
                return self._regrouped(item)
            case _:
                return self._rewarded(self._rescoring.take(item))

    def _begin(self, record: LogRecord) -> None:
        self._begun.add(record.partition)
        time_ms = max(0, record.timestamp)
        self.begin_ms = time_ms if self.begin_ms is None else min(time_ms, self.begin_ms)
        if not self._spans[record.partition].begins_log:
            self._regrouping.cut(time_ms)

    def _rewarded(self, made: Iterable[Made]) -> list[Placed]:
        """Rewards, each followed by what it decides; and dead letters."""
        out = []
        for reward, outgoing in made:
            out.append(self._placed(outgoing))
            if reward is not None:
                trace = from_headers(outgoing.message.headers).traceparent
                out += self._grouped(reward, out[-1].partition, outgoing.timestamp_ms, trace)
        return out

    def _regrouped(self, record: LogRecord) -> list[Placed]:
        try:
            envelope, reward = typed(record, Reward)
        except UnreadableRecord as error:
            self._unreadable += 1
            return [self._placed(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), time_of(record)))]
        return self._grouped(reward, record.partition, record.timestamp, envelope.traceparent)

    def _grouped(self, reward: Reward, partition: int, time_ms: int, trace: str | None) -> list[Placed]:
        return list(map(self._placed, self._regrouping.take(reward, partition, time_ms, trace)))

    def _placed(self, outgoing: Outgoing) -> Placed:
        """Where Kafka's clients would put the record."""
        return Placed(outgoing, int(_PARTITIONER(outgoing.message.key, self._numbers[outgoing.topic], None)))
