"""Runs the Kafka requests of a command, and ends them with an error message if the broker stays unavailable.

The client retries forever. For commands, a second task requests the broker's metadata every few seconds, and ends the
command once the broker has not answered for :data:`RETRY_LIMIT_S`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.deploy.errors import StackError
from headrace.deploy.kafka.broker import answers_within, wait_until_answers

T = TypeVar("T")

RETRY_LIMIT_S = 60.0
"""Seconds for which a broker may be unavailable during a command."""
CHECK_EVERY_S = 5.0
"""Interval between two metadata requests, in seconds."""


def run_with_kafka(
    bootstrap: str,
    work: Callable[[], Awaitable[T]],
    *,
    passing: tuple[type[Exception], ...] = (),
    retry_limit_s: float = RETRY_LIMIT_S,
) -> T:
    """Returns the result of ``work``, which uses the Kafka at ``bootstrap``. Blocks; call it without an event loop.

    Errors of Kafka's client become a :class:`StackError`, except for those in ``passing``.

    Raises :class:`StackError` that names the setting if the address is invalid, nothing answers there, the broker
    fails, or the broker is unavailable for longer than ``retry_limit_s`` seconds.
    """
    from aiokafka.errors import KafkaError

    # The client logs every failed connection, but the error message is enough for the user.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    results: list[T] = []

    async def run() -> None:
        results.append(await _watched(bootstrap, work, retry_limit_s))

    try:
        # The result is not returned from the task: asyncio.run restores the handler of SIGINT, which renders the task's
        # result as text twice and takes a second or more for 100,000 objects.
        asyncio.run(run())
        return results[0]
    except KafkaError as error:
        if isinstance(error, passing):
            raise
        raise StackError(
            f"The Kafka at {bootstrap} (setting HEADRACE_KAFKA) failed: {error or type(error).__name__}. Run the "
            "command again."
        ) from error
    except LookupError as error:
        if type(error) is not LookupError or isinstance(error, passing):  # A KeyError or IndexError is a bug.
            raise
        raise StackError(f"The Kafka at {bootstrap} (setting HEADRACE_KAFKA): {error}.") from error


async def _watched(bootstrap: str, work: Callable[[], Awaitable[T]], retry_limit_s: float) -> T:
    await wait_until_answers(bootstrap)
    working = asyncio.ensure_future(work())
    watching = asyncio.create_task(_until_unavailable(bootstrap, retry_limit_s))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise StackError(
            f"The Kafka at {bootstrap} (setting HEADRACE_KAFKA) has not answered for {retry_limit_s:g} s: check that "
            "the broker runs, and run the command again."
        )
    finally:
        for task in (watching, working):
            task.cancel()
        # Give the work time to close its clients, as far as that is possible without a broker.
        await asyncio.wait({working, watching}, timeout=CHECK_EVERY_S)


async def _until_unavailable(bootstrap: str, retry_limit_s: float) -> None:
    """Return once the broker has not answered for ``retry_limit_s`` seconds."""
    loop = asyncio.get_running_loop()
    answered = loop.time()
    while loop.time() - answered < retry_limit_s:
        await asyncio.sleep(min(CHECK_EVERY_S, retry_limit_s / 4))
        if await answers_within(bootstrap, CHECK_EVERY_S):
            answered = loop.time()
