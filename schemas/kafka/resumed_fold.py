"""Folds over topics that resume from a stored state, or start with the log if there is no usable state."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.schemas.kafka.bookmarks import LogReplacedError, Marks, cluster_id
from headrace.schemas.kafka.fold_cache import FoldIdentity, UnusableFoldError, read_fold, write_fold

logger = logging.getLogger(__name__)


class Fold(Protocol):
    """A fold and its position in the log."""

    async def catch_up(self) -> None:
        """Fold all records to the end of the log at the time of the call; raise :class:`LogReplacedError` if the fold
        was computed from another log."""

    @property
    def marks(self) -> Marks:
        """Its position right after a complete :meth:`catch_up`."""


F = TypeVar("F", bound=Fold)


async def resume_fold(
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
    """Return the fold ``name`` of the Kafka at ``bootstrap``, caught up, and store it in ``folder`` (``None``: do not
    store it).

    The fold resumes from the state in ``folder``, by ``resume``, which may raise :class:`UnusableFoldError`. It starts
    with the log, by ``begin``, if ``from_start`` is set, if there is no stored state, or if that state belongs to other
    code or to another log. Raises the errors of ``catch_up``; an unusable ``folder`` only causes a warning.
    """
    cluster = await cluster_id(bootstrap) if folder is not None else None
    if folder is None or cluster is None:
        fold = begin()
        await fold.catch_up()
        return fold
    identity = FoldIdentity(name, cluster, code)
    resumed: F | None = None
    if not from_start:
        try:
            found = read_fold(folder, identity)
            resumed = None if found is None else resume(found[1], found[0])
        except (UnusableFoldError, OSError) as error:
            logger.warning("reading the log from the start: the stored fold %r cannot be used: %s", name, error)
    fold = resumed or begin()
    try:
        await fold.catch_up()
    except LogReplacedError as error:
        logger.warning("reading the log from the start: %s", error)
        fold = begin()
        await fold.catch_up()
    try:
        if not write_fold(folder, identity, fold.marks, pack(fold)):
            logger.warning("the fold %r is too large to be stored: the next process reads the whole log", name)
    except OSError as error:
        logger.warning("the fold %r cannot be stored; the next process reads the whole log: %s", name, error)
    return fold
