"""A fold over topics that goes on where it was kept, or begins with the log where it cannot."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.schemas.kafka.bookmarks import LogReplacedError, Marks, cluster_id
from headrace.schemas.kafka.kept_fold import FoldIdentity, UnusableFoldError, read_fold, write_fold

logger = logging.getLogger(__name__)


class Fold(Protocol):
    """A fold and how far it goes."""

    async def catch_up(self) -> None:
        """Fold everything to the end as of now; raises :class:`LogReplacedError` where it was of another log."""

    @property
    def marks(self) -> Marks:
        """How far it goes, right after a whole :meth:`catch_up`."""


F = TypeVar("F", bound=Fold)


async def read_on(
    bootstrap: str,
    folder: Path | None,
    name: str,
    code: str,
    *,
    begin: Callable[[], F],
    resume: Callable[[bytes, Marks], F],
    pack: Callable[[F], bytes],
    from_start: bool = False,
) -> F:
    """The fold ``name`` of the Kafka at ``bootstrap``, caught up, and kept in ``folder`` (``None``: not kept).

    It goes on from what ``folder`` keeps of an earlier one, by ``resume``, which may raise :class:`UnusableFoldError`.
    It begins anew, by ``begin``, where that is wanted (``from_start``), nothing is kept, the code is another, or the
    log is not the one that was read then. Raises what ``catch_up`` raises; not where ``folder`` cannot be used.
    """
    cluster = await cluster_id(bootstrap) if folder is not None else None
    if folder is None or cluster is None:
        fold = begin()
        await fold.catch_up()
        return fold
    identity = FoldIdentity(name, cluster, code)
    kept: F | None = None
    if not from_start:
        try:
            found = read_fold(folder, identity)
            kept = None if found is None else resume(found[1], found[0])
        except (UnusableFoldError, OSError) as error:
            logger.warning("the log is read from the start: the fold %r that was kept %s", name, error)
    fold = kept or begin()
    try:
        await fold.catch_up()
    except LogReplacedError as error:
        logger.warning("the log is read from the start: %s", error)
        fold = begin()
        await fold.catch_up()
    try:
        if not write_fold(folder, identity, fold.marks, pack(fold)):
            logger.warning("the fold %r is too large to be kept: the next one begins with the log", name)
    except OSError as error:
        logger.warning("the fold %r is not kept, and the next one begins with the log: %s", name, error)
    return fold
