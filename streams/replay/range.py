"""The part of the log that a replay reads, and its bounds as users write them: times or offsets.

    2026-11-20   2026-11-20T08:30:00Z   7d   12h   30m        a time; the last three count back from now
    0:7104,1:6998                                             offsets by partition; other partitions are not read

A range is read as if it were the whole log. Trajectories and groups that may have begun before it, or are still open at
its end, are left out and counted.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from headrace.schemas.side_topics import OffsetRange

Bound: TypeAlias = int | Mapping[int, int]
"""A time in Unix milliseconds, or offsets by partition."""

_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*")
_AGO = re.compile(r"(\d+)([dhm])")
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000}


def parse_bound(text: str, now_ms: int) -> Bound:
    """Parse ``text``, which has one of the forms above. Raises a ``ValueError`` that names them."""
    if _OFFSETS.fullmatch(text):
        places = [place.split(":") for place in text.split(",")]
        offsets = {int(partition): int(offset) for partition, offset in places}
        if len(offsets) < len(places):
            raise ValueError(f"{text!r} names a partition twice")
        return offsets
    if ago := _AGO.fullmatch(text):
        return max(0, now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is neither a time (2026-11-20T08:30:00Z), nor a time ago (7d, 12h, 30m), "
            "nor offsets by partition (0:7104,1:6998)"
        ) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def span_of(
    partition: int, begin: int, end: int, start: Mapping[int, int] | None, stop: Mapping[int, int] | None
) -> OffsetRange | None:
    """Returns the range of a partition that holds ``[begin, end)``; ``start`` and ``stop`` are offsets by partition.

    Returns ``None`` if offsets are given, but none of this partition. Raises ``ValueError`` if they are outside of what
    the partition holds: a range that does not exist cannot be replayed.
    """
    if any(bound is not None and partition not in bound for bound in (start, stop)):
        return None
    first = begin if start is None else start[partition]
    last = end if stop is None else stop[partition]
    if not begin <= first <= end or not begin <= last <= end:
        raise ValueError(
            f"partition {partition} holds the offsets {begin} to {end}; {first} to {last} is not among them"
        )
    return OffsetRange(partition=partition, start=first, stop=max(first, last), begins_log=first == 0)
