"""What became of events inside the SDK: counted by reason and told in the log, so that a loss is never silent."""

import logging
import threading
import time
from dataclasses import dataclass
from enum import StrEnum

LOG = logging.getLogger("headrace.sdk")


class DropReason(StrEnum):
    """Why the SDK gave an event up. Each is a key of ``SdkStatsReported.dropped``."""

    QUEUE_FULL = "queue_full"
    """As many events waited as ``queue_size`` allows: the broker is down or slower than the agent."""
    QUEUE_BYTES = "queue_bytes"
    """The events that waited were as large as ``queue_bytes`` allows."""
    OVERSIZE = "oversize"
    """One event was larger than ``max_event_bytes``."""
    INVALID = "invalid"
    """The fields do not make an event of their type."""
    REFUSED = "refused"
    """The broker will not take it, whatever is tried."""
    AFTER_END = "after_end"
    """The trajectory had ended."""
    BAD_IDENTIFIER = "bad_identifier"
    """An argument that identifies the event, or its trajectory, is no identifier (``identifier.py``)."""
    NO_TRAJECTORY = "no_trajectory"
    """No trajectory was open where the event was recorded."""
    FORKED = "forked"
    """The trajectory belongs to the process that this one was forked from."""
    CLOSED = "closed"
    """The SDK had been closed."""
    UNSENT_AT_CLOSE = "unsent_at_close"
    """The deadline for the last flush passed first."""
    INTERNAL = "internal"
    """The SDK failed; the log has the error."""


class Alteration(StrEnum):
    """What was sent otherwise than the host gave it. Each is a key of ``SdkStatsReported.altered``."""

    UNSERIALISABLE = "unserialisable"
    """A value was described: it could not be read without side effects, or JSON has no form for it."""
    SURROGATE = "surrogate"
    """The text of an event was not Unicode: the broken characters became ``?``."""
    IDENTIFIER = "identifier"
    """A number was given as an identifier, and became text."""
    END_STATUS = "end_status"
    """A trajectory was ended with a status that does not exist, and ended as failed."""


REMIND_S = 60.0
"""Seconds between two lines of the log about the same reason."""


@dataclass(slots=True)
class _Count:
    """One reason."""

    total: int = 0
    told: int = 0
    told_at: float = 0.0
    why: object = ""


class Tally:
    """Counts of dropped events and altered values. Thread-safe; both are rare, so a lock costs the hot path nothing.

    The first of each reason is told in the log, and how many more there were, once a minute while there are more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dropped: dict[str, _Count] = {}
        self._altered: dict[str, _Count] = {}

    def drop(self, reason: DropReason, why: object = "", *, events: int = 1) -> None:
        """Count ``events`` as given up for ``reason``; ``why`` is for the log."""
        self._count(self._dropped, reason, why, events)

    def alter(self, kind: Alteration, why: object = "", *, values: int = 1) -> None:
        """Count ``values`` as sent otherwise than they were given."""
        self._count(self._altered, kind, why, values)

    def remind(self, *, at_once: bool = False) -> None:
        """Tell what was counted since the last line, for each reason whose last line is ``REMIND_S`` old (or any)."""
        now = time.monotonic()
        with self._lock:
            lines = [
                _line(what, reason, count, now)
                for what, counts in (("event", self._dropped), ("value", self._altered))
                for reason, count in counts.items()
                if count.told < count.total and (at_once or now - count.told_at >= REMIND_S)
            ]
        for line in lines:
            LOG.warning("%s", line)

    def dropped(self) -> dict[str, int]:
        """Reason → events given up so far."""
        with self._lock:
            return {reason: count.total for reason, count in self._dropped.items()}

    def altered(self) -> dict[str, int]:
        """Kind → values sent otherwise than they were given, so far."""
        with self._lock:
            return {kind: count.total for kind, count in self._altered.items()}

    def _count(self, counts: dict[str, _Count], reason: str, why: object, number: int) -> None:
        line, now = "", time.monotonic()
        with self._lock:
            count = counts.setdefault(reason, _Count())
            count.total, count.why = count.total + number, why
            if not count.told or now - count.told_at >= REMIND_S:
                line = _line("event" if counts is self._dropped else "value", reason, count, now)
        if line:
            LOG.warning("%s", line)


def _line(what: str, reason: str, count: _Count, now: float) -> str:
    first, new = not count.told, count.total - count.told
    count.told, count.told_at = count.total, now
    done = "dropped" if what == "event" else "sent in another form"
    why = f": {count.why}" if count.why else ""
    if first and new == 1:
        article = "an" if what == "event" else "a"
        return f"{article} {what} was {done} ({reason}){why}; how many more there are is told once a minute"
    return f"{new} {'' if first else 'more '}{what}s were {done} ({reason}), {count.total} in all{why}"
