"""Retries of the trainer's disk, object store and Kafka operations, and who is told of an outage.

Progress shows an outage at once. An alert is published too: for a disk or a store as soon as the outage is long, for
Kafka itself once it is back.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

from headrace.schemas.records.alert import Severity
from headrace.trainer.announcements.alerts import trainer_alert
from headrace.trainer.announcements.announcement import Announcement
from headrace.trainer.checkpoints.checkpoint import CheckpointNotWritten
from headrace.trainer.progress.progress import Progress
from headrace.trainer.retries.broker import LogUnavailable
from headrace.trainer.retries.retry import OutageSettings, retry, unless_stopped
from headrace.trainer.weights.unavailable import StoreUnavailable

_log = logging.getLogger(__name__)

T = TypeVar("T")

Publish: TypeAlias = Callable[[Sequence[Announcement]], Awaitable[None]]
"""Publishes announcements, or raises ``LogUnavailable``."""


class Retrier:
    """Retries operations for as long as its settings allow; see :func:`retry` for what else ends the retries."""

    def __init__(
        self, settings: OutageSettings, publish: Publish, stop: asyncio.Event, progress: Progress, *, run: str
    ) -> None:
        """Retries end with ``stop``; ``progress`` is told of an outage of ``run`` at once, and ``publish`` alerts."""
        self._settings = settings
        self._publish = publish
        self._stop = stop
        self._progress = progress
        self._run = run
        self._unpublished: list[Announcement] = []
        self._log_back_at = 0.0

    async def for_disk(self, write: Callable[[], Awaitable[T]], version: int) -> T:
        """What ``write`` gives, which is part of making ``version``; else ``CheckpointNotWritten``."""
        return await self._retry(write, CheckpointNotWritten, _Outage(self, "checkpoint_not_written", version))

    async def for_store(self, upload: Callable[[], Awaitable[T]], version: int) -> T:
        """What ``upload`` gives, which is part of making ``version``; else ``StoreUnavailable``."""
        return await self._retry(upload, StoreUnavailable, _Outage(self, "object_store_unavailable", version))

    async def for_log(self, call: Callable[[], Awaitable[T]]) -> T:
        """What ``call`` gives, which may be cancelled at any time; else ``LogUnavailable``."""
        result = await self._retry(lambda: unless_stopped(call, self._stop), LogUnavailable, _LogOutage(self))
        if self._unpublished:
            await self._publish_alerts()
        return result

    async def _retry(
        self, work: Callable[[], Awaitable[T]], trouble: type[Exception], outage: "_Outage | _LogOutage"
    ) -> T:
        try:
            return await retry(work, trouble, self._settings, self._stop, outage)
        finally:
            self._progress.outage_ended()

    def show(self, error: Exception, lasted_s: float) -> None:
        """Show in the progress that an outage has lasted ``lasted_s`` seconds, ``error`` being its newest sign."""
        self._progress.outage_lasts(str(error), lasted_s)

    def is_long(self, lasted_s: float) -> bool:
        """Whether an outage of ``lasted_s`` seconds calls for an alert."""
        return lasted_s >= self._settings.alert_after_s

    async def alert(self, kind: str, message: str, version: int, severity: Severity = Severity.CRITICAL) -> None:
        """Publish an alert, as soon as Kafka can be reached."""
        self._unpublished.append(trainer_alert(kind, message, run=self._run, version=version, severity=severity))
        await self._publish_alerts()

    async def log_is_back(self, lasted_s: float) -> None:
        """Alert that Kafka was out of reach; of calls that met the same outage, only the first one publishes it."""
        now = time.monotonic()
        if now - lasted_s >= self._log_back_at and self.is_long(lasted_s):
            self._log_back_at = now
            since = datetime.fromtimestamp(time.time() - lasted_s, UTC)
            await self.alert(
                "log_unavailable",
                f"Kafka was out of reach for {lasted_s:.0f} s from {since:%Y-%m-%d %H:%M:%S} UTC on: the trainer "
                "waited, and nothing was lost or done twice; look at the brokers' logs if nobody restarted them",
                self._progress.version,
                Severity.WARNING,
            )

    async def _publish_alerts(self) -> None:
        news, self._unpublished = self._unpublished, []
        try:
            await self._publish(news)
        except LogUnavailable as error:
            self._unpublished = news + self._unpublished
            _log.warning("%d alerts wait for the log: %s", len(self._unpublished), error)


class _Outage:
    """One of the disk or the store: an alert is published once it is long."""

    def __init__(self, retrier: Retrier, kind: str, version: int) -> None:
        self._retrier = retrier
        self._kind = kind
        self._version = version
        self._alerted = False

    async def waits(self, error: Exception, lasted_s: float) -> None:
        self._retrier.show(error, lasted_s)
        if not self._alerted and self._retrier.is_long(lasted_s):
            self._alerted = True
            await self._retrier.alert(self._kind, f"version {self._version} waits: {error}", self._version)

    async def ended(self, lasted_s: float) -> None:
        return None


class _LogOutage:
    """One of Kafka: an alert is published once it is back."""

    def __init__(self, retrier: Retrier) -> None:
        self._retrier = retrier

    async def waits(self, error: Exception, lasted_s: float) -> None:
        self._retrier.show(error, lasted_s)

    async def ended(self, lasted_s: float) -> None:
        await self._retrier.log_is_back(lasted_s)
