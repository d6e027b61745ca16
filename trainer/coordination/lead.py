"""Leading: rank 0 runs the trainer's loop, and the other ranks repeat each operation of its learner.

    rank 0      learner.step(batch) ─ STEP ─►  its share  ─►  metrics
    rank 1 …    follow()              STEP ─►  its share

A single process sends no orders and uses a plain learner.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from headrace.schemas.records.weights import Canary
from headrace.trainer.batches.batch import Batch
from headrace.trainer.checkpoints.resume import resume_learner
from headrace.trainer.coordination.orders import Order, broadcast_batch, send_order
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.settings import LearnerSettings
from headrace.trainer.parallel.ranks import RankLost, Ranks, lost_ranks


class Leader:
    """Sends rank 0's orders to the other ranks, from one thread at a time."""

    def __init__(self, ranks: Ranks) -> None:
        """The leader of ``ranks``, created on rank 0."""
        self.ranks = ranks
        self._order_lock = threading.Lock()

    def open_learner(self, settings: LearnerSettings, checkpoint: Path | None) -> Learner:
        """Returns a learner on all ranks that resumes from ``checkpoint``, or begins with the base model.

        The other ranks release the learner before it first. Raises :class:`RankLost`.
        """
        if self.ranks.count == 1:
            return resume_learner(settings, checkpoint)
        with self.ordered(Order.OPEN, text=str(checkpoint or "")):
            return resume_learner(settings, checkpoint, self.ranks, make=partial(LeadingLearner, self))

    @contextlib.contextmanager
    def ordered(self, order: Order, number: int = 0, text: str = "") -> Iterator[None]:
        """Send an order; the caller executes its own part of it inside. Raises :class:`RankLost`."""
        with self._order_lock, lost_ranks(self.ranks.timeout_s):
            send_order(self.ranks, order, number, text)
            yield

    def wait(self) -> None:
        """Send the other ranks a heartbeat; raises :class:`RankLost` if one of them does not answer."""
        with self.ordered(Order.WAIT):
            pass

    def dismiss(self) -> None:
        """Stop the other ranks; raises :class:`RankLost` if one of them has ended already."""
        with self.ordered(Order.STOP):
            pass

    @contextlib.asynccontextmanager
    async def heartbeats(self) -> AsyncIterator[None]:
        """Send the other ranks heartbeats while inside, and stop them at the end.

        Raises :class:`RankLost` inside, at any await, as soon as one of them does not answer.
        """
        if self.ranks.count == 1:
            yield
            return
        inside = asyncio.current_task()
        assert inside is not None  # a coroutine runs in a task
        beats = asyncio.create_task(self._send_heartbeats())
        beats.add_done_callback(lambda task: task.cancelled() or inside.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if beats.done() and not beats.cancelled() and (lost := beats.exception()) is not None:
                inside.uncancel()
                raise lost from None
            raise
        finally:
            if not beats.done():
                beats.cancel()
                with contextlib.suppress(RankLost):
                    await asyncio.to_thread(self.dismiss)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.ranks.timeout_s / 4)
            await asyncio.to_thread(self.wait)


class LeadingLearner(Learner):
    """Rank 0's learner: all ranks execute its operations together."""

    def __init__(
        self,
        leader: Leader,
        model: PreTrainedModel,
        settings: LearnerSettings,
        reference: PreTrainedModel | None,
        ranks: Ranks,
    ) -> None:
        """As :class:`Learner`; ``leader`` sends its operations to the other ranks."""
        super().__init__(model, settings, reference, ranks)
        self._leader = leader

    def step(self, batch: Batch, version: int, *, norm_limit: float = math.inf) -> dict[str, float]:
        """As :meth:`Learner.step`, on all ranks; also raises :class:`RankLost`."""
        with self._leader.ordered(Order.STEP, version):
            limit = self._ranks.broadcast(np.array([norm_limit]))
            batch = broadcast_batch(batch, self._ranks)
            return super().step(batch, version, norm_limit=float(limit[0]))

    def canaries(self, seed: int) -> list[Canary]:
        """As :meth:`Learner.canaries`, on all ranks; also raises :class:`RankLost`."""
        with self._leader.ordered(Order.CANARIES, seed):
            return super().canaries(seed)

    def check_weights(self) -> None:
        """As :meth:`Learner.check_weights`, on all ranks; also raises :class:`RankLost`."""
        with self._leader.ordered(Order.CHECK_WEIGHTS):
            super().check_weights()

    def write_model(self, folder: Path) -> None:
        """As :meth:`Learner.write_model`, from all ranks; also raises :class:`RankLost`."""
        with self._leader.ordered(Order.WRITE_MODEL, text=str(folder)):
            super().write_model(folder)

    def write_optimizer(self, folder: Path) -> None:
        """As :meth:`Learner.write_optimizer`, on all ranks; also raises :class:`RankLost`."""
        with self._leader.ordered(Order.WRITE_OPTIMIZER, text=str(folder)):
            super().write_optimizer(folder)
