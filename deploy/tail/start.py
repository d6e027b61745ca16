"""Where `headrace tail` begins: ``beginning``, ``now``, ``-20`` (the last 20 records), ``15m`` (ago) or a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_LAST = 100_000
"""Most records that are read back: they are held in memory to be put in order."""

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Start:
    """A place to begin at; with nothing set, the beginning."""

    last: int | None = None
    """So many records before the end; 0 is the end."""
    time_ms: int | None = None
    """The first record written at this time or later, Unix milliseconds."""


def parse_start(text: str, now_ms: int) -> Start:
    """What ``text`` says, at the time ``now_ms``; raises ``ValueError`` that names what is possible."""
    if text == "beginning":
        return Start()
    if text == "now":
        return Start(last=0)
    if re.fullmatch(r"-\d{1,6}", text) and int(text[1:]) <= MAX_LAST:
        return Start(last=int(text[1:]))
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return Start(time_ms=max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is neither beginning, now, -N (the last N records, at most {MAX_LAST}), 90s, 15m, 2h or 1d "
            "(ago), nor a time as 2026-11-21T11:24:24Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Start(time_ms=max(0, int(moment.timestamp() * 1000)))
