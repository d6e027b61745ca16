"""One thread for the disk's work: its results, its errors, its end."""

import asyncio
import threading

import pytest

from headrace.agents.gateway.work_thread import WorkThread


async def test_work_is_done_in_order_on_one_other_thread() -> None:
    thread, seen = WorkThread("disk"), list[tuple[int, int]]()
    works = [thread.run(lambda number=number: seen.append((number, threading.get_ident()))) for number in range(20)]  # type: ignore[misc]
    await asyncio.gather(*works)
    thread.stop()
    assert [number for number, _ in seen] == list(range(20))
    assert len({ident for _, ident in seen}) == 1
    assert seen[0][1] != threading.get_ident()


async def test_an_exception_is_the_callers() -> None:
    def fail() -> None:
        raise OSError("disk full")

    thread = WorkThread("disk")
    with pytest.raises(OSError, match="disk full"):
        await thread.run(fail)
    assert await thread.run(lambda: 7) == 7
    thread.stop()


async def test_work_of_a_cancelled_caller_is_done_all_the_same() -> None:
    thread, may_go, has_gone = WorkThread("disk"), threading.Event(), threading.Event()

    def slow() -> None:
        may_go.wait(30)
        has_gone.set()

    caller = asyncio.create_task(thread.run(slow))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    may_go.set()
    assert await thread.run(has_gone.is_set)
    thread.stop()


def test_a_loop_that_ends_meanwhile_does_not_end_the_thread() -> None:
    thread, may_go = WorkThread("disk"), threading.Event()

    async def leave() -> None:
        waiting = asyncio.create_task(thread.run(lambda: may_go.wait(30)))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    may_go.set()

    async def more() -> int:
        return await thread.run(lambda: 7)

    assert asyncio.run(more()) == 7
    thread.stop()


async def test_it_ends_after_what_it_was_given() -> None:
    thread = WorkThread("disk")
    ended = await thread.run(threading.current_thread)
    thread.stop()
    await asyncio.to_thread(ended.join, 30)
    assert not ended.is_alive()
