"""Counts of the events that the SDK dropped and of the values that it altered, by reason. They are also logged, so that
no loss is silent.

Counting takes no lock, and log lines are written on another thread. The host's thread may be inside the SDK, or inside
one of the host's log handlers, when a signal handler or a ``__del__`` on the same thread emits an event; with a lock,
the thread would wait for itself.
"""

import logging
import operator
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from types import FunctionType

from headrace.agents.sender_loop import GATES, Gate
from headrace.agents.spool_frames import Loss

LOG = logging.getLogger("headrace.sdk")


class DropReason(StrEnum):
    """Why the SDK dropped an event. Each value is a key of ``SdkStatsReported.dropped``."""

    QUEUE_FULL = "queue_full"
    """``queue_size`` events were already waiting in memory: the agent is faster than the sender, or the broker is
    unavailable and there is no spool."""
    QUEUE_BYTES = "queue_bytes"
    """The events waiting in memory had reached ``queue_bytes``."""
    SPOOL_FULL = "spool_full"
    """The broker is unavailable, the spool had reached ``spool_bytes`` or the disk was full, and so was the queue."""
    SPOOL_DAMAGED = "spool_damaged"
    """A file of the spool could not be read, or not to its end."""
    OVERSIZE = "oversize"
    """The event was larger than ``max_event_bytes``."""
    INVALID = "invalid"
    """The fields are not valid for the type of the event."""
    REFUSED = "refused"
    """The broker refuses the event, and a retry cannot change that."""
    AFTER_END = "after_end"
    """The trajectory had ended."""
    BAD_IDENTIFIER = "bad_identifier"
    """An argument that identifies the event or its trajectory is not a valid identifier (``identifier.py``)."""
    BAD_ARGUMENT = "bad_argument"
    """An argument has a name that the method does not know, or a value that the start of a trajectory, or a tool's
    arguments, cannot have (``arguments.py``)."""
    BAD_CONSENT = "bad_consent"
    """The ``consent`` of the trajectory is not a :class:`~headrace.agents.consent.Consent`, so none is assumed."""
    NO_TRAJECTORY = "no_trajectory"
    """No trajectory was open where the event was emitted."""
    FORKED = "forked"
    """The trajectory belongs to the parent of this forked process."""
    CLOSED = "closed"
    """The SDK had been closed."""
    UNSENT_AT_CLOSE = "unsent_at_close"
    """The deadline of the final flush passed, and the spool could not take the events."""
    INTERNAL = "internal"
    """The SDK failed; the error is in the log."""


class Alteration(StrEnum):
    """How a sent value differs from what the host gave. Each value is a key of ``SdkStatsReported.altered``."""

    UNSERIALISABLE = "unserialisable"
    """A description replaced a value that cannot be read without side effects or represented in JSON."""
    SURROGATE = "surrogate"
    """The text of an event was not valid Unicode; ``?`` replaced the invalid characters."""
    IDENTIFIER = "identifier"
    """A number was given as an identifier and converted to text."""
    END_STATUS = "end_status"
    """A trajectory ended with an unknown status, which was replaced by ``failed``."""
    TOKENS_HIDDEN = "tokens_hidden"
    """A model call was sent without its tokens, because their text must be hidden, or is not known."""
    MASKING_FAILED = "masking_failed"
    """A text was hidden whole, because masking it failed or took too long. Counted by event."""


LOG_INTERVAL_S = 60.0
"""Seconds between two log lines about the same reason."""


LOG_THREAD_NAME = "headrace-sdk-log"
"""Name of the short-lived threads that write to the log."""

LOG_THREAD_RETRY_S = 1.0
"""Seconds before another attempt to start such a thread."""


class _Counter:
    """Counter of one reason. It is exact without a lock because advancing an iterator is one atomic step of the
    interpreter."""

    __slots__ = ("_left", "logged", "logged_at", "why")

    def __init__(self) -> None:
        self._left = iter(range(sys.maxsize))
        self.logged = 0
        self.logged_at = 0.0
        self.why: object | None = None
        """Cause of the first one since the last line; ``None`` if there was none."""

    @property
    def total(self) -> int:
        return sys.maxsize - operator.length_hint(self._left)

    def add(self, number: int) -> None:
        if number == 1:
            next(self._left)
        else:
            deque(islice(self._left, number), maxlen=0)


class SdkCounters:
    """Counters of dropped events and altered values. They may be used from any thread, signal handler or ``__del__``:
    no call blocks.

    The first occurrence of each reason is logged; further occurrences are summed up in one line per minute, with the
    cause of the first of them.
    """

    def __init__(self) -> None:
        self._dropped: dict[str, _Counter] = {reason: _Counter() for reason in DropReason}
        self._altered: dict[str, _Counter] = {kind: _Counter() for kind in Alteration}
        self._lines: deque[tuple[int, str]] = deque(maxlen=1_000)
        self._logged_once: set[str] = set()
        self._due = False
        self._log_thread: threading.Thread | None = None
        self._start_thread_at = 0.0

    def drop(self, reason: DropReason, why: object = "", *, events: int = 1) -> None:
        """Count ``events`` as dropped for ``reason``; ``why`` is for the log: a text, or a function that returns it,
        which is called only for the first of the events that a line of the log is about."""
        self._count(self._dropped[reason], why, events)

    def drop_damaged(self, path: str, loss: Loss) -> None:
        """Count the events of ``loss``, a part of a spool's segment file at ``path``, as dropped."""
        why = f"{path} cannot be read from byte {loss.offset:,} on: {loss.size:,} bytes"
        self.drop(DropReason.SPOOL_DAMAGED, why, events=loss.records)

    def alter(self, kind: Alteration, why: object = "", *, values: int = 1) -> None:
        """Count ``values`` as sent in another form than they were given."""
        self._count(self._altered[kind], why, values)

    def log(self, level: int, text: str) -> None:
        """Log ``text`` with ``level`` of :mod:`logging`, soon, on another thread."""
        self._lines.append((level, text))
        self._log_soon()

    def log_once(self, level: int, text: str) -> None:
        """Log ``text`` as :meth:`log` does, at its first call with it; two threads at once may both log it."""
        if text not in self._logged_once:
            self._logged_once.add(text)
            self.log(level, text)

    def log_counts(self, *, all_reasons: bool = False) -> None:
        """Log what was counted since the previous line, for each reason whose previous line is ``LOG_INTERVAL_S`` old,
        or for ``all_reasons``.

        Writes to the log on the calling thread, which is one of the SDK's own threads, or any at the end.
        """
        now = time.monotonic()
        lines = []
        while self._lines:
            try:
                lines.append(self._lines.popleft())
            except IndexError:  # another thread took it
                break
        for what, counters in (("event", self._dropped), ("value", self._altered)):
            for reason, counter in counters.items():
                total, due = counter.total, now - counter.logged_at >= LOG_INTERVAL_S
                if counter.logged < total and (all_reasons or not counter.logged or due):
                    lines.append((logging.WARNING, _line(what, reason, counter, total, now)))
        for level, line in lines:
            with suppress(Exception):  # a handler or a filter of the host may raise; the counters are still correct
                LOG.log(level, "%s", line)

    def wait_until_logged(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds for the thread that writes to the log, if there is one."""
        thread = self._log_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def dropped(self) -> dict[str, int]:
        """Return the number of dropped events by reason."""
        return {reason: total for reason, counter in self._dropped.items() if (total := counter.total)}

    def altered(self) -> dict[str, int]:
        """Return the number of altered values by kind."""
        return {kind: total for kind, counter in self._altered.items() if (total := counter.total)}

    def _count(self, counter: _Counter, why: object, number: int) -> None:
        if counter.why is None:
            counter.why = why() if isinstance(why, FunctionType) else why
        counter.add(number)
        if not counter.logged or time.monotonic() - counter.logged_at >= LOG_INTERVAL_S:
            self._log_soon()

    def _log_soon(self) -> None:
        self._due = True
        if self._log_thread is not None:
            return
        now = time.monotonic()
        if now < self._start_thread_at:
            return
        self._start_thread_at = now + LOG_THREAD_RETRY_S  # no other call starts one meanwhile; reset once it runs
        try:
            threading.Thread(target=self._write_log, name=LOG_THREAD_NAME, daemon=True).start()
        except Exception:  # noqa: BLE001 - no thread available: a later call, the sender or close() logs the lines
            return

    def _write_log(self) -> None:
        self._log_thread = threading.current_thread()
        gate = Gate()
        gate.enter()  # a fork waits until this thread has finished: else a handler's lock stays held in the child
        GATES.add(gate)
        try:
            while self._due:
                self._due = False
                self.log_counts()
                if not self._due:
                    self._log_thread, self._start_thread_at = None, 0.0
        finally:
            self._log_thread, self._start_thread_at = None, 0.0
            GATES.discard(gate)
            gate.leave()


def _line(what: str, reason: str, counter: _Counter, total: int, now: float) -> str:
    first, new = not counter.logged, total - counter.logged
    counter.logged_at, counter.logged = now, total
    done = "dropped" if what == "event" else "sent in another form"
    cause, counter.why = counter.why, None
    why = "" if cause in (None, "") else f": {cause}"
    if first and new == 1:
        article = "an" if what == "event" else "a"
        return f"{article} {what} was {done} ({reason}){why}; further ones are counted and logged once a minute"
    return f"{new} {'' if first else 'more '}{what}s were {done} ({reason}), {total} in total{why}"
