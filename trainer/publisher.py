"""The publisher: makes durable, uploads and announces, in this order, and waits where one of them cannot be done.

position → announced                    what was decided while a step's groups were gathered
checkpoint → uploaded → announced       a step
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from headrace.trainer.announce import Announcement, Announcer, Said
from headrace.trainer.checkpoints.checkpoint import Checkpoint
from headrace.trainer.checkpoints.position import Position, write_position
from headrace.trainer.effects import Effect, Reached
from headrace.trainer.patience import Patience
from headrace.trainer.weights.publish import upload
from headrace.trainer.weights.store import ObjectStore


class Publisher:
    """What the trainer leaves outside of its memory. Every method can be repeated after a crash."""

    def __init__(self, announcer: Announcer, store: ObjectStore, patience: Patience, reached: Reached) -> None:
        """Waits with ``patience``; each effect is told to ``reached``."""
        self._announcer = announcer
        self._store = store
        self._patience = patience
        self._reached = reached

    async def save(self, write: Callable[[], Awaitable[Checkpoint]], version: int) -> Checkpoint:
        """The checkpoint of ``version`` that ``write`` makes.

        Raises ``CheckpointNotWritten`` where the disk did not take it within the outage's patience.
        """
        return await self._patience.for_disk(write, version)

    async def settle(self, checkpoint: Checkpoint, position: Position) -> None:
        """Make ``position`` durable beside ``checkpoint``, then say what it has to say."""
        write = partial(asyncio.to_thread, write_position, checkpoint, position)
        await self._patience.for_disk(write, position.version)
        self._reached(Effect.SETTLED, position.version + 1)
        await self.tell(position)

    async def tell(self, position: Position) -> None:
        """Say what ``position`` has to say."""
        if position.announcements:
            await self._announce(position.announcements, position.said, position.offsets, making=position.version + 1)
            self._reached(Effect.TOLD, position.version + 1)

    async def upload(self, checkpoint: Checkpoint) -> None:
        """Have the checkpoint's version in the object store; raises ``ObjectConflict`` where it holds another one."""
        version, manifest = checkpoint.state.version, checkpoint.manifest()
        await self._patience.for_store(
            lambda: upload(self._store, manifest, checkpoint.weights, lambda at: self._reached(at, version)), version
        )

    async def publish(self, checkpoint: Checkpoint) -> None:
        """Upload the checkpoint's version, then tell of it."""
        state = checkpoint.state
        await self.upload(checkpoint)
        await self._announce(state.announcements, Said(state.version), state.offsets, making=state.version)
        self._reached(Effect.ANNOUNCED, state.version)

    async def decide(self, *, commit: bool) -> None:
        """Commit or abort what a broker may have left undecided of what was said last."""
        await self._patience.for_log(lambda: self._announcer.decide(commit=commit))

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

        await self._patience.for_log(
            lambda: self._announcer.announce(announcements, said=said, offsets=offsets, told=told)
        )
