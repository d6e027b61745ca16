"""Handles outages of Kafka that last minutes: the process retries the current batch once Kafka is available again.

    commit fails ──▶ release the partitions   ──▶ wait a moment ──▶ acquire them again ──▶ the same records once more
                                                       ▲                 │ unavailable, or not assigned
                                                       └─────────────────┘

Acquiring a partition reads the committed offsets and the state: records before those offsets are skipped, the others
are folded again. So nothing is lost and nothing is published twice, whether or not the failed transaction was
committed. A partition is acquired again only while the consumer group assigns it to this process: a process that has
lost it must not fence the new owner, and waits for the rebalance.
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
from headrace.streams.interruptions import without_exits
from headrace.streams.runtime.owned_partition import OwnerChanged
from headrace.streams.runtime.processor import PartitionsRevoked

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNAVAILABLE = (KafkaError, OwnerChanged, OSError, TimeoutError)
"""Errors of a Kafka that is frozen, restarting or unreachable, and of a partition that another process owns for now."""
FATAL = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersionError,
)
"""Errors among these that a retry cannot fix."""

PAUSE_S = 1.0
"""Seconds between two attempts."""
REMIND_S = 30.0
"""Seconds between two log lines about an outage."""
GRACE_S = 10.0
"""Seconds for which work in progress may continue once the partitions are revoked."""
END_S = 30.0
"""Seconds it then has to end after cancellation: longer than a producer that does not stop may take."""


class Outages:
    """Retries work that needs Kafka until it is done or the partitions are revoked."""

    def __init__(self, name: str, lose: Callable[[], Awaitable[None]]) -> None:
        """``name``: of the processor, for the log. ``lose`` releases the partitions, to be acquired again."""
        self.revoked = asyncio.Event()
        """Set while the process has no partitions, or they are being revoked."""
        self._name = name
        self._lose = lose
        self._since: float | None = None
        self._warned_at = 0.0

    async def through(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call ``attempt`` until it succeeds, and return its result.

        Raises :class:`PartitionsRevoked` if the partitions are revoked before, and any other exception of ``attempt``.
        """
        while not self.revoked.is_set():
            try:
                done = await self._unless_revoked(attempt())
            except FATAL:
                raise
            except UNAVAILABLE as error:
                self._warn(error)
                await self._lose()
                await self._pause()
            else:
                self._over()
                return done
        raise PartitionsRevoked

    async def _unless_revoked(self, work: Coroutine[Any, Any, T]) -> T:
        task, ending = (
            asyncio.ensure_future(without_exits(work, self._name)),
            asyncio.ensure_future(self.revoked.wait()),
        )
        begin = time.monotonic()
        try:
            while not task.done() and not ending.done():
                await asyncio.wait({task, ending}, timeout=REMIND_S, return_when=asyncio.FIRST_COMPLETED)
                if not task.done() and not ending.done():
                    logger.warning(
                        "%s has been processing one batch for %.0f s: it waits for Kafka, or for judges",
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

    def _warn(self, error: BaseException) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since, self._warned_at = now, now - REMIND_S
        if now - self._warned_at >= REMIND_S:
            self._warned_at = now
            logger.warning(
                "%s has been waiting for Kafka for %.0f s; nothing is lost, and it will resume (%s: %s)",
                self._name, now - self._since, type(error).__name__, str(error)[:200],
            )  # fmt: skip

    def _over(self) -> None:
        if self._since is not None:
            logger.warning("%s resumes after %.0f s without Kafka", self._name, time.monotonic() - self._since)
            self._since = None
