"""Leading and following: rank 0 runs the trainer's loop and says what to do, the others do it with their share.

rank 0      step(batch) ─ STEP ─►  step(batch)  ─►  metrics
rank 1 …    follow()      STEP ─►  step(batch)
"""

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np

from headrace.schemas.records import Canary
from headrace.trainer.batches.batch import Batch
from headrace.trainer.learning.divergence import TrainingDiverged
from headrace.trainer.learning.learner import Learner
from headrace.trainer.parallel.orders import Order, broadcast_batch, hear, tell
from headrace.trainer.parallel.ranks import RankLost, Ranks, lost_ranks

_log = logging.getLogger(__name__)


class LeadingLearner(Learner):
    """Rank 0's learner: what it does, all ranks do. One thread at a time gives orders."""

    _orders = threading.Lock()

    def step(self, batch: Batch, version: int, *, norm_limit: float = math.inf) -> dict[str, float]:
        """As :meth:`Learner.step`, on all ranks; also raises :class:`RankLost`."""
        with self._ordered(Order.STEP, version):
            limit = self._ranks.from_leader(np.array([norm_limit]))
            batch = broadcast_batch(batch, self._ranks)
            return super().step(batch, version, norm_limit=float(limit[0]))

    def canaries(self, seed: int) -> list[Canary]:
        """As :meth:`Learner.canaries`, on all ranks; also raises :class:`RankLost`."""
        with self._ordered(Order.CANARIES, seed):
            return super().canaries(seed)

    def check_weights(self) -> None:
        """As :meth:`Learner.check_weights`, on all ranks; also raises :class:`RankLost`."""
        with self._ordered(Order.CHECK_WEIGHTS):
            super().check_weights()

    def write_model(self, folder: Path) -> None:
        """As :meth:`Learner.write_model`, from all ranks; also raises :class:`RankLost`."""
        with self._ordered(Order.WRITE_MODEL, text=str(folder)):
            super().write_model(folder)

    def write_optimizer(self, folder: Path) -> None:
        """As :meth:`Learner.write_optimizer`, on all ranks; also raises :class:`RankLost`."""
        with self._ordered(Order.WRITE_OPTIMIZER, text=str(folder)):
            super().write_optimizer(folder)

    def wait(self) -> None:
        """Tell the others that rank 0 is there; raises :class:`RankLost` where one of them is not."""
        with self._ordered(Order.WAIT):
            pass

    def dismiss(self) -> None:
        """Let the others end."""
        with self._ordered(Order.STOP):
            pass

    @contextlib.contextmanager
    def _ordered(self, order: Order, number: int = 0, text: str = "") -> Iterator[None]:
        with self._orders, lost_ranks(self._ranks.timeout_s):
            tell(self._ranks, order, number, text)
            yield


def follow(learner: Learner, ranks: Ranks) -> None:
    """Do what rank 0 says until it says to stop; raises :class:`RankLost` where it is silent for ``timeout_s``."""
    with lost_ranks(ranks.timeout_s):
        while True:
            order, number, text = hear(ranks)
            try:
                match order:
                    case Order.STEP:
                        limit = ranks.from_leader(np.zeros(1))
                        learner.step(broadcast_batch(None, ranks), number, norm_limit=float(limit[0]))
                    case Order.CANARIES:
                        learner.canaries(number)
                    case Order.CHECK_WEIGHTS:
                        learner.check_weights()
                    case Order.WRITE_MODEL:
                        learner.write_model(Path(text))
                    case Order.WRITE_OPTIMIZER:
                        learner.write_optimizer(Path(text))
                    case Order.STOP:
                        return
            except (TrainingDiverged, OSError) as error:
                # All ranks have met it, rank 0 too, and it decides what follows.
                _log.warning("%s on rank %d: %s", order.name, ranks.rank, error)


@contextlib.asynccontextmanager
async def leading(learner: Learner, ranks: Ranks) -> AsyncIterator[None]:
    """While inside, keep the other ranks waiting for orders, and let them go at the end.

    Raises :class:`RankLost` inside, wherever it is, as soon as one of them does not answer.
    """
    if not isinstance(learner, LeadingLearner):
        yield
        return
    inside = asyncio.current_task()
    beating = asyncio.create_task(_beat(learner, ranks.timeout_s / 4))
    beating.add_done_callback(lambda task: task.cancelled() or (inside is not None and inside.cancel()))
    try:
        yield
    except asyncio.CancelledError:
        if beating.done() and not beating.cancelled() and (lost := beating.exception()) is not None:
            if inside is not None:
                inside.uncancel()
            raise lost from None
        raise
    finally:
        if not beating.done():
            beating.cancel()
            with contextlib.suppress(RankLost):
                await asyncio.to_thread(learner.dismiss)


async def _beat(learner: LeadingLearner, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await asyncio.to_thread(learner.wait)
