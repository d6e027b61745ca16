"""Coroutines that are started eagerly behave like tasks."""

import asyncio

import pytest

from headrace.streams.faust_shell.eager import EagerTask


async def test_a_coroutine_that_never_waits_is_done_immediately() -> None:
    async def three() -> int:
        return 3

    begun = EagerTask(three())
    assert begun.done
    assert await begun == 3


async def test_a_waiting_coroutine_continues_in_its_own_task() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
    first, second = EagerTask(queue.put(1)), EagerTask(queue.put(2))
    assert (first.done, second.done) == (True, False)
    task = asyncio.ensure_future(second)
    assert await queue.get() == 1
    await task
    assert await queue.get() == 2


async def test_exceptions_are_raised_when_awaited() -> None:
    async def fails(*, late: bool) -> None:
        if late:
            await asyncio.sleep(0)
        raise LookupError("planted")

    with pytest.raises(LookupError, match="planted"):
        EagerTask(fails(late=False))
    with pytest.raises(LookupError, match="planted"):
        await EagerTask(fails(late=True))


async def test_a_cancellation_reaches_the_coroutine() -> None:
    ends = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    task = asyncio.ensure_future(EagerTask(waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]
