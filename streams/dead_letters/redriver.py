"""Reads dead letters and sends them again: the I/O layer of :mod:`headrace.streams.dead_letters.redrive`.

All events of a trajectory and their ``Redriven`` records are sent in one transaction. Of two concurrent redrives, the
later one fences the earlier.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from aiokafka import TopicPartition

from headrace.schemas.envelope import SUBJECT
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.fenced_producer import FencedProducer, open_fenced_producer
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.kafka.sending import OutgoingRecord, send
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.schemas.wire import Message, decode
from headrace.streams.dead_letters.queue import DeadLetterEntry, DeadLetterQueue
from headrace.streams.dead_letters.redrive import (
    Closed,
    Plan,
    Redrive,
    done_message,
    redrive_alone,
    redrive_trajectory,
    taken_already,
)

TRANSACTIONAL_ID = "headrace-redrive"
"""Shared by all redrives, so that a later one fences an earlier one."""
TRANSACTION_S = 60.0
"""Seconds after which the broker aborts a transaction of a redrive."""


async def read_dead_letters(bootstrap: str, wanted: Callable[[DeadLetter, Reference], bool]) -> DeadLetterQueue:
    """Returns the dead letters that ``wanted`` accepts, with their repairs and redrives."""
    queue = DeadLetterQueue(wanted)
    async for record in read_to_end(bootstrap, DEAD_LETTERS, decided=True):
        queue.add(record)
    return queue


async def plan_redrive(bootstrap: str, selected: Sequence[DeadLetterEntry]) -> list[Plan]:
    """Returns the plans for sending ``selected`` again.

    For dead letters of ``events`` it reads all of ``trajectories`` and, for each closed trajectory, the range of
    ``events`` that contains it.
    """
    plans: list[Plan] = []
    by_trajectory: dict[str, list[DeadLetterEntry]] = defaultdict(list)
    for entry in selected:
        subject = entry.content.subject
        if (refusal := taken_already(entry)) is not None:
            plans.append(refusal)
        elif entry.dead_letter.topic == EVENTS.name and subject is not None:
            by_trajectory[subject].append(entry)
        else:
            plans.append(redrive_alone(entry))
    if not by_trajectory:
        return plans
    closed = await _closed(bootstrap, by_trajectory.keys())
    # A repair may have added the trajectory id to a dead letter that had none.
    queue = await read_dead_letters(
        bootstrap,
        lambda dead, _: dead.topic == EVENTS.name and (dead.trajectory_id is None or dead.trajectory_id in closed),
    )
    for trajectory_id, entries in by_trajectory.items():
        if trajectory_id in closed:
            siblings = [entry for entry in queue.entries if entry.content.subject == trajectory_id]
            records = await _events_of(bootstrap, trajectory_id, closed[trajectory_id])
            plans += redrive_trajectory(trajectory_id, entries, siblings, closed[trajectory_id], records)
        else:
            plans += [redrive_alone(entry) for entry in entries]
    return plans


async def send_again(bootstrap: str, redrives: Iterable[Redrive], now_ms: int) -> None:
    """Send each plan in its own transaction, together with its ``Redriven`` records."""
    timeout_ms = round(TRANSACTION_S * 1000)
    async with open_fenced_producer(bootstrap, TRANSACTIONAL_ID, timeout_ms=timeout_ms) as producer:
        for redrive in redrives:
            await _transact(producer, _records(redrive, now_ms))


async def append(bootstrap: str, messages: Iterable[Message]) -> None:
    """Write records to ``dead-letters``, in their order."""
    async with open_producer(bootstrap) as producer:
        for stored in [await send(producer, DEAD_LETTERS, message) for message in messages]:
            await stored


async def _transact(producer: FencedProducer, records: Sequence[OutgoingRecord]) -> None:
    await producer.transact(
        lambda transaction: transaction.send_all(records), within_s=2 * TRANSACTION_S, what="a redrive"
    )


def _records(redrive: Redrive, now_ms: int) -> list[OutgoingRecord]:
    again = [
        OutgoingRecord(
            record.topic.name,
            record.content.key,
            record.content.value,
            record.content.headers,
            record.timestamp_ms,
            record.partition,
        )
        for record in redrive.records
    ]
    done = [done_message(each, now_ms) for each in redrive.done]
    return [*again, *(OutgoingRecord(DEAD_LETTERS.name, each.key, each.value, each.headers) for each in done)]


async def _closed(bootstrap: str, trajectory_ids: Iterable[str]) -> dict[str, Closed]:
    """Returns those of these trajectories that are closed; the latest record counts if one was closed twice."""
    wanted = {each.encode() for each in trajectory_ids}
    found: dict[str, Closed] = {}
    async for record in read_to_end(bootstrap, TRAJECTORIES):
        if dict(record.headers).get(SUBJECT) in wanted:
            _, trajectory = decode(record.headers, record.value)
            if isinstance(trajectory, Trajectory):
                found[trajectory.trajectory_id] = Closed.of(trajectory)
    return found


async def _events_of(bootstrap: str, trajectory_id: str, closed: Closed) -> list[KafkaRecord]:
    """Returns the records of ``events`` that name the trajectory, from its first to its last."""
    partition = TopicPartition(EVENTS.name, closed.first.partition)
    found: list[KafkaRecord] = []
    async with open_consumer(bootstrap) as consumer:
        consumer.assign([partition])
        begin = (await consumer.beginning_offsets([partition]))[partition]
        end = min((await consumer.end_offsets([partition]))[partition], closed.last.offset + 1)
        consumer.seek(partition, max(closed.first.offset, begin))
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(partition, timeout_ms=500)).values():
                inside = (record for record in records if record.offset < end)
                found += [each for each in inside if dict(each.headers).get(SUBJECT) == trajectory_id.encode()]
    return found
