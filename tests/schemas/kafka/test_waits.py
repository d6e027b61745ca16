"""Work ends in bounded time once it is to stop."""

import asyncio

import pytest

from headrace.schemas.kafka.waits import stopped_within


async def test_work_that_does_not_end_is_cancelled_some_time_after_the_stop() -> None:
    stop, ends = asyncio.Event(), list[bool]()

    async def work() -> None:
        async with stopped_within(0.05, stop):
            try:
                await asyncio.Event().wait()
            finally:
                ends.append(stop.is_set())

    working = asyncio.create_task(work())
    await asyncio.sleep(0.2)
    assert not working.done()
    stop.set()
    with pytest.raises(TimeoutError):
        await working
    assert ends == [True]


async def test_work_that_ends_by_itself_is_not_cancelled() -> None:
    stop = asyncio.Event()
    async with stopped_within(10.0, stop):
        stop.set()
        await asyncio.sleep(0)
    async with stopped_within(10.0, asyncio.Event()):
        pass
