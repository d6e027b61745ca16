"""A command's requests to Kafka, which end with a sentence where the broker stays away.

The client retries without end. For a person at a terminal a second task asks the broker for its metadata every few
seconds, and ends the command once it has not answered for :data:`PATIENCE_S`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.deploy.errors import StackError
from headrace.deploy.kafka.broker import answers_within, wait_until_answers

T = TypeVar("T")

PATIENCE_S = 60.0
"""Seconds that a broker may be away in the middle of a command."""
LOOK_EVERY_S = 5.0
"""Seconds between two looks."""


def ask_kafka(
    bootstrap: str,
    ask: Callable[[], Awaitable[T]],
    *,
    passing: tuple[type[Exception], ...] = (),
    patience_s: float = PATIENCE_S,
) -> T:
    """What ``ask`` gives, of the Kafka at ``bootstrap``. Blocks; to be called where no event loop runs.

    Errors of Kafka's client become a :class:`StackError`, those in ``passing`` excepted.

    Raises :class:`StackError` naming the setting where the address is none, nothing answers there, the broker fails,
    or is away for longer than ``patience_s`` seconds meanwhile.
    """
    from aiokafka.errors import KafkaError

    # The client logs each connection that fails; what a person needs to know is in the error.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    answers: list[T] = []

    async def answer() -> None:
        answers.append(await _beside_a_watch(bootstrap, ask, patience_s))

    try:
        # Not as the result of the task that asyncio runs: restoring the handler of SIGINT renders that result as text,
        # twice, which takes a second or more where it holds 100,000 objects.
        asyncio.run(answer())
        return answers[0]
    except KafkaError as error:
        if isinstance(error, passing):
            raise
        raise StackError(
            f"The Kafka at {bootstrap} (setting HEADRACE_KAFKA) failed: {error or type(error).__name__}. Run the "
            "command again."
        ) from error
    except LookupError as error:
        if type(error) is not LookupError or isinstance(error, passing):  # an error of ours
            raise
        raise StackError(f"The Kafka at {bootstrap} (setting HEADRACE_KAFKA): {error}.") from error


async def _beside_a_watch(bootstrap: str, ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    await wait_until_answers(bootstrap)
    asking = asyncio.ensure_future(ask())
    watching = asyncio.create_task(_until_away(bootstrap, patience_s))
    try:
        await asyncio.wait({asking, watching}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
        raise StackError(
            f"The Kafka at {bootstrap} (setting HEADRACE_KAFKA) has not answered for {patience_s:g} s: check that it "
            "runs, and run the command again."
        )
    finally:
        for task in (watching, asking):
            task.cancel()
        # What it was reading with is closed, as far as that goes without a broker.
        await asyncio.wait({asking, watching}, timeout=LOOK_EVERY_S)


async def _until_away(bootstrap: str, patience_s: float) -> None:
    """Return once the broker has not answered for ``patience_s`` seconds."""
    loop = asyncio.get_running_loop()
    answered = loop.time()
    while loop.time() - answered < patience_s:
        await asyncio.sleep(min(LOOK_EVERY_S, patience_s / 4))
        if await answers_within(bootstrap, LOOK_EVERY_S):
            answered = loop.time()
