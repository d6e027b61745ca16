"""Runs the topology in memory, without a broker: events in, every topic's records out. For tests and trying rewards.

    def brief(trajectory: Trajectory, reference: Reference) -> Reward: ...

    records = drive(with_run(TOPOLOGY, "score", brief), events)
    records["rewards"][0].total

    drive(TOPOLOGY, [*events, *feedback], rewards=parse_rewards({"shop": "shop.rewards:CHECKOUT"}), until_ms=…)

Operators and runtime are the same as on Kafka, on one partition. Offsets are assigned in order, stream time is the
events' time, and every record is encoded and decoded between processors, as on Kafka.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from headrace.schemas.envelope import Envelope, EnvelopeError, from_headers
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS, FEEDBACK, TOPICS, Topic
from headrace.schemas.wire import Message, UnreadableRecord, decode, encode
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.tick import tick
from headrace.streams.grouping.group_policy import DEFAULT_POLICIES, GroupPolicies
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.processors.assemble import AssembleOperator
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.judge_verdict import Answer
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Outside, Processor, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.scoring.score import REWARDS_OF_AGENTS
from headrace.streams.topology import Topology
from headrace.streams.watch.settings import WatchSettings


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
    policies: GroupPolicies = DEFAULT_POLICIES,
    watch: WatchSettings | None = None,
) -> dict[str, list[Record]]:
    """Run ``events`` through ``topology``; returns each topic's records in order, by topic name.

    Events are (envelope, fact) pairs, or messages for tests with broken events; they may include feedback. ``until_ms``
    advances stream time after the last event, so that incomplete trajectories and groups time out. ``rewards`` maps
    agents to reward specs, ``policies`` specs to how they are grouped. ``judge`` answers the questions of judges;
    without it judged components are ``not_judged``. ``watch`` has the settings of the monitors.
    """
    rules = Rules(
        rewards,
        fold_limits or FoldLimits(),
        group_limits or GroupLimits(),
        policies,
        join_limits or JoinLimits(),
        watch or WatchSettings(),
    )
    topics = (*TOPICS, *(topic for processor in topology for topic in processor.writes))
    written: dict[str, list[Record]] = {topic.name: [] for topic in topics}
    log = _Log(topics)
    nodes = [_Node(processor, rules, Outside(log.read_back, _asking(judge))) for processor in topology]

    def run(outgoing: Iterable[Outgoing]) -> None:
        waiting = deque(outgoing)
        while waiting:
            stored = log.append(waiting.popleft())
            written[stored.topic] += _readable(stored)
            for node in nodes:
                if stored.topic in node.reads:
                    # Depth first: all outputs of a record are written before the next record is processed.
                    waiting.extendleft(reversed(node.process(stored)))

    time_ms = 0
    for event in events:
        message, envelope = _arriving(event)
        time_ms = envelope.time_ms if envelope else time_ms
        about = FEEDBACK if envelope and envelope.type == FeedbackGiven.TYPE else EVENTS
        run([Outgoing(about, message, time_ms)])
    if until_ms is not None:
        for node in nodes:
            run(map(tick, node.tick_times(until_ms)))
            run(node.advance(until_ms))
    return written


class _Log:
    """The topics, one partition each."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._records: dict[str, list[StoredRecord]] = {topic.name: [] for topic in topics}

    def append(self, outgoing: Outgoing) -> StoredRecord:
        topic, message, timestamp_ms = outgoing
        records = self._records[topic.name]
        record = StoredRecord(topic.name, 0, len(records), timestamp_ms, message.key, message.value, message.headers)
        records.append(record)
        return record

    async def read_back(self, topic: Topic, places: Collection[Place]) -> Mapping[Place, StoredRecord]:
        records = self._records[topic.name]
        return {place: records[place[1]] for place in places}


class _Node:
    """A running processor on partition 0 of its topics."""

    def __init__(self, processor: Processor[Rules], rules: Rules, outside: Outside) -> None:
        self.reads = {topic.name for topic in processor.reads}
        self._operator, _ = processor.restore(rules, Start())
        self._partition = MemoryPartition()
        self._runtime = Runtime(processor.source, processor.hook and processor.hook(rules, outside), strict=True)
        self._runtime.assign(0, self._operator, self._partition)

    def process(self, record: StoredRecord) -> list[Outgoing]:
        """Advance stream time to that of ``record``, process it, and return the outputs."""
        run_to_end(self._runtime.advance({0: record.timestamp}))
        run_to_end(self._runtime.process([record]))
        return self._partition.written()

    def advance(self, now_ms: int) -> list[Outgoing]:
        """Advance stream time to ``now_ms`` and return the outputs."""
        run_to_end(self._runtime.advance({0: now_ms}))
        return self._partition.written()

    def tick_times(self, until_ms: int) -> Sequence[int]:
        """Returns the tick times until ``until_ms`` if this is the assembler; else none."""
        return self._operator.tick_times(until_ms) if isinstance(self._operator, AssembleOperator) else ()


def _asking(judge: Callable[[Question], str] | None) -> Callable[[Sequence[Question]], Awaitable[list[Answer]]] | None:
    if judge is None:
        return None

    async def ask(questions: Sequence[Question]) -> list[Answer]:
        return [Answer(question.rubric.name, judge(question)) for question in questions]

    return ask


def _arriving(event: Message | tuple[Envelope, Record]) -> tuple[Message, Envelope | None]:
    """Returns the event as a message, and its envelope; ``None`` if its headers hold no valid envelope."""
    if isinstance(event, Message):
        try:
            return event, from_headers(event.headers)
        except EnvelopeError:
            return event, None
    envelope, fact = event
    return encode(fact, key=envelope.subject, envelope=envelope), envelope


def _readable(record: StoredRecord) -> list[Record]:
    """Returns the payload; none for a broken event, which becomes a dead letter."""
    try:
        return [decode(record.headers, record.value)[1]]
    except UnreadableRecord:
        return []
