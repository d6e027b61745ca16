"""Swapping a policy version into a serving engine, and asking the engine whether it took.

    compare canaries → pause → start, load, finish → forget prefixes → resume → compare canaries

Requests in flight stand still and go on with the new weights. Keys and values that the old weights computed are all
dropped while nothing runs, those of running requests too: a token's log-probability after the swap is exactly that of
the version it is stamped with. Whatever goes wrong, the engine is never left paused, and never left with weights
that nobody vouches for under a version's name: it then stamps them ``unverified``, which is trained by nobody.
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
    """Make the engine serve the safetensors ``file`` as ``version`` of ``run``; returns the seconds that requests stood
    still.

    Raises :class:`headrace.trainer.follower.engine.EngineError` with the engine running, if it runs at all, and its
    tokens stamped as unverified.
    """
    await engine.allow_folder(file.parent)
    began = time.perf_counter()
    await engine.pause()
    try:
        await _start_update(engine)
        await engine.load(file, sha256)
        await engine.finish_update(stamp_of(run, version))
        await engine.forget_prefixes()
    except (VllmEngineError, asyncio.CancelledError):
        await release_unverified(engine, run)
        raise
    await engine.resume()
    return time.perf_counter() - began


async def release_unverified(engine: VllmEngine, run: str) -> None:
    """Let a paused engine of ``run`` go on with weights that may be half of one version and half of another."""
    await engine.label(unverified_stamp(run))
    await engine.resume()


async def ask(engine: VllmEngine, canaries: Sequence[Canary], times: int) -> list[LogprobRows]:
    """What the engine answers about ``canaries``, asked ``times`` times, one after the other."""
    return [rows_of(await score_all(engine, [canary.token_ids for canary in canaries])) for _ in range(times)]


async def _start_update(engine: VllmEngine) -> None:
    try:
        await engine.start_update()
    except EngineRefused as error:
        # A follower that died in the middle of an update left it open; closing it loads nothing.
        logger.warning("closing a weight update that somebody left open: %s", error)
        await engine.finish_update()
        await engine.start_update()
