"""A partition has one owner: the new owner reads what was committed, and the previous one cannot commit any more."""

import asyncio
import gc
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import KafkaTimeoutError

from headrace.schemas.kafka import waits
from headrace.schemas.kafka.clients import open_admin, open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.kafka.transactions import until_decided
from headrace.schemas.topics import ALERTS, REJECTED, REWARDS, Topic
from headrace.schemas.wire import Message, decode
from headrace.streams.lost_offset import LostOffsetError
from headrace.streams.raw import Outgoing
from headrace.streams.runtime import owned_partition
from headrace.streams.runtime.owned_partition import (
    OwnedPartition,
    OwnerChanged,
    Ownership,
    create_state_topic,
)
from tests.streams.assembly.test_lost_offset import forget_offsets
from tests.streams.unmarked import leave_out, let_partitions_be_left_out

pytestmark = pytest.mark.kafka


async def ownership(kafka: str, name: str) -> Ownership:
    """A processor of `rewards`, which holds more records than a test commits."""
    state = await create_state_topic(kafka, f"{name}-state", partitions=REWARDS.partitions, about="State of a test.")
    async with open_producer(kafka) as producer:
        for partition in (0, 1, 2):
            for sent in [await producer.send(REWARDS.name, b"x", partition=partition) for _ in range(20)]:
                await sent
    return Ownership(kafka, name, (REWARDS,), state, (REJECTED,))


def values_of(owned: OwnedPartition) -> dict[bytes, bytes | None]:
    return {key: record.value for key, record in owned.state.items()}


def output(name: str) -> Outgoing:
    return Outgoing(REJECTED, Message(b"key", name.encode(), []), 1_700_000_000_000)


async def values(kafka: str, topic: Topic, prefix: bytes) -> list[bytes]:
    found = [record.value or b"" async for record in read_to_end(kafka, topic, decided=True)]
    return [value for value in found if value.startswith(prefix)]


async def test_the_next_owner_reads_what_was_committed(kafka: str) -> None:
    mine = await ownership(kafka, "settled")
    first = await OwnedPartition.acquire(mine, 1)
    assert (first.offsets, values_of(first)) == ({}, {})
    await first.commit({"rewards": 7}, {b"a": b"1", b"b": b"2"}, [output("settled-1")])
    await first.commit({"rewards": 9}, {b"b": None, b"c": b"3", b"\0settled": b"5", b"\0settled\0": b"6"}, [])
    await first.commit({}, {b"\0settled\0": None, b"a": b"4"}, [])
    await first.release()
    second = await OwnedPartition.acquire(mine, 1)
    await second.release()
    assert (second.offsets, list(values_of(second).items())) == (
        {"rewards": 9},
        [(b"c", b"3"), (b"\0settled", b"5"), (b"a", b"4")],
    )
    assert await values(kafka, REJECTED, b"settled") == [b"settled-1"]


async def test_a_fenced_owner_cannot_commit(kafka: str) -> None:
    mine = await ownership(kafka, "fenced")
    sleeper = await OwnedPartition.acquire(mine, 2)
    await sleeper.commit({"rewards": 5}, {b"a": b"old"}, [output("fenced-old")])
    heir = await OwnedPartition.acquire(mine, 2)
    with pytest.raises(OwnerChanged, match=r"rewards\[2\] now"):
        await sleeper.commit({"rewards": 6}, {b"a": b"zombie"}, [output("fenced-zombie")])
    await heir.commit({"rewards": 8}, {b"a": b"new"}, [output("fenced-new")])
    with pytest.raises(OwnerChanged):
        await sleeper.commit({"rewards": 6}, {b"a": b"zombie"}, [output("fenced-zombie")])
    await sleeper.release()
    await heir.release()
    found = await OwnedPartition.acquire(mine, 2)
    await found.release()
    assert (found.offsets, values_of(found)) == ({"rewards": 8}, {b"a": b"new"})
    assert await values(kafka, REJECTED, b"fenced") == [b"fenced-old", b"fenced-new"]


@pytest.mark.parametrize("step", ["begin_transaction", "send_offsets_to_transaction"])
async def test_losing_the_partition_within_a_transaction_leaves_no_unretrieved_exception(
    kafka: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio logs exceptions that are never retrieved, with a traceback."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
    mine = await ownership(kafka, "within")
    sleeper = await OwnedPartition.acquire(mine, 3)
    steps = [getattr(sleeper._producer.kafka, step)]

    async def too_late(*arguments: Any) -> None:
        await (await OwnedPartition.acquire(mine, 3)).release()
        await steps.pop()(*arguments)

    monkeypatch.setattr(sleeper._producer.kafka, step, too_late)
    with pytest.raises(OwnerChanged):
        await sleeper.commit({"rewards": 5}, {b"a": b"old"}, [output("within-old")])
    await sleeper.release()
    del sleeper
    monkeypatch.undo()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_transaction_that_times_out_can_be_repeated(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = await ownership(kafka, "endless")
    owned = await OwnedPartition.acquire(mine, 1)

    async def never_answers(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(owned_partition, "COMMIT_S", 0.5)
        patched.setattr(waits, "STOP_S", 0.5)
        patched.setattr(owned._producer.kafka.client, "send", never_answers)
        with pytest.raises(KafkaTimeoutError, match=r"rewards\[1\] did not end within 0\.5 s"):
            await owned.commit({"rewards": 5}, {b"a": b"1"}, [output("endless-1")])
        await owned.release()
    again = await OwnedPartition.acquire(mine, 1)
    assert (again.offsets, values_of(again)) == ({}, {})
    await again.commit({"rewards": 5}, {b"a": b"1"}, [output("endless-1")])
    await again.release()
    assert await values(kafka, REJECTED, b"endless") == [b"endless-1"]


async def test_the_next_owner_finds_an_abandoned_transaction_that_was_committed(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = await ownership(kafka, "hidden")
    owned = await OwnedPartition.acquire(mine, 1)
    commit, committed = owned._producer.kafka.commit_transaction, asyncio.Event()

    async def commit_and_never_answer() -> None:
        await commit()
        committed.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(owned._producer.kafka, "commit_transaction", commit_and_never_answer)
        committing = asyncio.ensure_future(owned.commit({"rewards": 5}, {b"a": b"1"}, [output("hidden-1")]))
        await asyncio.wait_for(committed.wait(), 60)
        committing.cancel()
        await asyncio.wait({committing})
        await owned.release()
    again = await OwnedPartition.acquire(mine, 1)
    await again.release()
    assert (again.offsets, values_of(again)) == ({"rewards": 5}, {b"a": b"1"})
    assert await values(kafka, REJECTED, b"hidden") == [b"hidden-1"]


async def test_an_open_transaction_of_the_previous_owner_is_aborted(kafka: str) -> None:
    mine = await ownership(kafka, "undone")
    sleeper = await OwnedPartition.acquire(mine, 0)
    await sleeper._producer.kafka.begin_transaction()
    await (await sleeper._producer.kafka.send(mine.state.name, b"half", b"a", 0))
    await (await sleeper._producer.kafka.send(REJECTED.name, b"undone-half"))
    heir = await OwnedPartition.acquire(mine, 0)
    assert (heir.offsets, values_of(heir)) == ({}, {})
    await heir.commit({"rewards": 1}, {}, [output("undone-whole")])
    assert await values(kafka, REJECTED, b"undone") == [b"undone-whole"]
    await heir.release()
    await sleeper.release()


@pytest.mark.parametrize("left_out", ["outputs", "state"])
async def test_committed_records_are_visible_despite_a_missing_marker(kafka: str, left_out: str) -> None:
    mine = await ownership(kafka, f"committed-{left_out}")
    await let_partitions_be_left_out(kafka)
    owner = await OwnedPartition.acquire(mine, 0)
    await owner.commit({"rewards": 3}, {b"a": b"1"}, [output(f"committed-{left_out}-1")])
    await all_decided(kafka, mine)
    leave_out(owner._producer.kafka, REJECTED if left_out == "outputs" else mine.state)
    await owner.commit({"rewards": 5}, {b"a": b"2"}, [output(f"committed-{left_out}-2")])
    await owner.release()
    heir = await OwnedPartition.acquire(mine, 0)
    assert (heir.offsets, values_of(heir)) == ({"rewards": 5}, {b"a": b"2"})
    assert await until(kafka, f"committed-{left_out}", 2) == [
        b"committed-%s-%d" % (left_out.encode(), n) for n in (1, 2)
    ]
    await heir.release()


@pytest.mark.parametrize("left_out", ["outputs", "state"])
async def test_aborted_records_are_not_visible_despite_a_missing_marker(kafka: str, left_out: str) -> None:
    mine = await ownership(kafka, f"aborted-{left_out}")
    await let_partitions_be_left_out(kafka)
    owner = await OwnedPartition.acquire(mine, 0)
    await owner.commit({"rewards": 3}, {b"a": b"1"}, [output(f"aborted-{left_out}-1")])
    await all_decided(kafka, mine)
    leave_out(owner._producer.kafka, REJECTED if left_out == "outputs" else mine.state)
    await owner._producer.kafka.begin_transaction()
    await (await owner._producer.kafka.send(mine.state.name, b"2", b"a", 0))
    await (await send(owner._producer.kafka, REJECTED, output(f"aborted-{left_out}-half").message))
    await owner._producer.kafka.abort_transaction()
    await owner.release()
    heir = await OwnedPartition.acquire(mine, 0)
    assert (heir.offsets, values_of(heir)) == ({"rewards": 3}, {b"a": b"1"})
    await heir.commit({"rewards": 5}, {b"a": b"2"}, [output(f"aborted-{left_out}-2")])
    assert await until(kafka, f"aborted-{left_out}", 2) == written("aborted", left_out)
    await heir.release()


async def all_decided(kafka: str, mine: Ownership) -> None:
    """Wait for the markers of all transactions so far.

    Markers follow a commit a moment later, and a producer that starts its next transaction at the coordinator waits for
    them. A test that omits a partition does not do that: its record would precede the previous transaction's marker and
    be committed with it.
    """
    async with open_consumer(kafka) as consumer:
        places = [place for topic in (mine.state, *mine.writes) for place in await partitions_of(consumer, topic)]
    await until_decided(kafka, places)


def written(*names: str) -> list[bytes]:
    return [f"{'-'.join(names)}-{number}".encode() for number in (1, 2)]


async def until(kafka: str, prefix: str, count: int) -> list[bytes]:
    """The outputs with ``prefix`` as soon as there are ``count``: markers come a moment later."""
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found = await values(kafka, REJECTED, prefix.encode())
    return found


async def test_a_state_topic_keeps_the_latest_record_of_a_key(kafka: str) -> None:
    state = await create_state_topic(kafka, "compacted-state", partitions=2, about="State of a test.")
    assert state.configs["cleanup.policy"] == "compact"
    assert await create_topics(kafka, [state]) == []
    async with open_consumer(kafka) as consumer:
        assert len(await partitions_of(consumer, state)) == 2


async def test_a_state_topic_with_too_few_partitions_is_named(kafka: str) -> None:
    state = await create_state_topic(kafka, "narrow-state", partitions=1, about="State of a test.")
    with pytest.raises(LookupError, match="narrow-state has no partition 3"):
        await OwnedPartition.acquire(Ownership(kafka, "narrow", (REWARDS,), state, (REJECTED,)), 3)


async def test_forgotten_offsets_are_recovered_from_the_state(kafka: str) -> None:
    mine = await ownership(kafka, "forgotten")
    first = await OwnedPartition.acquire(mine, 1)
    await first.commit({"rewards": 7}, {b"a": b"1"}, [])
    await first.commit({"rewards": 9}, {}, [])
    await first.release()
    await forget_offsets(kafka, mine.group)
    second = await OwnedPartition.acquire(mine, 1)
    assert (second.offsets, values_of(second)) == ({"rewards": 9}, {b"a": b"1"})
    await second.commit({}, {}, [])
    await second.release()
    third = await OwnedPartition.acquire(mine, 1)
    await third.release()
    assert third.offsets == {"rewards": 9}


async def test_a_state_without_offsets_is_refused_with_the_command_that_fixes_it(kafka: str) -> None:
    mine = await ownership(kafka, "older")
    async with open_producer(kafka) as producer:
        await (await producer.send(mine.state.name, b"1", b"a", 1))
    with pytest.raises(LostOffsetError, match=r"--group older --topic rewards:1 --reset-offsets"):
        await OwnedPartition.acquire(mine, 1)


async def test_records_expired_before_they_were_committed_raise_one_alert(kafka: str) -> None:
    mine, place = await ownership(kafka, "expired"), TopicPartition(REWARDS.name, 3)
    async with open_producer(kafka) as producer:
        for _ in range(6):
            await (await producer.send(REWARDS.name, b"x", b"x", 3))
    first = await OwnedPartition.acquire(mine, 3)
    await first.commit({"rewards": 2}, {}, [])
    await first.release()
    async with open_admin(kafka) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=5)})
    second = await OwnedPartition.acquire(mine, 3)
    await second.commit({"rewards": 6}, {}, [])
    await second.commit({"rewards": 6}, {}, [])
    await second.release()
    alerts = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, ALERTS, decided=True)]
    assert [alert.details["unread"] for alert in alerts if alert.source == "expired"] == [3]
