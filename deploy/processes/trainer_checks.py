"""Checks a trainer's requirements before it starts, and reports the errors that end one without a traceback."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError

if TYPE_CHECKING:
    from headrace.trainer.config import TrainerConfig

_TOPICS_S = 3.0
"""Seconds to wait for topics: a broker lists new topics a moment after they were created."""


def require_model_and_device(config: "TrainerConfig") -> None:
    """Raise :class:`StackError` if the base model or the device is missing."""
    import torch

    if not (config.model_dir / "config.json").is_file():
        raise StackError(
            f"model_dir {config.model_dir} is not a Hugging Face model directory: it has no config.json. "
            "`headrace base-model` and `headrace sft` create one."
        )
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise StackError(
            f"device is {config.device}, but torch finds no GPU: install the GPU's driver, or set device=cpu."
        )


async def require_topics(bootstrap: str, topics: Collection[str]) -> None:
    """Raise :class:`StackError` if Kafka does not answer, or lacks one of ``topics``."""
    from headrace.deploy.kafka.broker import wait_until_answers
    from headrace.schemas.kafka.clients import open_admin

    await wait_until_answers(bootstrap)
    missing = set(topics)
    async with open_admin(bootstrap) as admin:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOPICS_S):
                while missing := missing - set(await admin.list_topics()):  # noqa: ASYNC110  nothing signals it
                    await asyncio.sleep(0.1)
    if missing:
        names = ", ".join(sorted(missing))
        raise StackError(f"The Kafka at {bootstrap} lacks {names}: run `headrace topics --create --kafka {bootstrap}`.")


@contextmanager
def report_known_errors(process: str) -> Iterator[None]:
    """Convert errors that are known to end a trainer to :class:`StackError`, with the name of the ``process``."""
    from headrace.schemas.objects.store import ObjectConflict, ObjectMismatch
    from headrace.schemas.objects.unavailable import StoreUnavailable, StoreUnsuitable
    from headrace.trainer.checkpoints.checkpoint import CheckpointError, CheckpointNotWritten
    from headrace.trainer.learning.divergence import TrainingDiverged
    from headrace.trainer.model.architectures import UnsupportedModel
    from headrace.trainer.parallel.ranks import RankLost
    from headrace.trainer.publishing.announcer import TrainerReplaced
    from headrace.trainer.retries.broker import LogUnavailable
    from headrace.trainer.weights.signing import SigningKeyError

    try:
        yield
    except (
        CheckpointError, CheckpointNotWritten, LogUnavailable, ObjectConflict, ObjectMismatch, RankLost,
        SigningKeyError, StoreUnavailable, StoreUnsuitable, TrainerReplaced, TrainingDiverged, UnsupportedModel,
    ) as error:  # fmt: skip
        raise StackError(f"{process}: {error}") from error
