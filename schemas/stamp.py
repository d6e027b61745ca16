"""The stamp that an engine puts on the tokens it samples: the training run and the version of its weights.

A follower sets the stamp (vLLM's ``weight_version``), and agents read it from each answer::

    search-3/17           version 17 of the run search-3
    search-3/unverified   weights of the run search-3 whose version is not verified
    17                    version 17 of an unknown run: a follower of an older release

Any other text, such as vLLM's own ``default``, carries no information.
"""

import re
from dataclasses import dataclass

from headrace.schemas.bounds import MAX_COUNT

RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""Regular expression for the names of training runs; a run's name is also a folder in the object store."""

_UNVERIFIED = "unverified"
_STAMP = re.compile(rf"(?:({RUN_NAME})/)?([0-9]{{1,10}}|{_UNVERIFIED})")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Content of a stamp."""

    run: str | None = None
    """Training run; ``None`` if unknown."""
    version: int | None = None
    """Policy version; ``None`` if unknown or not verified."""


def stamp_of(run: str, version: int) -> str:
    """Return the stamp of tokens sampled by ``version`` of ``run``."""
    return f"{run}/{version}"


def unverified_stamp(run: str) -> str:
    """Return the stamp of tokens from weights of ``run`` without a verified version; such tokens are not trained."""
    return f"{run}/{_UNVERIFIED}"


def read_stamp(text: str) -> Stamp:
    """Parse ``text``; return an empty :class:`Stamp` if it has another form."""
    found = _STAMP.fullmatch(text)
    if found is None:
        return Stamp()
    run, version = found.groups()
    if version == _UNVERIFIED:
        return Stamp(run)
    return Stamp(run, int(version)) if int(version) <= MAX_COUNT else Stamp(run)
