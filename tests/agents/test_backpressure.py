"""Sampling waits for training, with real topics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.agents.backpressure import Backpressure
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.topics import BUDGET, REJECTED, STEPS, Topic
from headrace.schemas.wire import record_message
from tests.agents.test_open_groups import granting, rejection_of, step_of
from tests.expired import delete_before
from tests.streams.clickhouse.test_deleted_topics import recreate

pytestmark = pytest.mark.kafka


async def write(bootstrap: str, topic: Topic, *records: Record) -> None:
    async with open_producer(bootstrap) as producer:
        for record in records:
            message = record_message(record, id=uuid7(), key="k", source="test", time_ms=0, subject="s")
            await (await send(producer, topic, message))


async def waits(begin: "asyncio.Task[None]", seconds: float = 0.3) -> bool:
    done, _ = await asyncio.wait([begin], timeout=seconds)
    return not done


async def test_steps_and_rejections_in_the_log_make_room(kafka: str) -> None:
    await write(kafka, REJECTED, rejection_of("x0"))  # before it started to follow
    async with Backpressure(kafka, run="fates", limit=2) as backpressure:
        await backpressure.begin(["x0", "x1"])
        await backpressure.begin(["x2", "x3"])
        third = asyncio.create_task(backpressure.begin(["x4"]))
        assert await waits(third)
        await write(kafka, STEPS, step_of("x1", "somebody else's"))
        assert await waits(third), "half a group makes no room"
        await write(kafka, REJECTED, rejection_of("x1"), rejection_of("x0"))
        await asyncio.wait_for(third, 20)
        assert backpressure.open_groups == 2
        await backpressure.forget("x4")
        await asyncio.wait_for(backpressure.begin(["x5"]), 20)


async def test_a_waiter_that_is_cancelled_during_a_notification_stops(kafka: str) -> None:
    """In the last step of a run both happen at the same time; a lost cancellation would block the demo for ever."""
    async with Backpressure(kafka, run="stopped", limit=1) as backpressure:
        await backpressure.begin(["s0"])
        for turns in range(10):
            begin = asyncio.create_task(backpressure.begin(["s1"]))
            await asyncio.sleep(0.02)
            await backpressure.forget("nobody")
            for _ in range(turns):
                await asyncio.sleep(0)
            begin.cancel()
            assert not await waits(begin, 5), f"cancelled {turns} turns of the loop later"


async def test_the_newest_budget_of_the_run_applies_from_the_first_group(kafka: str) -> None:
    others = granting(0)
    await write(kafka, BUDGET, granting(9), granting(1), others.model_copy(update={"run": "another"}))
    async with Backpressure(kafka, run="r", limit=5) as backpressure:
        assert backpressure.allowed == 1
        await backpressure.begin(["b0"])
        second = asyncio.create_task(backpressure.begin(["b1"]))
        assert await waits(second)
        await write(kafka, BUDGET, granting(2))
        await asyncio.wait_for(second, 20)
    async with Backpressure(kafka, run="never trained", limit=5) as backpressure:
        assert backpressure.allowed == 5


async def test_conclusions_that_expire_unread_close_all_groups(kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    """As for a sampler that is frozen for longer than retention: groups that stay open for ever would stop it."""
    await write(kafka, BUDGET, granting(5))
    async with Backpressure(kafka, run="r", limit=9) as backpressure:
        for number in range(4):
            await backpressure.begin([f"e{number}"])
        async with backpressure._changed:  # it reads one record, fetches another, and takes no more
            for number in range(2):
                await write(kafka, REJECTED, rejection_of(f"e{number}"))
                await asyncio.sleep(1.5)
            await write(kafka, REJECTED, rejection_of("e2"), rejection_of("somebody else's"))
            async with open_consumer(kafka) as consumer:
                ends = await consumer.end_offsets(await partitions_of(consumer, REJECTED))
            for place, end in ends.items():
                if end:
                    await delete_before(kafka, place, end)
        while backpressure.open_groups:  # noqa: ASYNC110 - concluded by another task
            await asyncio.sleep(0.1)
        await write(kafka, REJECTED, rejection_of("e3"))
        await backpressure.begin(["e4"])
        assert backpressure.open_groups == 1
    assert "back-pressure of r: rejected[" in caplog.text
    assert "all open groups count as closed" in caplog.text


async def test_a_topic_that_is_created_again_closes_all_groups(kafka: str) -> None:
    """Conclusions at the end of the deleted topic may not have been read."""
    async with Backpressure(kafka, run="r", limit=9) as backpressure:
        for number in range(3):
            await backpressure.begin([f"n{number}"])
        await write(kafka, REJECTED, rejection_of("n0"))
        async with asyncio.timeout(60):
            while backpressure.open_groups == 3:  # noqa: ASYNC110 - concluded by another task
                await asyncio.sleep(0.1)
            await recreate(kafka, REJECTED)
            while backpressure.open_groups:  # noqa: ASYNC110 - concluded by another task
                await asyncio.sleep(0.1)


async def test_an_unreadable_record_is_skipped(kafka: str) -> None:
    async with Backpressure(kafka, run="broken", limit=1) as backpressure:
        await backpressure.begin(["y"])
        async with open_producer(kafka) as producer:
            await producer.send_and_wait(REJECTED.name, b"{", key=b"y")
        await write(kafka, REJECTED, rejection_of("y"))
        await asyncio.wait_for(backpressure.begin(["y2"]), 20)


async def test_a_long_wait_is_logged(kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Backpressure(kafka, run="long", limit=1, report_after_s=0.05) as backpressure:
        await backpressure.begin(["z"])
        second = asyncio.create_task(backpressure.begin(["z2"]))
        assert await waits(second)
        second.cancel()
    assert "no new group for 0 s, 1 of 1 allowed groups are open: is the trainer running?" in caplog.text


async def test_waiters_raise_when_the_topics_can_no_longer_be_read(kafka: str) -> None:
    async with Backpressure(kafka, run="end", limit=1) as backpressure:
        await backpressure.begin(["z"])
        second = asyncio.create_task(backpressure.begin(["z2"]))
        assert await waits(second)
    with pytest.raises(RuntimeError, match="cannot be read"):
        await second


async def test_a_sampler_stops_while_the_trainer_is_stopped_and_continues_with_it(kafka: str, tmp_path: Path) -> None:
    from headrace.trainer.config import TrainerConfig
    from headrace.trainer.loop import run_trainer
    from tests.trainer.builders import tiny_model
    from tests.trainer.feed import feed_groups, records

    config = TrainerConfig(
        kafka,
        "paced",
        tiny_model(tmp_path / "base"),
        checkpoint_dir=tmp_path / "checkpoints",
        store_url=f"file://{tmp_path}/objects",
        groups_per_step=1,
        max_staleness=1000,
        max_steps_ahead=1,
        threads=1,
    )

    @asynccontextmanager
    async def training() -> AsyncIterator[None]:
        stop = asyncio.Event()
        trainer = asyncio.create_task(run_trainer(config, stop=stop, ready=lambda: None))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(trainer, 60)

    begun = 0

    async def sample(backpressure: Backpressure) -> None:
        nonlocal begun
        while True:
            await backpressure.begin([f"paced/{begun:03d}/0", f"paced/{begun:03d}/1"])
            begun += 1
            await feed_groups(kafka, [f"{begun - 1:03d}"], run="paced", size=2)

    async def until_begun(count: int) -> None:
        async with asyncio.timeout(120):
            while begun < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async with Backpressure(kafka, run="paced", limit=4) as backpressure:
        sampler = asyncio.create_task(sample(backpressure))
        await until_begun(4)  # without a budget only its own limit applies
        for before in (4, 8):
            async with training():
                await until_begun(before + 3)
                assert backpressure.allowed == 2
            trained = len(await records(kafka, STEPS, "paced"))
            await until_begun(trained + 2)
            await asyncio.sleep(1)
            assert (begun, backpressure.open_groups) == (trained + 2, 2), "a group was begun without training"
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
