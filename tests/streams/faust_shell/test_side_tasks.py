"""A side task that ends as a program does crashes its worker, instead of stopping its event loop for good."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.streams.faust_shell.faust_app import _SideTaskService


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
async def test_a_side_task_that_would_leave_the_event_loop_crashes_the_worker(error: BaseException) -> None:
    async def leaves(*, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        raise error

    service = _SideTaskService(leaves, lambda: None)
    await service.maybe_start()
    await asyncio.wait_for(service._crashed.wait(), 10)
    crash = service._crash_reason
    assert isinstance(crash, RuntimeError)
    assert crash.__cause__ is error
    await service.stop()
