"""Start positions of `headrace tail`: ``beginning``, ``now``, ``-20`` (the last 20), ``15m`` (ago) or a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_LAST = 100_000
"""Largest N of ``-N``: these records are held in memory for sorting."""

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A position to start at; without any field, the first offset."""

    last: int | None = None
    """Number of records before the end; 0 is the end."""
    time_ms: int | None = None
    """The first record written at this time or later, Unix milliseconds."""


def parse_start(text: str, now_ms: int) -> StartPosition:
    """Parse ``text`` at the time ``now_ms``; raises ``ValueError`` that lists the valid forms."""
    if text == "beginning":
        return StartPosition()
    if text == "now":
        return StartPosition(last=0)
    if re.fullmatch(r"-\d{1,6}", text) and int(text[1:]) <= MAX_LAST:
        return StartPosition(last=int(text[1:]))
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return StartPosition(time_ms=max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is neither beginning, now, -N (the last N records, at most {MAX_LAST}), 90s, 15m, 2h or 1d "
            "(ago), nor a time such as 2026-11-21T11:24:24Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return StartPosition(time_ms=max(0, int(moment.timestamp() * 1000)))
