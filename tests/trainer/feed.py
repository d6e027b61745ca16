"""Writes groups and their trajectories to a real log, as the stream processors do."""

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.schemas.events import SamplingSpan, VersionSpan
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.schemas.topics import TRAINING, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode, record_message
from tests.trainer.builders import member, training_group, trajectory


def attempt(name: str, *, run: str, seed: int, version: int = 0) -> Trajectory:
    """Two segments of random tokens; by default with log-probabilities as of a uniform policy."""
    random = np.random.default_rng(seed)
    segments = []
    for _ in range(2):
        context, sampled = int(random.integers(2, 12)), int(random.integers(1, 6))
        segments.append(
            Segment(
                token_ids=random.integers(0, 50, context + sampled).tolist(),
                loss_mask=[0] * context + [1] * sampled,
                logprobs=[-3.9] * sampled,
                version_spans=[VersionSpan(version=version, start=0, end=sampled)],
                sampling_spans=[SamplingSpan(temperature=1.0, start=0, end=sampled)],
            )
        )
    return trajectory(name, *segments, run=run)


def message_of(record: Record, *, id: str, key: str) -> Message:
    return record_message(record, id=id, key=key, source="/tests", time_ms=1_700_000_000_000, subject=id)


async def feed_trajectories(kafka: str, attempts: Iterable[Trajectory]) -> dict[str, Reference]:
    """Write trajectories to every partition in turn, each after an aborted one; returns their places."""
    places = {}
    async with open_producer(kafka, transactional_id="feed") as producer:
        for number, each in enumerate(attempts):
            message = message_of(each, id=each.trajectory_id, key=each.trajectory_id)
            if number % 4 == 0:
                await producer.begin_transaction()
                await (await send(producer, TRAJECTORIES, message, number % 4))
                await producer.abort_transaction()
            async with producer.transaction():
                sent = await send(producer, TRAJECTORIES, message, number % 4)
            found = await sent
            places[each.trajectory_id] = Reference(partition=found.partition, offset=found.offset)
    return places


async def feed_groups(
    kafka: str,
    names: Sequence[str],
    *,
    run: str,
    version: int = 0,
    size: int = 4,
    partition: int | None = 0,
    story: str | None = None,
) -> list[TrainingGroup]:
    """Write a group for each name to one partition of ``training``; the members' advantages sum to zero.

    Runs of one ``story`` have the same tokens.
    """
    attempts = {
        name: [
            attempt(f"{run}/{name}/{i}", run=run, seed=hash_of(story or run, name, i), version=version)
            for i in range(size)
        ]
        for name in names
    }
    places = await feed_trajectories(kafka, [each for members in attempts.values() for each in members])
    groups = []
    for name, trajectories in attempts.items():
        members = [
            member(each, advantage=i - (size - 1) / 2, reward=float(i), at=places[each.trajectory_id])
            for i, each in enumerate(trajectories)
        ]
        groups.append(training_group(f"{run}/{name}", members, run=run))
    await send_groups(kafka, groups, partition=partition)
    return groups


async def send_groups(kafka: str, groups: Iterable[TrainingGroup], *, partition: int | None = 0) -> None:
    async with open_producer(kafka) as producer:
        for group in groups:
            message = message_of(group, id=derived_id(group.TYPE, group.group_id), key=group.group_id)
            await (await send(producer, TRAINING, message, partition))


async def records(kafka: str, topic: Topic, run: str) -> list[tuple[str, Record]]:
    """``(ce_id, payload)`` of every committed record of ``run``, once all transactions have ended: a broker marks their
    ends in the topics after it has acknowledged the commit."""
    found = [decode(record.headers, record.value) async for record in read_to_end(kafka, topic, decided=True)]
    return [(envelope.id, payload) for envelope, payload in found if payload.run == run]


def hash_of(*parts: str | int) -> int:
    return int(derived_id(*parts)[:8], 16)
