"""Kafka is frozen, or away, for minutes: what was under way is done again when it is back, in the same process.

    commit fails ──▶ release the partitions   ──▶ wait a moment ──▶ acquire them again ──▶ the same records once more
                                                       ▲                 │ still away, or not ours
                                                       └─────────────────┘

What was settled is in the committed offsets and the state, which taking a partition reads: records before those offsets
are passed over, the others are folded again. So nothing is lost and nothing said twice, whether the failed transaction
was committed or not. A partition is only taken again while the consumer group says that it is ours: whoever has been
replaced must not fence the one who replaced him, and waits for the rebalance to be told.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersionError,
)

from headrace.schemas.kafka.waits import end_task
from headrace.streams.runtime.owned_partition import OwnerChanged
from headrace.streams.runtime.processor import PartitionsRevoked

logger = logging.getLogger(__name__)

T = TypeVar("T")

AWAY = (KafkaError, OwnerChanged, OSError, TimeoutError)
"""What a Kafka that is frozen, restarting or cut off raises, and a partition that is another's for now."""
HOPELESS = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersionError,
)
"""Of these, what waiting does not mend."""

PAUSE_S = 1.0
"""Between two tries."""
REMIND_S = 30.0
"""How often an operator is told."""
GRACE_S = 10.0
"""How long what is under way may go on once the partitions are asked back."""
END_S = 30.0
"""How long it then has to end: longer than a producer may take that does not stop by itself."""


class Outages:
    """Does what needs Kafka until it is done, or until the partitions are asked back."""

    def __init__(self, name: str, lose: Callable[[], Awaitable[None]]) -> None:
        """``name``: of the processor, for the log. ``lose`` lets go of the partitions, to be taken again."""
        self.revoked = asyncio.Event()
        """Set while the partitions are nobody's, or being asked back."""
        self._name = name
        self._lose = lose
        self._since: float | None = None
        self._told = 0.0

    async def through(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``attempt`` returns, at the first time that Kafka lets it.

        Raises :class:`PartitionsRevoked` where the partitions are asked back before, and whatever else it raises.
        """
        while not self.revoked.is_set():
            try:
                done = await self._unless_revoked(attempt())
            except HOPELESS:
                raise
            except AWAY as error:
                self._tell(error)
                await self._lose()
                await self._pause()
            else:
                self._over()
                return done
        raise PartitionsRevoked

    async def _unless_revoked(self, work: Coroutine[Any, Any, T]) -> T:
        task, ending = asyncio.ensure_future(work), asyncio.ensure_future(self.revoked.wait())
        begin = time.monotonic()
        try:
            while not task.done() and not ending.done():
                await asyncio.wait({task, ending}, timeout=REMIND_S, return_when=asyncio.FIRST_COMPLETED)
                if not task.done() and not ending.done():
                    logger.warning(
                        "%s has been at one batch for %.0f s: it waits for Kafka, or for judges",
                        self._name, time.monotonic() - begin,
                    )  # fmt: skip
            if not task.done():
                await asyncio.wait({task}, timeout=GRACE_S)
            if not task.done():
                raise PartitionsRevoked
            return task.result()
        finally:
            ending.cancel()
            await end_task(task, END_S)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await self.revoked.wait()

    def _tell(self, error: BaseException) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since, self._told = now, now - REMIND_S
        if now - self._told >= REMIND_S:
            self._told = now
            logger.warning(
                "%s waits for Kafka, for %.0f s now; nothing is lost, and it goes on by itself (%s: %s)",
                self._name, now - self._since, type(error).__name__, str(error)[:200],
            )  # fmt: skip

    def _over(self) -> None:
        if self._since is not None:
            logger.warning("%s goes on, after %.0f s without Kafka", self._name, time.monotonic() - self._since)
            self._since = None
