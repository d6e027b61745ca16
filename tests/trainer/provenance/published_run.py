"""A run that a real trainer trains from a real log, with all records of agents and stream processors."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ToolCalled, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.ids import derived_id, uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, REWARDS, Topic
from headrace.schemas.wire import Message, encode
from headrace.streams.grouping.group import output_message
from headrace.streams.scoring.score import reward_message
from headrace.trainer.config import TrainerConfig
from headrace.trainer.loop import run_trainer
from tests.trainer.builders import UNCHECKED, member, tiny_model, training_group
from tests.trainer.feed import attempt, feed_trajectories, hash_of, message_of, send_groups


@dataclass
class Story:
    """The records written to the log."""

    run: str
    events: dict[str, list[str]] = field(default_factory=dict)
    """Trajectory → the ids of its events."""
    places: dict[str, list[Reference]] = field(default_factory=dict)
    """Trajectory → places of its events."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Group → its trajectories."""


async def publish_run(kafka: str, run: str, groups: int, size: int = 4) -> Story:
    """Write events, trajectories, rewards and groups; tenants and agents differ from group to group."""
    story, attempts = Story(run), {}
    async with open_producer(kafka) as producer:
        for number in range(groups):
            labels = {"agent": ("search", "checkout")[number % 2], "tenant": f"tenant-{number % 3}"}
            group_id = f"{run}/{number}"
            for name in (f"{group_id}/{each}" for each in range(size)):
                started = TrajectoryStarted(run=run, task_id=f"q{number}", group_id=group_id, group_size=size, **labels)
                await _emit(producer, story, name, started)
                ends = {"first": story.places[name][0], "last": story.places[name][-1]}
                made = attempt(name, run=run, seed=hash_of(run, name))
                attempts[name] = made.model_copy(update={"started": started, **ends})
                story.groups.setdefault(group_id, []).append(name)
    places = await feed_trajectories(kafka, attempts.values())
    made_groups = []
    async with open_producer(kafka) as producer:
        for group_id, names in story.groups.items():
            for number, name in enumerate(names):
                reward = _reward(attempts[name], places[name], float(number), group_id)
                await (await send(producer, REWARDS, reward_message(reward)))
            members = [
                member(attempts[name], advantage=number - (size - 1) / 2, reward=float(number), at=places[name])
                for number, name in enumerate(names)
            ]
            made_groups.append(training_group(group_id, members, run=run))
    await send_groups(kafka, made_groups, partition=None)
    return story


async def publish_rejected(kafka: str, run: str, name: str, parent: str | None = None) -> Story:
    """Write a scored and rejected trajectory; with ``parent`` it is a sub-agent's."""
    story = Story(run)
    started = TrajectoryStarted(run=run, task_id="q", agent="helper", parent_trajectory_id=parent)
    async with open_producer(kafka) as producer:
        await _emit(producer, story, name, started)
    ends = {"first": story.places[name][0], "last": story.places[name][-1]}
    made = attempt(name, run=run, seed=1).model_copy(update={"started": started, **ends})
    at = (await feed_trajectories(kafka, [made]))[name]
    rejection = Rejection(
        trajectory_id=name, trajectory=at, stage=Stage.GROUP, reason=Reason.FROZEN_ROLE, run=run, group_id="g"
    )
    await _write(kafka, *output_message(rejection, 1_700_000_000_000))
    return story


async def quarantine(kafka: str, event: Reference) -> None:
    """Write a dead letter for an event, like the assembler."""
    letter = DeadLetter(
        topic=EVENTS.name, partition=event.partition, offset=event.offset, error=DeadLetterError.LATE, message="late",
        key=None, value=None, headers=[], timestamp_ms=0,
    )  # fmt: skip
    await _write(kafka, DEAD_LETTERS, message_of(letter, id=derived_id("dead", event.offset), key="events:0"))


def train(kafka: str, folder: Path, run: str, steps: int, **settings: object) -> None:
    """Train ``steps`` steps of ``run``, two groups per step."""
    config = TrainerConfig(
        kafka,
        run,
        tiny_model(folder / "base"),
        folder / "checkpoints",
        f"file://{folder}/objects",
        plausibility=UNCHECKED,
        **({"groups_per_step": 2, "max_staleness": 100, "threads": 1} | settings),
    )

    async def until_announced() -> None:
        stop = asyncio.Event()

        def reached(arrow: str, version: int) -> None:
            if (arrow, version) == ("announced", steps):
                stop.set()

        await asyncio.wait_for(run_trainer(config, stop=stop, ready=lambda: None, reached=reached), 120)

    asyncio.run(until_announced())


def delete_before(kafka: str, topic: Topic, partition: int, before: int) -> None:
    """Delete the records of a partition below an offset, as retention does."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic.name, partition): RecordsToDelete(before_offset=before)})
        finally:
            await admin.close()

    asyncio.run(delete())


async def _emit(producer: AIOKafkaProducer, story: Story, name: str, started: TrajectoryStarted) -> None:
    facts: list[Record] = [started, ToolCalled(call_id="1", tool="search"), TrajectoryEnded()]
    for sequence, fact in enumerate(facts):
        # The last has an id of another kind, as imported events have.
        id = derived_id(name, sequence) if fact is facts[-1] else uuid7()
        envelope = Envelope(id, fact.TYPE, "/tests", 1_700_000_000_000, name, sequence)
        sent = await (await send(producer, EVENTS, encode(fact, key=name, envelope=envelope)))
        story.events.setdefault(name, []).append(id)
        story.places.setdefault(name, []).append(Reference(partition=sent.partition, offset=sent.offset))


def _reward(of: Trajectory, at: Reference, total: float, group_id: str) -> Reward:
    return Reward(
        trajectory_id=of.trajectory_id, trajectory=at, run=of.started.run if of.started else "", group_id=group_id,
        spec="search@1", components={"outcome": Component(value=total, weight=1.0)}, total=total, ended_ms=0,
    )  # fmt: skip


async def _write(kafka: str, topic: Topic, message: Message) -> None:
    async with open_producer(kafka) as producer:
        await (await send(producer, topic, message))
