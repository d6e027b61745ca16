"""Retries while a disk is full, or the object store or the broker is unavailable.

The trainer does nothing else meanwhile: the next policies could not be published and sampled from, so every further
step would be further off-policy. Its state is durable or in memory and groups stay in the log, so it resumes at the
same point. :mod:`headrace.trainer.retries.retrier` reports outages.
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
"""Seconds that a stop leaves a broker call in progress; supervisors kill after ten or more."""


class Interrupted(Exception):
    """The trainer was stopped during an outage. A restarted trainer resumes from there."""


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """Retries while a disk, the object store or the broker is unavailable."""

    first_wait_s: float = 0.5
    """Seconds before the first retry; each wait is twice the one before."""
    longest_wait_s: float = 10.0
    """Longest wait between retries, in seconds."""
    alert_after_s: float = 10.0
    """Seconds after which an outage raises an alert, once; that of a broker is published when it is back."""
    patience_s: float = 3600.0
    """Retry limit in seconds, after which the trainer ends with an error. Nothing is lost: a restarted trainer resumes.
    0: no retries."""
    answer_s: float = 30.0
    """Seconds after which a broker that does not answer is unavailable. It aborts transactions after twice as many."""

    def __post_init__(self) -> None:
        if not self.answer_s > 0:
            raise ValueError(f"outages: answer_s is {self.answer_s}: it must be above 0")
        for name in ("first_wait_s", "longest_wait_s", "alert_after_s", "patience_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"outages: {name} is {getattr(self, name)}: it must not be negative")


class OutageListener(Protocol):
    """Is notified of an outage."""

    async def waits(self, error: Exception, lasted_s: float) -> None:
        """The outage has lasted ``lasted_s`` seconds, ``error`` is the latest error; a retry follows after a pause."""

    async def ended(self, lasted_s: float) -> None:
        """The outage is over, after ``lasted_s`` seconds."""


async def retry(
    work: Callable[[], Awaitable[T]],
    trouble: type[Exception],
    settings: OutageSettings,
    stop: asyncio.Event,
    listener: OutageListener,
) -> T:
    """Returns the result of ``work``, which is retried while it raises ``trouble``.

    Raises ``trouble`` after ``patience_s``, :class:`Interrupted` if ``stop`` is set first.
    """
    began: float | None = None

    async def once() -> T:  # tenacity awaits coroutine functions only, and a lambda is none
        return await work()

    async def before_sleep(state: RetryCallState) -> None:
        nonlocal began
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Exception):
            began = state.start_time
            lasted_s = state.seconds_since_start or 0.0
            _log.warning("%s; for %.0f s so far, retrying", error, lasted_s)
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
        _log.warning("the outage is over after %.0f s", lasted_s)
        await listener.ended(lasted_s)
    return result


async def unless_stopped(work: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
    """Returns the result of ``work``, which may take :data:`STOP_GRACE_S` longer once ``stop`` is set.

    Then it is cancelled, and :class:`Interrupted` is raised: ``work`` must be cancellable at any time.
    """
    working, stopping = asyncio.ensure_future(work()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait({working}, timeout=STOP_GRACE_S)
        if not working.done():
            raise Interrupted(f"stopped, and the call did not end within {STOP_GRACE_S:g} s")
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
