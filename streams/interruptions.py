"""Exceptions that mean the end of a process, and those that only look like it.

    raise SystemExit(0)       # in a reward that runs a program of the model: a failure of that record, labelled
    raise KeyboardInterrupt   # by Ctrl-C: the process ends

``SystemExit``, and what pytest raises for ``skip`` and ``fail``, do not derive from ``Exception``. asyncio lets the
former out of its loop, past every handler of a worker, which then waits for ever for tasks that no longer run.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError)
"""What is never a failure of a record: a person, or the event loop, ends the work. It is always raised again."""


async def without_exits(work: Awaitable[T], name: str) -> T:
    """Returns the result of ``work``, a part of the process that ``name`` names.

    An exception that would leave the event loop, or silently end only its task, is raised as a ``RuntimeError``, so
    that it ends the process as any other bug does. A genuine cancellation of the current task is raised as it is.
    """
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise RuntimeError(f"{name} raised {type(error).__name__}: {error}") from error
