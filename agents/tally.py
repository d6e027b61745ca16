"""What became of events inside the SDK: counted by reason and told in the log, so that a loss is never silent.

Counting takes no lock, and the log is written on another thread: the host's thread may be inside the SDK, or inside one
of its own log handlers, when a signal handler or a ``__del__`` on the same thread notes an event. A lock would then be
waited for by the thread that holds it.
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

from headrace.agents.sender_loop import GATES, Gate

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


TELLER_NAME = "headrace-sdk-log"
"""Name of the short-lived threads that write to the log."""

TELLER_RETRY_S = 1.0
"""Pause after a thread could not be started."""


class _Count:
    """One reason. Exact without a lock: advancing an iterator is one step of the interpreter, whoever interrupts it."""

    __slots__ = ("_left", "told", "told_at", "why")

    def __init__(self) -> None:
        self._left = iter(range(sys.maxsize))
        self.told = 0
        self.told_at = 0.0
        self.why: object = ""

    @property
    def total(self) -> int:
        return sys.maxsize - operator.length_hint(self._left)

    def add(self, number: int) -> None:
        if number == 1:
            next(self._left)
        else:
            deque(islice(self._left, number), maxlen=0)


class Tally:
    """Counts of dropped events and altered values. Any thread, any signal handler, any ``__del__``: nothing waits.

    The first of each reason is told in the log, and how many more there were, once a minute while there are more.
    """

    def __init__(self) -> None:
        self._dropped: dict[str, _Count] = {reason: _Count() for reason in DropReason}
        self._altered: dict[str, _Count] = {kind: _Count() for kind in Alteration}
        self._said: deque[tuple[int, str]] = deque(maxlen=1_000)
        self._due = False
        self._teller: threading.Thread | None = None
        self._teller_again_at = 0.0

    def drop(self, reason: DropReason, why: object = "", *, events: int = 1) -> None:
        """Count ``events`` as given up for ``reason``; ``why`` is for the log."""
        self._count(self._dropped[reason], why, events)

    def alter(self, kind: Alteration, why: object = "", *, values: int = 1) -> None:
        """Count ``values`` as sent otherwise than they were given."""
        self._count(self._altered[kind], why, values)

    def say(self, level: int, text: str) -> None:
        """Write ``text`` to the log with ``level`` of :mod:`logging`, soon, on another thread."""
        self._said.append((level, text))
        self._tell_soon()

    def remind(self, *, at_once: bool = False) -> None:
        """Tell what was counted since the last line, for each reason whose last line is ``REMIND_S`` old (or any).

        Writes to the log on this thread: for the SDK's own threads, and for the end.
        """
        now = time.monotonic()
        lines = []
        while self._said:
            try:
                lines.append(self._said.popleft())
            except IndexError:  # another thread took it
                break
        for what, counts in (("event", self._dropped), ("value", self._altered)):
            for reason, count in counts.items():
                total = count.total
                if count.told < total and (at_once or not count.told or now - count.told_at >= REMIND_S):
                    lines.append((logging.WARNING, _line(what, reason, count, total, now)))
        for level, line in lines:
            with suppress(
                Exception
            ):  # a handler or a filter of the host's may raise: the numbers are kept all the same
                LOG.log(level, "%s", line)

    def wait_until_told(self, timeout_s: float) -> None:
        """Wait for the thread that writes to the log, if there is one, at most ``timeout_s`` seconds."""
        teller = self._teller
        if teller is not None and teller is not threading.current_thread():
            teller.join(timeout_s)

    def dropped(self) -> dict[str, int]:
        """Reason → events given up so far."""
        return {reason: total for reason, count in self._dropped.items() if (total := count.total)}

    def altered(self) -> dict[str, int]:
        """Kind → values sent otherwise than they were given, so far."""
        return {kind: total for kind, count in self._altered.items() if (total := count.total)}

    def _count(self, count: _Count, why: object, number: int) -> None:
        count.why = why
        count.add(number)
        if not count.told or time.monotonic() - count.told_at >= REMIND_S:
            self._tell_soon()

    def _tell_soon(self) -> None:
        self._due = True
        if self._teller is not None:
            return
        now = time.monotonic()
        if now < self._teller_again_at:
            return
        self._teller_again_at = now + TELLER_RETRY_S  # nobody else starts one meanwhile; taken back once it runs
        try:
            threading.Thread(target=self._tell, name=TELLER_NAME, daemon=True).start()
        except Exception:  # noqa: BLE001 - no thread to be had: told by a later call, the sender, or at the end
            return

    def _tell(self) -> None:
        self._teller = threading.current_thread()
        gate = Gate()
        gate.enter()  # a fork waits until it is through: in the child, a handler's lock would be held for ever
        GATES.add(gate)
        try:
            while self._due:
                self._due = False
                self.remind()
                if not self._due:
                    self._teller, self._teller_again_at = None, 0.0
        finally:
            self._teller, self._teller_again_at = None, 0.0
            GATES.discard(gate)
            gate.leave()


def _line(what: str, reason: str, count: _Count, total: int, now: float) -> str:
    first, new = not count.told, total - count.told
    count.told_at, count.told = now, total
    done = "dropped" if what == "event" else "sent in another form"
    why = f": {count.why}" if count.why else ""
    if first and new == 1:
        article = "an" if what == "event" else "a"
        return f"{article} {what} was {done} ({reason}){why}; how many more there are is told once a minute"
    return f"{new} {'' if first else 'more '}{what}s were {done} ({reason}), {total} in all{why}"
