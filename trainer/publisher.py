"""The publisher: makes durable, uploads and announces, in this order, and waits where one of them cannot be done.

position → announced                    what was decided while a step's groups were gathered
checkpoint → uploaded → announced       a step
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from headrace.trainer.alerts import trainer_alert
from headrace.trainer.announce import Announcement, AnnouncementAborted, Announcer, Said
from headrace.trainer.checkpoints.checkpoint import Checkpoint, CheckpointNotWritten
from headrace.trainer.checkpoints.position import Position, write_position
from headrace.trainer.config import TrainerConfig
from headrace.trainer.effects import Effect, Reached
from headrace.trainer.outage import ride_out
from headrace.trainer.weights.publish import upload
from headrace.trainer.weights.store import ObjectStore
from headrace.trainer.weights.unavailable import StoreUnavailable


class Publisher:
    """What the trainer leaves outside of its memory. Every method can be repeated after a crash."""

    def __init__(
        self, config: TrainerConfig, announcer: Announcer, store: ObjectStore, stop: asyncio.Event, reached: Reached
    ) -> None:
        """Waiting ends with ``stop``; each effect is told to ``reached``."""
        self._config = config
        self._announcer = announcer
        self._store = store
        self._stop = stop
        self._reached = reached

    async def save(self, write: Callable[[], Awaitable[Checkpoint]], version: int) -> Checkpoint:
        """The checkpoint of ``version`` that ``write`` makes.

        Raises ``CheckpointNotWritten`` where the disk did not take it within the outage's patience.
        """
        return await ride_out(
            write,
            CheckpointNotWritten,
            self._config.outages,
            self._stop,
            partial(self._alert, "checkpoint_not_written", version),
        )

    async def settle(self, checkpoint: Checkpoint, position: Position) -> None:
        """Make ``position`` durable beside ``checkpoint``, then say what it has to say."""
        await ride_out(
            partial(asyncio.to_thread, write_position, checkpoint, position),
            CheckpointNotWritten,
            self._config.outages,
            self._stop,
            partial(self._alert, "checkpoint_not_written", position.version),
        )
        self._reached(Effect.SETTLED, position.version + 1)
        await self.tell(position)

    async def tell(self, position: Position) -> None:
        """Say what ``position`` has to say."""
        if position.announcements:
            await self._announce(position.announcements, position.said, position.offsets, making=position.version + 1)
            self._reached(Effect.TOLD, position.version + 1)

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Upload the checkpoint's version, then tell of it."""
        state = checkpoint.state
        manifest = checkpoint.manifest()
        await ride_out(
            lambda: upload(self._store, manifest, checkpoint.weights, lambda at: self._reached(at, state.version)),
            StoreUnavailable,
            self._config.outages,
            self._stop,
            partial(self._alert, "object_store_unavailable", state.version),
        )
        await self._announce(state.announcements, Said(state.version), state.offsets, making=state.version)
        self._reached(Effect.ANNOUNCED, state.version)

    async def tell_all(self, news: Sequence[Announcement]) -> None:
        """Say what no position rests on: saying it again changes nothing."""
        await self._announce(news)

    async def _announce(
        self,
        announcements: Sequence[Announcement],
        said: Said | None = None,
        offsets: Mapping[int, int] | None = None,
        *,
        making: int | None = None,
    ) -> None:
        def told(effect: Effect) -> None:
            if making is not None:
                self._reached(effect, making)

        await ride_out(
            lambda: self._announcer.announce(announcements, said=said, offsets=offsets, told=told),
            AnnouncementAborted,
            self._config.outages,
            self._stop,
            _not_told,  # the log that would take an alert is what is missing
        )

    async def _alert(self, kind: str, version: int, error: BaseException) -> None:
        message = f"version {version} waits: {error}"
        await self._announcer.announce([trainer_alert(kind, message, run=self._config.run, version=version)])


async def _not_told(_: BaseException) -> None:
    """Nobody can be."""
