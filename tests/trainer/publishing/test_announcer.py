"""A run's next trainer finds what was published and publishes it once, despite open transactions and restarts."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiokafka.errors import KafkaTimeoutError

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import WEIGHTS
from headrace.schemas.wire import decode
from headrace.trainer.announcements.announcement import PublishedPosition, announcement
from headrace.trainer.publishing.announcer import Announcer, newest_published
from headrace.trainer.retries.broker import LogUnavailable
from tests.streams.unmarked import leave_out, let_partitions_be_left_out

pytestmark = pytest.mark.kafka


def version(run, number):
    weights = Weights(
        run=run, version=number, parent=number - 1 if number else None, step=number, manifest_uri="m", sha256="",
        kind="anchor", size=0,
    )  # fmt: skip
    return announcement(weights, run=run)


@asynccontextmanager
async def announcing(kafka, run):
    """Open an announcer that has claimed ``run``."""
    announcer = Announcer(kafka, run, answer_s=30.0)
    try:
        await announcer.open()
        yield announcer
    finally:
        await announcer.close()


async def versions(kafka, run, *, decided=True):
    """Returns the versions in the log, once open transactions have ended; or those visible now."""
    async with asyncio.timeout(60):
        read = read_to_end(kafka, WEIGHTS, decided=decided)
        found = [decode(record.headers, record.value)[1] async for record in read]
    return [weights.version for weights in found if weights.run == run]


async def test_another_runs_open_transaction_hides_no_published_version(kafka):
    async with open_producer(kafka, transactional_id="another") as another:
        await another.begin_transaction()
        await (await send(another, WEIGHTS, version("another", 0).message()))
        async with announcing(kafka, "hidden") as announcer:
            await announcer.announce([version("hidden", 0)], position=PublishedPosition(0), offsets={1: 3})
            await announcer.announce([version("hidden", 1)], position=PublishedPosition(1, 2), offsets={1: 4})
        assert await versions(kafka, "hidden", decided=False) == []
        assert await newest_published(kafka, "hidden") == PublishedPosition(1, 2)

        # Of this one the broker has forgotten the group's offsets.
        async with open_producer(kafka) as producer:
            await (await send(producer, WEIGHTS, version("forgotten", 4).message()))
        asking = asyncio.create_task(newest_published(kafka, "forgotten"))
        await asyncio.sleep(2)
        assert not asking.done()
        await another.abort_transaction()
        assert await asyncio.wait_for(asking, 30) == PublishedPosition(4)


async def test_an_undecided_transaction_is_decided_by_the_next_trainer(kafka):
    await let_partitions_be_left_out(kafka)
    async with announcing(kafka, "left") as announcer:
        leave_out(announcer._producer.kafka, WEIGHTS)
        await announcer.announce([version("left", 0)], position=PublishedPosition(0))
    async with announcing(kafka, "left") as announcer:
        assert await newest_published(kafka, "left") == PublishedPosition(0)
        assert await versions(kafka, "left", decided=False) == []
        await announcer.decide(commit=True)
        assert await versions(kafka, "left") == [0]
        leave_out(announcer._producer.kafka, WEIGHTS)
        await announcer._producer.kafka.begin_transaction()
        await (await send(announcer._producer.kafka, WEIGHTS, version("left", 1).message()))  # and dies
    async with announcing(kafka, "left") as announcer:
        assert await newest_published(kafka, "left") == PublishedPosition(0)
        await announcer.decide(commit=False)
        await announcer.announce([version("left", 1)], position=PublishedPosition(1))
    assert await versions(kafka, "left") == [0, 1]


async def test_an_undecided_first_transaction_is_aborted(kafka):
    await let_partitions_be_left_out(kafka)
    async with announcing(kafka, "first") as announcer:
        leave_out(announcer._producer.kafka, WEIGHTS)
        await announcer._producer.kafka.begin_transaction()
        await (await send(announcer._producer.kafka, WEIGHTS, version("first", 0).message()))  # and dies
    async with announcing(kafka, "first") as announcer:
        assert await asyncio.wait_for(newest_published(kafka, "first"), 10) is None
        await announcer.announce([version("first", 0)], position=PublishedPosition(0))
    assert await versions(kafka, "first") == [0]


@pytest.mark.parametrize("made", [True, False])
async def test_a_transaction_without_acknowledgement_is_ended_as_recorded_in_the_log(kafka, made):
    run = f"unheard-{made}"
    await let_partitions_be_left_out(kafka)
    async with announcing(kafka, run) as announcer:
        leave_out(announcer._producer.kafka, WEIGHTS)
        commit = announcer._producer.kafka.commit_transaction

        async def commit_unconfirmed():
            if made:
                await commit()
            raise KafkaTimeoutError

        announcer._producer.kafka.commit_transaction = commit_unconfirmed
        with pytest.raises(LogUnavailable):
            await announcer.announce([version(run, 0)], position=PublishedPosition(0))
        # Another call finds the broker first, as that of an alert may.
        await announcer.announce([])
        await announcer.announce([version(run, 0)], position=PublishedPosition(0))
    assert await versions(kafka, run) == [0]
    assert await newest_published(kafka, run) == PublishedPosition(0)
