"""Retries: a disk that is full, an object store or a broker that is out of reach are tried again until they are back.

The trainer does nothing else meanwhile. To train on would make no policy that anybody samples from, so every further
step would be further off-policy; what is learnt is durable or in memory, groups stay in the log, and it goes on where
it was. :mod:`headrace.trainer.retries.retrier` publishes what is known of an outage.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_GRACE_S = 5.0
"""What a stop leaves a call to the broker that is under way, in seconds: supervisors kill after ten and more."""


class Interrupted(Exception):
    """The trainer was asked to stop while it waited for an outage to end. A restart goes on from there."""


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """How the trainer waits for a disk, an object store or a broker."""

    first_wait_s: float = 0.5
    """Seconds before the second try; each wait is twice the one before."""
    longest_wait_s: float = 10.0
    """Longest of these waits."""
    alert_after_s: float = 10.0
    """An outage that has lasted so many seconds raises an alert, once. Of a broker it is told when it is back."""
    patience_s: float = 3600.0
    """After so many seconds the trainer gives up and ends with an error. Nothing is lost: a restart goes on. 0: at the
    first failure."""
    answer_s: float = 30.0
    """A broker that has not answered for so many seconds is away. It ends what was begun after twice as many."""

    def __post_init__(self) -> None:
        if not self.answer_s > 0:
            raise ValueError(f"outages: answer_s is {self.answer_s}: it must be above 0")
        for name in ("first_wait_s", "longest_wait_s", "alert_after_s", "patience_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"outages: {name} is {getattr(self, name)}: it must not be negative")


class OutageListener(Protocol):
    """Who is told of an outage."""

    async def waits(self, error: Exception, lasted_s: float) -> None:
        """It has lasted ``lasted_s`` seconds, ``error`` being the newest sign of it; after a pause it tries again."""

    async def ended(self, lasted_s: float) -> None:
        """It is over."""


async def retry(
    work: Callable[[], Awaitable[T]],
    trouble: type[Exception],
    settings: OutageSettings,
    stop: asyncio.Event,
    listener: OutageListener,
) -> T:
    """The result of ``work``, which is tried again while it raises ``trouble``.

    Raises ``trouble`` after ``patience_s``, :class:`Interrupted` where ``stop`` comes first.
    """
    began: float | None = None

    async def once() -> T:  # tenacity awaits what it recognises as a coroutine function, which a lambda is not
        return await work()

    async def before_sleep(state: RetryCallState) -> None:
        nonlocal began
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Exception):
            began = state.start_time
            lasted_s = state.seconds_since_start or 0.0
            _log.warning("%s; for %.0f s, trying again", error, lasted_s)
            await listener.waits(error, lasted_s)

    async def sleep(seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(trouble),
        wait=wait_exponential(settings.first_wait_s, settings.longest_wait_s),
        stop=lambda state: stop.is_set() or stop_after_delay(settings.patience_s)(state),
        before_sleep=before_sleep,
        sleep=sleep,
        reraise=True,
    )
    try:
        result: T = await retrying(once)
    except trouble as error:
        if stop.is_set():
            raise Interrupted(str(error)) from error
        raise
    if began is not None:
        lasted_s = time.monotonic() - began
        _log.warning("the outage is over, after %.0f s", lasted_s)
        await listener.ended(lasted_s)
    return result


async def unless_stopped(work: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
    """The result of ``work``, which may take :data:`STOP_GRACE_S` more once ``stop`` is set.

    Raises :class:`Interrupted` where it takes longer, after cancelling it: only for what can be cancelled at any time.
    """
    working, stopping = asyncio.ensure_future(work()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait({working}, timeout=STOP_GRACE_S)
        if not working.done():
            raise Interrupted(f"asked to stop, and nothing came for {STOP_GRACE_S:g} s")
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
