"""Swapping a policy version into a serving engine, and scoring canaries before and after.

    score canaries → pause → start, load, finish → reset prefix cache → resume → score canaries

Requests in flight are paused and resume with the new weights. All keys and values that the old weights computed are
dropped in between, also those of running requests, so a token's log-probability after the swap is exactly that of the
version it is stamped with. After any failure the engine runs again, and tokens from unverified weights are stamped
``unverified``, which excludes them from training.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.schemas.records.weights import Canary
from headrace.schemas.stamp import stamp_of, unverified_stamp
from headrace.trainer.follower.engine import EngineRefused, VllmEngine, VllmEngineError, score_all
from headrace.trainer.follower.verdict import LogprobRows, rows_of

logger = logging.getLogger(__name__)


async def swap(engine: VllmEngine, run: str, version: int, file: Path, sha256: str) -> float:
    """Make the engine serve the safetensors ``file`` as ``version`` of ``run``; returns the seconds of the pause.

    Raises :class:`headrace.trainer.follower.engine.VllmEngineError`; the engine is then resumed, if it is alive, and
    its tokens are stamped as unverified.
    """
    await engine.allow_folder(file.parent)
    began = time.perf_counter()
    await engine.pause()
    try:
        await _start_update(engine)
        await engine.load(file, sha256)
        await engine.finish_update(stamp_of(run, version))
        await engine.reset_prefix_cache()
    except (VllmEngineError, asyncio.CancelledError):
        await release_unverified(engine, run)
        raise
    await engine.resume()
    return time.perf_counter() - began


async def release_unverified(engine: VllmEngine, run: str) -> None:
    """Resume a paused engine of ``run``, whose weights may be a mixture of two versions, as unverified."""
    await engine.label(unverified_stamp(run))
    await engine.resume()


async def score_canaries(engine: VllmEngine, canaries: Sequence[Canary], times: int) -> list[LogprobRows]:
    """Returns the engine's log-probabilities of ``canaries``, scored ``times`` times in sequence."""
    return [rows_of(await score_all(engine, [canary.token_ids for canary in canaries])) for _ in range(times)]


async def _start_update(engine: VllmEngine) -> None:
    try:
        await engine.start_update()
    except EngineRefused as error:
        # A follower that died during an update left it open; closing it loads nothing.
        logger.warning("closing a weight update that was left open: %s", error)
        await engine.finish_update()
        await engine.start_update()
