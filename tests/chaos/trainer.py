"""A test trainer that can be killed at any moment: every group becomes part of a step or is rejected.

    HEADRACE_KAFKA=… python -m tests.chaos.trainer

It decides in transactions and reads its decisions from the log, so like the real trainer it decides no group twice.
"""

import asyncio
import os
import sys
import time
import zlib

from aiokafka import AIOKafkaProducer

from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.group import Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.topics import REJECTED, STEPS, TRAINING
from headrace.schemas.wire import record_message

RUN = "default"
_SOURCE = "/tests/trainer"
_STEP_S = 0.5
_REJECTED_ONE_IN = 5
"""One group of so many is stale."""


async def train(bootstrap: str) -> None:
    """Decide on groups until the process ends."""
    async with open_producer(bootstrap, transactional_id="chaos-trainer", transaction_timeout_ms=10_000) as producer:
        decided, step = await _decided(bootstrap)
        async with open_consumer(bootstrap) as consumer:
            consumer.assign(await partitions_of(consumer, TRAINING))
            await consumer.seek_to_beginning()
            while True:
                found: list[tuple[TrainingGroup, KafkaRecord]] = []
                until = time.monotonic() + _STEP_S
                while time.monotonic() < until:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        for record in records:
                            group = TrainingGroup.model_validate_json(record.value or b"")
                            if group.group_id not in decided:
                                decided.add(group.group_id)
                                found.append((group, record))
                if found:
                    step += 1
                    await _decide(producer, found, step)


async def _decided(bootstrap: str) -> tuple[set[str], int]:
    """Groups that were decided on, and the last step."""
    decided: set[str] = set()
    last = 0
    async for record in read_to_end(bootstrap, STEPS):
        step = Step.model_validate_json(record.value or b"")
        decided |= {group.group_id for group in step.groups}
        last = max(last, step.step)
    async for record in read_to_end(bootstrap, REJECTED):
        rejection = Rejection.model_validate_json(record.value or b"")
        if rejection.stage is Stage.ADMISSION and rejection.group_id is not None:
            decided.add(rejection.group_id)
    return decided, last


async def _decide(producer: AIOKafkaProducer, found: list[tuple[TrainingGroup, KafkaRecord]], number: int) -> None:
    """One transaction: a step of the accepted groups, and rejections of the other groups' members."""
    now_ms = time.time_ns() // 1_000_000
    taken = [pair for pair in found if not _is_stale(pair[0])]
    step = Step(
        run=RUN,
        step=number,
        version=number,
        groups=[_trained(*pair) for pair in taken],
        config_sha256="",
        data_sha256="",
        metrics={},
    )
    async with producer.transaction():
        sent = []
        if taken:
            id = derived_id(Step.TYPE, RUN, number)
            message = record_message(step, id=id, key=RUN, source=_SOURCE, time_ms=now_ms, subject=RUN)
            sent.append(await send(producer, STEPS, message))
        for rejection in (each for group, _ in found if _is_stale(group) for each in _rejections(group)):
            name = rejection.trajectory_id
            id = derived_id(Rejection.TYPE, name)
            message = record_message(rejection, id=id, key=name, source=_SOURCE, time_ms=now_ms, subject=name)
            sent.append(await send(producer, REJECTED, message))
        for each in sent:
            await each


def _is_stale(group: TrainingGroup) -> bool:
    return zlib.crc32(group.group_id.encode()) % _REJECTED_ONE_IN == 0


def _trained(group: TrainingGroup, record: KafkaRecord) -> TrainedGroup:
    return TrainedGroup(
        group_id=group.group_id,
        group=Reference(partition=record.partition, offset=record.offset),
        trajectory_ids=[member.trajectory_id for member in group.members],
        trajectories=[member.trajectory for member in group.members],
    )


def _rejections(group: TrainingGroup) -> list[Rejection]:
    return [
        Rejection(
            trajectory_id=member.trajectory_id,
            trajectory=member.trajectory,
            stage=Stage.ADMISSION,
            reason=Reason.STALE,
            group_id=group.group_id,
        )
        for member in group.members
    ]


if __name__ == "__main__":
    sys.exit(asyncio.run(train(os.environ["HEADRACE_KAFKA"])))
