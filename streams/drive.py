"""The topology in memory, without a broker: events in, every topic's records out. For tests, and for trying rewards.

    def brief(trajectory: Trajectory, reference: Reference) -> Reward: ...

    records = drive(with_run(TOPOLOGY, "score", brief), events)
    records["rewards"][0].total

    drive(TOPOLOGY, [*events, *feedback], rewards=parse_rewards({"shop": "shop.rewards:CHECKOUT"}), until_ms=…)

Everything runs as it does on Kafka, on one partition: offsets are assigned in order, log time is the events' time, and
each function sees its input as it was written, so what does not survive the wire does not survive here either.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.schemas.envelope import Envelope, EnvelopeError, from_headers
from headrace.schemas.events import ClockTicked, FeedbackGiven
from headrace.schemas.model import Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, FEEDBACK, REWARDS, TOPICS, TRAJECTORIES
from headrace.schemas.wire import Message, UnreadableRecord, decode, encode
from headrace.streams.assembly.assemble import assemble, settle
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.grouping.group import group, output_message
from headrace.streams.grouping.groups import Changes, GroupLimits, Groups
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.scoring.in_memory import Scoring
from headrace.streams.scoring.score import REWARDS_OF_AGENTS, reward_message, score
from headrace.streams.topology import Processor, Topology


class Operator(Protocol):
    """A processor at work."""

    def take(self, record: StoredRecord) -> list[Outgoing]:
        """What the next record of a topic that it reads makes it write."""

    def pass_time(self, until_ms: int) -> list[Outgoing]:
        """What it writes because log time is ``until_ms``."""


def drive(
    topology: Topology,
    events: Iterable[Message | tuple[Envelope, Record]],
    *,
    until_ms: int | None = None,
    fold_limits: FoldLimits | None = None,
    group_limits: GroupLimits | None = None,
    rewards: Rewards = REWARDS_OF_AGENTS,
    judge: Callable[[Question], str] | None = None,
    join_limits: JoinLimits | None = None,
) -> dict[str, list[Record]]:
    """Run ``events`` through ``topology``; returns each topic's records in order, by topic name.

    Events are (envelope, fact) pairs, or messages where a test wants broken ones; feedback may stand among them.
    ``until_ms`` lets log time go on after the last event, so that what is still incomplete times out. ``rewards`` say
    which agent has which reward; ``judge`` answers what its judges are asked, and without one such components are
    ``not_judged``. The function of ``score`` may be replaced (:func:`with_run`), and then sees no feedback;
    ``assemble`` and ``group`` keep state and run as they are: ``ValueError`` otherwise.
    """
    scoring = Scoring(rewards, judge, join_limits or JoinLimits())
    operators = [
        (processor, _operator(processor, fold_limits or FoldLimits(), scoring, group_limits or GroupLimits()))
        for processor in topology
    ]
    written: dict[str, list[Record]] = {topic.name: [] for topic in TOPICS}
    offsets = dict.fromkeys(written, 0)

    def run(outgoing: Iterable[Outgoing]) -> None:
        waiting = deque(outgoing)
        while waiting:
            topic, message, timestamp_ms = waiting.popleft()
            place = offsets[topic.name]
            offsets[topic.name] += 1
            stored = StoredRecord(topic.name, 0, place, timestamp_ms, message.key, message.value, message.headers)
            written[topic.name] += _readable(stored)
            for processor, operator in operators:
                if topic in processor.reads:
                    # Depth first: what a record causes is in its topic before the next record is looked at.
                    waiting.extendleft(reversed(operator.take(stored)))

    log_ms = 0
    for event in events:
        message, envelope = _arriving(event)
        log_ms = envelope.time_ms if envelope else log_ms
        about = FEEDBACK if envelope and envelope.type == FeedbackGiven.TYPE else EVENTS
        run([Outgoing(about, message, log_ms)])
    if until_ms is not None:
        for _, operator in operators:
            run(operator.pass_time(until_ms))
    return written


class _Assemble:
    def __init__(self, limits: FoldLimits) -> None:
        self._limits = limits
        self._fold = PartitionFold(limits)

    def take(self, record: StoredRecord) -> list[Outgoing]:
        return [outgoing for outcome in self._fold.arrive(record) for outgoing in settle(outcome)]

    def pass_time(self, until_ms: int) -> list[Outgoing]:
        times = self._limits.tick_times(self._fold.log_ms, until_ms) if self._fold.open_count else [until_ms]
        return list(map(_tick, times))


def _tick(time_ms: int) -> Outgoing:
    fact = ClockTicked(unix_ms=time_ms)
    envelope = Envelope(id=f"tick-{time_ms}", type=fact.TYPE, source=SOURCE, time_ms=time_ms, subject="clock")
    return Outgoing(EVENTS, encode(fact, key="clock", envelope=envelope), time_ms)


class _Replaced:
    """A function in the place of score's."""

    def __init__(self, processor: Processor) -> None:
        self._run = processor.run

    def take(self, record: StoredRecord) -> list[Outgoing]:
        if record.topic != TRAJECTORIES.name:
            return []
        _, trajectory = decode(record.headers, record.value)
        reward = self._run(trajectory, Reference(partition=record.partition, offset=record.offset))
        if not isinstance(trajectory, Trajectory) or not isinstance(reward, Reward):
            raise TypeError(f"{self._run} must make a Reward of a Trajectory, not {type(reward).__name__}")
        return [Outgoing(REWARDS, reward_message(reward), record.timestamp)]

    def pass_time(self, until_ms: int) -> list[Outgoing]:
        return []


class _Group:
    def __init__(self, limits: GroupLimits) -> None:
        self._groups = Groups(limits)

    def take(self, record: StoredRecord) -> list[Outgoing]:
        _, reward = decode(record.headers, record.value)
        assert isinstance(reward, Reward)
        changes = Changes()
        self._groups.add(reward, record.timestamp, changes)
        return self._outgoing(changes)

    def pass_time(self, until_ms: int) -> list[Outgoing]:
        changes = Changes()
        self._groups.expire_due(until_ms, changes)
        return self._outgoing(changes)

    @staticmethod
    def _outgoing(changes: Changes) -> list[Outgoing]:
        return [
            Outgoing(*output_message(each.record, each.time_ms, origin=each.origin), each.time_ms)
            for each in changes.outputs
        ]


def _operator(processor: Processor, fold_limits: FoldLimits, scoring: Scoring, group_limits: GroupLimits) -> Operator:
    if processor.name == "score":
        return scoring if processor.run is score else _Replaced(processor)
    if processor.run is assemble:
        return _Assemble(fold_limits)
    if processor.run is group:
        return _Group(group_limits)
    raise ValueError(f"processor {processor.name!r} runs {processor.run}: only score's function can be replaced")


def _arriving(event: Message | tuple[Envelope, Record]) -> tuple[Message, Envelope | None]:
    """The event as a message, and its envelope; ``None`` where its headers are none."""
    if isinstance(event, Message):
        try:
            return event, from_headers(event.headers)
        except EnvelopeError:
            return event, None
    envelope, fact = event
    return encode(fact, key=envelope.subject, envelope=envelope), envelope


def _readable(record: StoredRecord) -> list[Record]:
    """The payload; nothing for a broken event, which the topology reports as a dead letter."""
    try:
        return [decode(record.headers, record.value)[1]]
    except UnreadableRecord:
        return []
