"""The publisher: writes to disk, uploads and announces, in this order, and retries each of them.

position → announced                    decisions made while a step's groups are gathered
checkpoint → uploaded → announced       a step
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from headrace.schemas.objects.store import ObjectStore
from headrace.trainer.announcements.announcement import Announcement, PublishedPosition
from headrace.trainer.checkpoints.checkpoint import Checkpoint
from headrace.trainer.checkpoints.position import Position, write_position
from headrace.trainer.publishing.announcer import Announcer
from headrace.trainer.retries.retrier import Retrier
from headrace.trainer.step_effects import Effect, StepEffectCallback
from headrace.trainer.weights.publish import upload


class Publisher:
    """Makes the trainer's state durable and public. Every method can be repeated after a crash."""

    def __init__(self, announcer: Announcer, store: ObjectStore, retrier: Retrier, reached: StepEffectCallback) -> None:
        """Operations that fail are retried by ``retrier``; ``reached`` is called after each effect."""
        self._announcer = announcer
        self._store = store
        self._retrier = retrier
        self._reached = reached

    async def save(self, write: Callable[[], Awaitable[Checkpoint]], version: int) -> Checkpoint:
        """Write the checkpoint of ``version`` by ``write``, with retries.

        Raises ``CheckpointNotWritten`` if it cannot be written before the retry limit.
        """
        return await self._retrier.for_disk(write, version)

    async def commit_position(self, checkpoint: Checkpoint, position: Position) -> None:
        """Make ``position`` durable next to ``checkpoint``, then publish its announcements."""
        write = partial(asyncio.to_thread, write_position, checkpoint, position)
        await self._retrier.for_disk(write, position.version)
        self._reached(Effect.POSITION_WRITTEN, position.version + 1)
        await self.publish_position(position)

    async def publish_position(self, position: Position) -> None:
        """Publish the announcements of ``position``, if it has any."""
        if position.announcements:
            await self._announce(
                position.announcements, position.as_published, position.offsets, making=position.version + 1
            )
            self._reached(Effect.POSITION_PUBLISHED, position.version + 1)

    async def upload(self, checkpoint: Checkpoint) -> None:
        """Upload the checkpoint's version; raises ``ObjectConflict`` if the object store holds a different one."""
        version, manifest = checkpoint.state.version, checkpoint.manifest()
        await self._retrier.for_store(
            lambda: upload(self._store, manifest, checkpoint.weights, lambda at: self._reached(at, version)), version
        )

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Upload the checkpoint's version, then publish its announcements."""
        state = checkpoint.state
        await self.upload(checkpoint)
        await self._announce(state.announcements, PublishedPosition(state.version), state.offsets, making=state.version)
        self._reached(Effect.ANNOUNCED, state.version)

    async def decide(self, *, commit: bool) -> None:
        """Commit or abort the last transaction, if a broker may have left it undecided."""
        await self._retrier.for_log(lambda: self._announcer.decide(commit=commit))

    async def publish_all(self, news: Sequence[Announcement]) -> None:
        """Publish announcements that belong to no position; publishing them again changes nothing."""
        await self._announce(news)

    async def _announce(
        self,
        announcements: Sequence[Announcement],
        position: PublishedPosition | None = None,
        offsets: Mapping[int, int] | None = None,
        *,
        making: int | None = None,
    ) -> None:
        def on_effect(effect: Effect) -> None:
            if making is not None:
                self._reached(effect, making)

        await self._retrier.for_log(
            lambda: self._announcer.announce(announcements, position=position, offsets=offsets, on_effect=on_effect)
        )
