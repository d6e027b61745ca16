"""Outages: a disk that is full, an object store or a broker that is out of reach. The trainer waits, and says so.

It does nothing else meanwhile. To train on would make no policy that anybody samples from, so every further step would
be further off-policy; what is learnt is durable or in memory, groups stay in the log, and it goes on where it was.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Interrupted(Exception):
    """The trainer was asked to stop while it waited for an outage to end. A restart goes on from there."""


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """How the trainer waits for a disk, an object store or a broker."""

    first_wait_s: float = 0.5
    """Seconds before the second try; each wait is twice the one before."""
    longest_wait_s: float = 30.0
    """Longest of these waits."""
    alert_after_s: float = 10.0
    """An outage that has lasted so many seconds raises an alert, once."""
    patience_s: float = 3600.0
    """After so many seconds the trainer gives up and ends with an error. Nothing is lost: a restart goes on."""

    def __post_init__(self) -> None:
        for name in ("first_wait_s", "longest_wait_s", "alert_after_s", "patience_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"outages: {name} is {getattr(self, name)}: it must not be negative")


async def ride_out(
    work: Callable[[], Awaitable[T]],
    trouble: type[Exception],
    settings: OutageSettings,
    stop: asyncio.Event,
    alert: Callable[[BaseException], Awaitable[None]],
) -> T:
    """The result of ``work``, which is tried again while it raises ``trouble``; ``alert`` is told of a long outage.

    Raises ``trouble`` after ``patience_s``, :class:`Interrupted` where ``stop`` comes first.
    """
    alerted = False

    async def once() -> T:  # tenacity awaits what it recognises as a coroutine function, which a lambda is not
        return await work()

    async def before_sleep(state: RetryCallState) -> None:
        nonlocal alerted
        error = state.outcome.exception() if state.outcome else None
        if error is None:
            return
        _log.warning("%s; trying again", error)
        if not alerted and (state.seconds_since_start or 0.0) >= settings.alert_after_s:
            alerted = True
            await alert(error)

    async def sleep(seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), seconds)

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
    if alerted:
        _log.warning("the outage is over")
    return result
