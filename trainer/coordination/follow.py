"""Following: every rank except 0 executes rank 0's orders on its own share."""

import logging
from pathlib import Path

import numpy as np

from headrace.trainer.checkpoints.resume import resume_learner
from headrace.trainer.coordination.orders import Order, broadcast_batch, receive_order
from headrace.trainer.learning.divergence import TrainingDiverged
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.plausibility import ImplausibleLogprobs
from headrace.trainer.learning.settings import LearnerSettings
from headrace.trainer.parallel.ranks import Ranks, lost_ranks

_log = logging.getLogger(__name__)


def follow(settings: LearnerSettings, ranks: Ranks) -> None:
    """Execute rank 0's orders until ``STOP``; raises ``RankLost`` if none arrives for ``ranks.timeout_s``."""
    learner: Learner | None = None
    with lost_ranks(ranks.timeout_s):
        while True:
            order, number, text = receive_order(ranks)
            if order == Order.STOP:
                return
            if order == Order.OPEN:
                learner = None  # before the next one is loaded: memory may hold only one
                learner = resume_learner(settings, Path(text) if text else None, ranks)
            elif learner is not None:
                _execute(learner, ranks, order, number, text)


def _execute(learner: Learner, ranks: Ranks, order: Order, number: int, text: str) -> None:
    try:
        match order:
            case Order.STEP:
                limit = ranks.broadcast(np.zeros(1))
                learner.step(broadcast_batch(None, ranks), number, norm_limit=float(limit[0]))
            case Order.CANARIES:
                learner.canaries(number)
            case Order.CHECK_WEIGHTS:
                learner.check_weights()
            case Order.WRITE_MODEL:
                learner.write_model(Path(text))
            case Order.WRITE_OPTIMIZER:
                learner.write_optimizer(Path(text))
    except (TrainingDiverged, ImplausibleLogprobs, OSError) as error:
        # All ranks raise the same error; rank 0 decides what follows.
        _log.warning("%s on rank %d: %s", order.name, ranks.rank, error)
