"""What became of events inside the SDK: counted by reason, so that a loss is never silent."""

import logging
import threading
from collections import Counter
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


class Tally:
    """Counts of dropped events. Thread-safe; dropping is rare, so a lock costs the hot path nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dropped: Counter[str] = Counter()

    def drop(self, reason: DropReason, why: object = "", *, events: int = 1) -> None:
        """Count ``events`` as given up for ``reason``; the first of each reason is logged, with ``why``."""
        with self._lock:
            first = reason not in self._dropped
            self._dropped[reason] += events
        if first:
            LOG.warning("an event was dropped (%s)%s; further ones are only counted", reason, f": {why}" if why else "")

    def dropped(self) -> dict[str, int]:
        """Reason → events given up so far."""
        with self._lock:
            return dict(self._dropped)
