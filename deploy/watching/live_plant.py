"""`headrace watch plant NAME --live`: the events of a planted run into a running stack, and its alerts out of it.

    events, feedback ──▶ assemble, score, group, observe, watch of the stack ──▶ alerts
           step n + 1 is sent when the observations of all attempts of step n are in the log

A policy samples version after version, so a step waits for the one before: otherwise a partition could be several
versions ahead of another one, and the monitors would compare windows in which versions are mixed.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from headrace.deploy.errors import StackError
from headrace.deploy.kafka.run import run_with_kafka
from headrace.deploy.watching.plant import Plan, PlantedStep, planted_steps
from headrace.schemas.envelope import SUBJECT
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import KafkaRecord, next_records, partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert, Episode
from headrace.schemas.records.watch import Lane, Observation, Readings
from headrace.schemas.topics import ALERTS, EVENTS, FEEDBACK, MONITORS, OBSERVATIONS
from headrace.schemas.wire import UnreadableRecord, decode, encode
from headrace.streams.watch.planted.events import Fact, agent_of, step_facts, trajectory_id

STALLED_S = 120.0
"""Seconds without a further observation after which the processors count as not running."""
AT_ONCE = 1_000
"""Most records that are read together."""
JUDGED = frozenset({Lane.ATTEMPT, Lane.REWARD})
"""Lanes in whose windows the attempts of one step are, and whose observations a step waits for."""

Alarmed = Callable[[int, Alert], None]
"""Called with each alert of an episode, and the step that it is about: 0 for the first hacked one."""


@dataclass(frozen=True, slots=True)
class Planted:
    """What was sent."""

    run: str
    """Training run of its trajectories, which no trainer has."""
    attempts: int
    """Attempts, without their sub-agents."""
    events: int
    """Records of ``events``."""
    feedback: int
    """Records of ``feedback``."""


def plant_live(
    bootstrap: str, plan: Plan, alarmed: Alarmed = lambda step, alert: None, *, stalled_s: float = STALLED_S
) -> Planted:
    """Send the events of ``plan`` to the stack with the Kafka at ``bootstrap``, step by step, under a run of its own;
    call ``alarmed`` for each alert about it. Returns what was sent, once the last whole window is read.

    Raises :class:`StackError` if the processors make no observation of what was sent for ``stalled_s`` seconds.
    """
    return run_with_kafka(bootstrap, lambda: _plant(bootstrap, plan, alarmed, stalled_s))


async def _plant(bootstrap: str, plan: Plan, alarmed: Alarmed, stalled_s: float) -> Planted:
    begin_ms = time.time_ns() // 1_000_000
    run, agent = f"{plan.run}-{begin_ms}", agent_of(plan.hack)
    attempts = events = feedback = 0
    async with open_consumer(bootstrap) as consumer, open_producer(bootstrap) as producer:
        follower = await _Follower.begin(consumer, run, plan, alarmed, stalled_s)
        for step in planted_steps(plan, begin_ms):
            facts = list(step_facts(step.attempts, run, agent, time.time_ns() // 1_000_000))
            await _send(producer, facts)
            attempts += len(step.attempts)
            feedback += sum(fact.is_feedback for fact in facts)
            events += sum(not fact.is_feedback for fact in facts)
            await follower.observed(step)
        await follower.read()
    return Planted(run, attempts, events, feedback)


async def _send(producer: AIOKafkaProducer, facts: Collection[Fact]) -> None:
    sent = []
    for fact in facts:
        message = encode(fact.payload, key=fact.envelope.subject, envelope=fact.envelope)
        sent.append(await send(producer, FEEDBACK if fact.is_feedback else EVENTS, message))
    await asyncio.gather(*sent)


class _Follower:
    """Follows what the processors make of a run, from now on."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        places: Collection[TopicPartition],
        run: str,
        plan: Plan,
        alarmed: Alarmed,
        stalled_s: float,
    ) -> None:
        """``consumer`` is assigned to ``places``."""
        self._consumer = consumer
        self._places = places
        self._run = run
        self._plan = plan
        self._alarmed = alarmed
        self._stalled_s = stalled_s
        self._waiting: set[tuple[str, Lane]] = set()
        self._waiting_for: set[bytes] = set()
        self._step = 0
        self._read_version = -1
        self._moved_at = time.monotonic()

    @classmethod
    async def begin(
        cls, consumer: AIOKafkaConsumer, run: str, plan: Plan, alarmed: Alarmed, stalled_s: float
    ) -> "_Follower":
        """Returns a follower from the ends of the topics on. Raises ``LookupError`` if the broker lacks one."""
        places = [place for topic in (OBSERVATIONS, MONITORS, ALERTS) for place in await partitions_of(consumer, topic)]
        ends = await consumer.end_offsets(places)
        consumer.assign(places)
        for place in places:
            consumer.seek(place, ends[place])
        return cls(consumer, places, run, plan, alarmed, stalled_s)

    async def observed(self, step: PlantedStep) -> None:
        """Wait until attempts and rewards of ``step`` are observed."""
        names = [trajectory_id(each, self._run) for each in step.attempts]
        self._waiting = {(name, lane) for name in names for lane in JUDGED}
        self._waiting_for = {name.encode() for name in names}
        self._step, self._moved_at = step.step, time.monotonic()
        while self._waiting:
            await self._poll()
            if time.monotonic() - self._moved_at > self._stalled_s:
                raise StackError(
                    f"The processors have made no observation of {len(self._waiting):,} attempts and rewards for "
                    f"{self._stalled_s:g} s: `headrace status` shows whether assemble and workers run, and how far "
                    "they are behind."
                )

    async def read(self) -> None:
        """Wait until the last whole window of the attempts is read, at most as long as for an observation."""
        last, self._moved_at = self._plan.honest + self._plan.steps - 2, time.monotonic()
        while self._read_version < last and time.monotonic() - self._moved_at <= self._stalled_s:
            await self._poll()
        await self._poll()  # alerts are in another topic, which may be fetched later

    async def _poll(self) -> None:
        batches = await next_records(self._consumer, self._places, AT_ONCE)
        for place, records in batches.items():
            for record in records:
                self._take(place.topic, record)

    def _take(self, topic: str, record: KafkaRecord) -> None:
        if topic == OBSERVATIONS.name and dict(record.headers).get(SUBJECT) not in self._waiting_for:
            return  # of other runs, and of sub-agents: most of them
        try:
            _, payload = decode(record.headers, record.value)
        except UnreadableRecord:
            return
        match payload:
            case Observation():
                self._waiting.discard((payload.trajectory_id, payload.of))
                self._moved_at = time.monotonic()
            case Readings(run=self._run, lane=Lane.ATTEMPT):
                self._read_version = max(self._read_version, payload.last_version or 0)
            case Alert(run=self._run, episode=Episode()):
                self._alarmed(self._step_of(payload), payload)

    def _step_of(self, alert: Alert) -> int:
        """Returns the step that ``alert`` is about: that of its window or, where windows are no steps, the newest
        whole one."""
        if alert.details.get("lane") in JUDGED:
            return int(alert.details["window"]) - self._plan.honest
        return self._step - 1
