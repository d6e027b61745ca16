"""Patience: how the trainer waits for its disk, its object store and its broker, and who learns of it.

Progress shows an outage at once. A person is told by an alert in the log: of a disk or a store as soon as the outage
lasts, of the log itself once it is back.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from headrace.schemas.records.alert import Severity
from headrace.trainer.alerts import trainer_alert
from headrace.trainer.announce import Announcement, Announcer
from headrace.trainer.broker import LogUnavailable
from headrace.trainer.checkpoints.checkpoint import CheckpointNotWritten
from headrace.trainer.config import TrainerConfig
from headrace.trainer.outage import ride_out, unless_stopped
from headrace.trainer.progress.progress import Progress
from headrace.trainer.weights.unavailable import StoreUnavailable

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Patience:
    """Waits for as long as ``config.outages`` allows; see :func:`ride_out` for what else ends the waiting."""

    def __init__(self, config: TrainerConfig, announcer: Announcer, stop: asyncio.Event, progress: Progress) -> None:
        """Waiting ends with ``stop``; ``progress`` is told at once, and by ``announcer`` a person."""
        self._config = config
        self._announcer = announcer
        self._stop = stop
        self._progress = progress
        self._owed: list[Announcement] = []
        self._log_back_at = 0.0

    async def for_disk(self, write: Callable[[], Awaitable[T]], version: int) -> T:
        """What ``write`` gives, which is part of making ``version``; else ``CheckpointNotWritten``."""
        return await self._ride_out(write, CheckpointNotWritten, _Outage(self, "checkpoint_not_written", version))

    async def for_store(self, upload: Callable[[], Awaitable[T]], version: int) -> T:
        """What ``upload`` gives, which is part of making ``version``; else ``StoreUnavailable``."""
        return await self._ride_out(upload, StoreUnavailable, _Outage(self, "object_store_unavailable", version))

    async def for_log(self, call: Callable[[], Awaitable[T]]) -> T:
        """What ``call`` gives, which may be cancelled at any time; else ``LogUnavailable``."""
        result = await self._ride_out(lambda: unless_stopped(call, self._stop), LogUnavailable, _LogOutage(self))
        if self._owed:
            await self._tell_owed()
        return result

    async def _ride_out(
        self, work: Callable[[], Awaitable[T]], trouble: type[Exception], outage: "_Outage | _LogOutage"
    ) -> T:
        try:
            return await ride_out(work, trouble, self._config.outages, self._stop, outage)
        finally:
            self._progress.outage_ended()

    def seems(self, error: Exception, lasted_s: float) -> None:
        """An outage has lasted ``lasted_s`` seconds, by ``error``."""
        self._progress.outage_lasts(str(error), lasted_s)

    def is_long(self, lasted_s: float) -> bool:
        """Whether a person should know of an outage of ``lasted_s`` seconds."""
        return lasted_s >= self._config.outages.alert_after_s

    async def alert(self, kind: str, message: str, version: int, severity: Severity = Severity.CRITICAL) -> None:
        """Tell a person, as soon as the log can be told."""
        run = self._config.run
        self._owed.append(trainer_alert(kind, message, run=run, version=version, severity=severity))
        await self._tell_owed()

    async def log_is_back(self, lasted_s: float) -> None:
        """Tell a person that the log was away; of calls that met the same outage, the first one tells."""
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

    async def _tell_owed(self) -> None:
        news, self._owed = self._owed, []
        try:
            await self._announcer.announce(news)
        except LogUnavailable as error:
            self._owed = news + self._owed
            _log.warning("%d alerts wait for the log: %s", len(self._owed), error)


class _Outage:
    """One of the disk or the store: told once it has lasted."""

    def __init__(self, patience: Patience, kind: str, version: int) -> None:
        self._patience = patience
        self._kind = kind
        self._version = version
        self._told = False

    async def waits(self, error: Exception, lasted_s: float) -> None:
        self._patience.seems(error, lasted_s)
        if not self._told and self._patience.is_long(lasted_s):
            self._told = True
            await self._patience.alert(self._kind, f"version {self._version} waits: {error}", self._version)

    async def ended(self, lasted_s: float) -> None:
        return None


class _LogOutage:
    """One of the log: told once it is back."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    async def waits(self, error: Exception, lasted_s: float) -> None:
        self._patience.seems(error, lasted_s)

    async def ended(self, lasted_s: float) -> None:
        await self._patience.log_is_back(lasted_s)
