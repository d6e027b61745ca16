"""What an engine stamps on the tokens that it samples: the training run and the version of its weights.

A follower writes the stamp (vLLM's ``weight_version``), agents read it from each answer::

    search-3/17           version 17 of the run search-3
    search-3/unverified   weights of the run search-3 that are not known to be any version's
    17                    version 17 of a run that is not said: a follower of an older release

Anything else, such as vLLM's own ``default``, says nothing.
"""

import re
from dataclasses import dataclass

from headrace.schemas.bounds import MAX_COUNT

RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""What a run that is trained may be called (a regular expression): its name is a folder of the object store."""

_UNVERIFIED = "unverified"
_STAMP = re.compile(rf"(?:({RUN_NAME})/)?([0-9]{{1,10}}|{_UNVERIFIED})")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a stamp says."""

    run: str | None = None
    """Training run; ``None`` where it is not said."""
    version: int | None = None
    """Policy version; ``None`` where it is not said or not known."""


def stamp_of(run: str, version: int) -> str:
    """The stamp of tokens that ``version`` of ``run`` sampled."""
    return f"{run}/{version}"


def unverified_stamp(run: str) -> str:
    """The stamp of tokens from weights of ``run`` that are not known to be any version's: nobody trains them."""
    return f"{run}/{_UNVERIFIED}"


def read_stamp(text: str) -> Stamp:
    """What ``text`` says; an empty :class:`Stamp` where it is of another form."""
    found = _STAMP.fullmatch(text)
    if found is None:
        return Stamp()
    run, version = found.groups()
    if version == _UNVERIFIED:
        return Stamp(run)
    return Stamp(run, int(version)) if int(version) <= MAX_COUNT else Stamp(run)
