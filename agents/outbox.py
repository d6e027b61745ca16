"""Encoded events on their way to Kafka: in memory while Kafka takes them, on disk while it does not.

    Kafka answers      encoder ─────────────────────────────▶ delivery ──▶ broker
    Kafka is away      encoder ──▶ behind ──fsync──▶ spool       (what is in flight stays in memory)
    Kafka is back      encoder ──▶ behind ──fsync──▶ spool ──▶ delivery ──▶ broker

While the spool is in use every event takes that way, so events stay in order. What waits or is in flight when it begins
is written, too: a process that is killed loses only the events since the last fsync. Events that ended processes left
are sent after the process's own, while Kafka answers.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headrace.agents.counters import LOG_INTERVAL_S, DropReason, SdkCounters
from headrace.agents.delivery import EventDelivery, Offered, Ticket
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, SpooledRecord
from headrace.agents.spool_segments import Segment, Taken
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.topics import Topic
from headrace.schemas.wire import Message

T = TypeVar("T")

SPOOL_AFTER_S: Final = 3.0
"""Events go to disk once none has been acknowledged for this many seconds, or when they fill half of the queue."""

COMMIT_S: Final = 0.05
"""Time for which events gather for an fsync, in seconds."""

RETRY_S: Final = 1.0
"""Pause after a spool was full or could not be used."""

ADOPT_S: Final = 30.0
"""Time between two searches for events of ended processes."""

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Events of this size, in bytes, or an eighth of what may be in memory, are written without waiting for more."""

WINDOW, WINDOW_BYTES = 500, 1024 * 1024
"""Most events of the spool that are read ahead into memory, and their size in bytes."""

FIRST_ADOPTED: Final[Ticket] = 1 << 62
"""Adopted events have tickets from here on: they are sent after all others, and no flush waits for them."""


class Outbox:
    """Passes encoded events to ``delivery``, by way of the spool if need be. All methods run on the sender's thread,
    but any thread may read the counts."""

    def __init__(
        self,
        delivery: EventDelivery,
        spool: Spool | None,
        counters: SdkCounters,
        queue_size: int,
        queue_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``spool``: ``None`` if it is turned off. ``queue_size``, ``queue_bytes``: limits of what is in memory, which
        the caller keeps. ``clock``: seconds."""
        self.behind: deque[Offered] = deque()
        """Events in memory that are not passed to the delivery, because older ones are on disk."""
        self.behind_bytes = 0
        """Their size in bytes."""
        self.replayed = 0
        """Number of events that were on disk and have been acknowledged, or refused, since."""
        self.adopted = 0
        """Number of events of ended processes that were taken from disk."""
        self.is_full = False
        """Whether the spool did not take all events at the last attempt."""
        self._delivery = delivery
        self._spool = spool
        self._counters = counters
        self._queue_size = queue_size
        self._queue_bytes = queue_bytes
        self._window = max(1, min(WINDOW, queue_size // 4))
        self._batch = max(1, queue_size // 8)
        self._batch_bytes = max(1, min(BATCH_BYTES, queue_bytes // 8))
        self._window_bytes = max(1, min(WINDOW_BYTES, queue_bytes // 4))
        self._clock = clock
        self._is_spooling = False
        self._segments: dict[Ticket, Segment] = {}
        self._adopted_tickets = itertools.count(FIRST_ADOPTED)
        self._commit_at = self._retry_at = self._adopt_at = 0.0
        self._is_adopting = False
        self._left = 0
        self._report_at = 0.0

    @property
    def spooled(self) -> int:
        """Number of events on disk that are not in memory."""
        return self._left if self._spool is None else self._spool.waiting

    @property
    def has_spool(self) -> bool:
        """Whether there is a spool, which is not closed."""
        return self._spool is not None

    def offer(self, ticket: Ticket, topic: Topic, message: Message) -> None:
        """Accept ``message`` for delivery; it is sent after all messages with a smaller ``ticket``."""
        if not self._is_spooling:
            self._delivery.offer(ticket, topic.name, message)
            if self._spool is not None and self._is_delivery_using(0.5) and self._clock() >= self._retry_at:
                self._begin()
            return
        self._hold(ticket, topic.name, message)
        is_batch = len(self.behind) >= self._batch or self.behind_bytes >= self._batch_bytes
        if is_batch and self._clock() >= self._retry_at:
            self._save()

    def resolved_up_to(self, ticket: Ticket) -> bool:
        """Return whether every event up to ``ticket`` is acknowledged or dropped; one on disk is not."""
        if self._left:
            return False
        if self._spool is not None and (oldest := self._spool.oldest_tag) is not None and oldest <= ticket:
            return False
        if self.behind and self.behind[0][0] <= ticket:
            return False
        return self._delivery.resolved_up_to(ticket)

    def resolve(self, ticket: Ticket) -> None:
        """Note that an event of the delivery is acknowledged or dropped: its copy on disk is not needed."""
        segment = self._segments.pop(ticket, None)
        if segment is not None:
            self.replayed += 1
            self._attempt(lambda spool: spool.done(segment))
            self._refill()

    def tick(self) -> None:
        """Do what is due: begin or end the use of the spool, write, read, adopt. To be called a few times a second."""
        if self._spool is None:
            return
        now = self._clock()
        if now < self._retry_at:
            return
        if self._is_spooling:
            if self.behind and now >= self._commit_at:
                self._save()
            self._refill()
        elif self._delivery.stalled_s > SPOOL_AFTER_S:
            self._begin()
        elif self._delivery.producer is not None:
            if now >= self._adopt_at:
                self._adopt_at = now + ADOPT_S
                self._attempt(lambda spool: spool.adopt())
            self._refill()

    def finish(self) -> int:
        """Write everything that was not acknowledged to disk and close the spool; return how many events are there.

        What does not fit stays in memory. Only to be called when the delivery has ended.
        """
        spool = self._spool
        if spool is None:
            return 0
        on_disk = self._delivery.withdraw(self._segments.__contains__)
        if self._delivery.pending or self.behind:
            self._begin()
        self._left = spool.waiting + len(on_disk)
        self._attempt(lambda each: each.close())
        self._spool = None
        self._segments.clear()
        if self._left:
            self._counters.log(
                logging.WARNING,
                f"{self._left} events were not sent; they are in {spool.path}, and the next process with the same "
                "user and Kafka address sends them",
            )
        return self._left

    def forget(self) -> None:
        """Close the spool's files in a forked child, to which neither the files nor the events belong."""
        if self._spool is not None:
            self._spool.forget()

    def count_loss(self, path: str, loss: Loss) -> None:
        """Count and log a part of a file that cannot be read."""
        if self._is_adopting:
            self.adopted += loss.records
        if loss.records:
            what = "an incomplete end" if loss.is_torn else "damage"
            why = f"{path} has {what} at byte {loss.offset:,}: {loss.size:,} bytes are not read"
            self._counters.drop(DropReason.SPOOL_DAMAGED, why, events=loss.records)
        else:
            self._report(f"a file of the spool is not used: {path}")

    def _is_delivery_using(self, share: float) -> bool:
        """Return whether the delivery holds ``share`` of what may be in memory."""
        pending, size = self._delivery.pending, self._delivery.pending_bytes
        return pending >= share * self._queue_size or size >= share * self._queue_bytes

    def _begin(self) -> None:
        """Write to disk what is in memory only; from now on events go there. If that fails, nothing changes."""
        in_flight = [each for each in self._delivery.in_flight() if each[0] not in self._segments]
        waiting = self._delivery.withdraw(lambda ticket: ticket not in self._segments)
        later = list(self.behind)
        self.behind.clear()
        self.behind_bytes = 0
        for offered in (*waiting, *later):
            self._hold(*offered)
        while in_flight and not self.spooled and (written := self._append(in_flight, held=True)):
            self._segments.update((each[0], segment) for each, segment in zip(in_flight, written, strict=False))
            del in_flight[: len(written)]
        self._save()
        self._is_spooling = self._is_spooling or bool(self.spooled) or not self.behind
        if not self._is_spooling:
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass the events behind the spool to the delivery: nothing older is on disk only."""
        while self.behind:
            ticket, topic, message = self.behind.popleft()
            self._delivery.offer(ticket, topic, message)
        self.behind_bytes = 0
        self._is_spooling = False

    def _hold(self, ticket: Ticket, topic: str, message: Message) -> None:
        if len(message.value) > MAX_REQUEST_BYTES:
            self._counters.drop(DropReason.REFUSED, f"topic {topic}: no broker takes {len(message.value):,} bytes")
            return
        self.behind.append((ticket, topic, message))
        self.behind_bytes += len(message.value)

    def _save(self) -> None:
        """Append the events behind the spool to it, as far as they fit."""
        self._commit_at = self._clock() + COMMIT_S
        while self.behind:
            batch, size = list[Offered](), 0
            for offered in self.behind:
                if size >= BATCH_BYTES:
                    break
                batch.append(offered)
                size += len(offered[2].value)
            written = len(self._append(batch, held=False))
            for _ in range(written):
                self.behind_bytes -= len(self.behind.popleft()[2].value)
            if not written:
                break

    def _append(self, events: Sequence[Offered], *, held: bool) -> list[Segment]:
        """Append the first of ``events``, and return their segments; none if they do not fit or the disk fails."""
        records = [SpooledRecord(topic, m.key, m.value, tuple(m.headers)) for _, topic, m in events]
        tickets = [ticket for ticket, _, _ in events]
        written = self._attempt(lambda spool: spool.append(records, tickets, held=held, partly=True))
        if written is None:
            return []
        self.is_full = not written
        if self.is_full:
            self._retry_at = self._clock() + RETRY_S
        return written

    def _refill(self) -> None:
        """Read events of the spool into memory, if there is room; stop using the spool once it has been read."""
        delivery = self._delivery
        room = self._window - delivery.waiting
        if room < self._window / 2 or delivery.stalled_s > SPOOL_AFTER_S:
            return
        # Events that the client has taken count, too: a client without a connection takes some for each partition.
        if self._is_delivery_using(0.5) or (delivery.waiting and delivery.pending_bytes >= self._window_bytes):
            return
        if self._is_spooling:
            self._offer_taken(self._attempt(lambda spool: spool.take(room, self._window_bytes)) or [])
            if not self.spooled and not self._is_delivery_using(0.25):
                self._pass_on()
        elif self._spool is not None and self._spool.has_adopted:
            self._is_adopting = True
            self._offer_taken(self._attempt(lambda spool: spool.take_adopted(room, self._window_bytes)) or [])
            self._is_adopting = False

    def _offer_taken(self, taken: Sequence[Taken]) -> None:
        for each in taken:
            record, ticket = each.record, each.tag
            if ticket is None:
                ticket = next(self._adopted_tickets)
                self.adopted += 1
            self._segments[ticket] = each.segment
            message = Message(record.key or b"", record.value or b"", list(record.headers))
            self._delivery.offer(ticket, record.topic, message)

    def _attempt(self, use: Callable[[Spool], T]) -> T | None:
        """Return ``use(spool)``; if the disk or the folder fails, log that and return ``None``."""
        if self._spool is None:
            return None
        try:
            return use(self._spool)
        except OSError as error:
            self._retry_at = self._clock() + RETRY_S
            self._report(
                f"the spool in {self._spool.path} cannot be used ({error}): events wait in memory, up to queue_size "
                "and queue_bytes"
            )
            return None

    def _report(self, text: str) -> None:
        """Log a problem, once a minute."""
        now = self._clock()
        if now >= self._report_at:
            self._report_at = now + LOG_INTERVAL_S
            self._counters.log(logging.WARNING, text)
