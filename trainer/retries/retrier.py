"""Retries of the trainer's disk, object store and Kafka operations, with reports of outages.

Progress shows an outage immediately. An alert is also published: for a disk or a store once the outage is long, for
Kafka itself once it is available again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

from headrace.schemas.objects.unavailable import StoreUnavailable
from headrace.schemas.records.alert import Severity
from headrace.trainer.announcements.alerts import trainer_alert
from headrace.trainer.announcements.announcement import Announcement
from headrace.trainer.checkpoints.checkpoint import CheckpointNotWritten
from headrace.trainer.progress.progress import Progress
from headrace.trainer.retries.broker import LogUnavailable
from headrace.trainer.retries.retry import STOP_GRACE_S, OutageSettings, retry, unless_stopped

_log = logging.getLogger(__name__)

T = TypeVar("T")

Publish: TypeAlias = Callable[[Sequence[Announcement]], Awaitable[None]]
"""Publishes announcements, or raises ``LogUnavailable``."""


class Retrier:
    """Retries operations until the retry limit; see :func:`retry` for other reasons to end the retries."""

    def __init__(
        self, settings: OutageSettings, publish: Publish, stop: asyncio.Event, progress: Progress, *, run: str
    ) -> None:
        """Retries end with ``stop``; ``progress`` shows outages of ``run``, and ``publish`` publishes alerts."""
        self._settings = settings
        self._publish = publish
        self._stop = stop
        self._progress = progress
        self._run = run
        self._unpublished: list[Announcement] = []
        self._log_back_at = 0.0

    async def for_disk(self, write: Callable[[], Awaitable[T]], version: int) -> T:
        """Returns the result of ``write``, a part of making ``version``; raises ``CheckpointNotWritten``."""
        return await self._retry(write, CheckpointNotWritten, _Outage(self, "checkpoint_not_written", version))

    async def for_store(self, upload: Callable[[], Awaitable[T]], version: int) -> T:
        """Returns the result of ``upload``, a part of making ``version``; raises ``StoreUnavailable``."""
        return await self._retry(upload, StoreUnavailable, _Outage(self, "object_store_unavailable", version))

    async def for_log(self, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of ``call``, which may be cancelled at any time; raises ``LogUnavailable``."""
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
        """Show in the progress that an outage has lasted ``lasted_s`` seconds; ``error`` is its latest error."""
        self._progress.outage_lasts(str(error), lasted_s)

    def is_long(self, lasted_s: float) -> bool:
        """Whether an outage of ``lasted_s`` seconds requires an alert."""
        return lasted_s >= self._settings.alert_after_s

    async def alert(self, kind: str, message: str, version: int, severity: Severity = Severity.CRITICAL) -> None:
        """Publish an alert, as soon as Kafka is available."""
        self._unpublished.append(trainer_alert(kind, message, run=self._run, version=version, severity=severity))
        await self._publish_alerts()

    async def log_is_back(self, lasted_s: float) -> None:
        """Alert that Kafka was unavailable; several calls during the same outage publish a single alert."""
        now = time.monotonic()
        if now - lasted_s >= self._log_back_at and self.is_long(lasted_s):
            self._log_back_at = now
            since = datetime.fromtimestamp(time.time() - lasted_s, UTC)
            await self.alert(
                "log_unavailable",
                f"Kafka was unavailable for {lasted_s:.0f} s from {since:%Y-%m-%d %H:%M:%S} UTC on: the trainer "
                "waited, and nothing was lost or repeated; check the brokers' logs unless the outage was planned",
                self._progress.version,
                Severity.WARNING,
            )

    async def close(self) -> None:
        """Try once more to publish the alerts that wait for Kafka; log those that still cannot be published."""
        if not self._unpublished:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                await self._publish_alerts()
        for alert in self._unpublished:
            _log.error("this alert was not published, because Kafka is unavailable: %s", alert.payload)

    async def _publish_alerts(self) -> None:
        news, self._unpublished = self._unpublished, []
        try:
            await self._publish(news)
            news = []
        except LogUnavailable as error:
            _log.warning("%d alerts wait for Kafka: %s", len(news), error)
        finally:
            self._unpublished = news + self._unpublished


class _Outage:
    """An outage of the disk or the store: an alert is published once it is long."""

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
    """An outage of Kafka: an alert is published once it ends."""

    def __init__(self, retrier: Retrier) -> None:
        self._retrier = retrier

    async def waits(self, error: Exception, lasted_s: float) -> None:
        self._retrier.show(error, lasted_s)

    async def ended(self, lasted_s: float) -> None:
        await self._retrier.log_is_back(lasted_s)
