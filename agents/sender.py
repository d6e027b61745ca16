"""The background thread between the host and Kafka: a bounded queue in, acknowledged records out.

    host thread: put(note) ──deque──▶ sender thread: encode ──▶ EventDelivery ──▶ broker

The host's thread only appends to the queue. Validation, serialisation and all I/O run on the sender's thread, in an
event loop of its own.

``put`` and ``stats`` take no lock and write no log line, because a signal handler or a ``__del__`` may emit an event
while the same thread is inside them.
"""

import asyncio
import itertools
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiokafka.errors import KafkaError

from headrace.agents.client_log import THREAD_NAME, limit_client_log
from headrace.agents.counters import LOG, Alteration, DropReason, SdkCounters
from headrace.agents.delivery import EventDelivery
from headrace.agents.encoding import InvalidEvent, Note, NoteFields, encode_note
from headrace.agents.json_form import LABEL, TooLarge
from headrace.agents.process_end import call_at_end
from headrace.agents.sender_loop import GATES, Gate, SenderLoop, place_of
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import SdkStatsReported
from headrace.schemas.ids import uuid7
from headrace.schemas.topics import SDK_STATS
from headrace.schemas.wire import encode

CHUNK = 16
"""Events encoded before the thread releases the GIL: the host waits no longer for it than these take."""

IDLE_MIN_S, IDLE_MAX_S = 0.005, 0.1
"""Pauses between checks of the queue, growing while it is empty. Waking the thread would cost the host 5-10 µs."""

POLL_S = 0.005
"""Pause between checks whether a flush is complete."""

STATS_S = 1.0
"""Longest wait for the acknowledgement of a statistics record."""

CLOSE_S = 6.0
"""Longest wait for the thread to end after its final flush. It ends immediately unless a connection hangs."""

STALLED_S = 30.0
"""A thread that has not waited for I/O for this many seconds is stalled, which is logged."""

RESTART_S = 1.0
"""Pause before the thread's work restarts after a failure; it doubles with each failure, up to a minute."""

START_AGAIN_S = 1.0
"""Pause between two attempts to start the thread."""

NEVER_QUEUED = {
    DropReason.QUEUE_FULL,
    DropReason.AFTER_END,
    DropReason.BAD_IDENTIFIER,
    DropReason.NO_TRAJECTORY,
    DropReason.FORKED,
    DropReason.CLOSED,
    DropReason.INTERNAL,
}
"""Reasons for which an event is dropped on the host's thread."""


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """Settings of the sender."""

    bootstrap: str
    """Kafka address, ``host:port``, several separated by commas."""
    source: str
    """Name of the emitting program: ``ce_source``, and the key of its statistics."""
    queue_size: int = 10_000
    """Largest number of waiting events, encoded or not, in addition to the one that is being encoded."""
    queue_bytes: int = 64 * 1024 * 1024
    """Largest total size of waiting encoded events, in bytes."""
    max_event_bytes: int = 1024 * 1024
    """Size of the largest event in bytes, serialised."""
    flush_deadline_s: float = 5.0
    """Longest wait for the final flush."""
    stats_interval_s: float = 10.0
    """Seconds between two records in ``sdk-stats``."""
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the aiokafka producer: security, timeouts."""


class Sender:
    """The queue and the thread of one process. A forked child gets its own."""

    def __init__(self, config: SenderConfig, counters: SdkCounters) -> None:
        self.config = config
        self.counters = counters
        self.refusal: DropReason | None = None
        """Reason for which all further events are dropped; ``None`` while open."""
        self._queue: deque[NoteFields] = deque()
        self._limit = config.queue_size
        self._delivery = EventDelivery(config.bootstrap, config.kafka_options, counters)
        self._tickets = itertools.count()
        self._taken = 0
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._running: dict[str, tuple[threading.Thread, asyncio.AbstractEventLoop]] = {}
        self._start_again_at = 0.0
        self._closes_at_exit = False
        self._gate = Gate()
        self._stall_logged_at = 0.0

    def put(self, note: NoteFields) -> None:
        """Queue the fields of a :class:`Note`, or count them as dropped. Never blocks; callable from any thread."""
        queue = self._queue
        if len(queue) + self._delivery.pending >= self._limit:
            self._check_for_stall()
            self.counters.drop(DropReason.QUEUE_FULL, f"{self._limit} events wait for {self.config.bootstrap}")
            return
        queue.append(note)
        if not self._running:
            self._start()
        elif self._gate.busy_since:
            self._check_for_stall()

    def stats(self) -> SdkStatsReported:
        """Return the counts since the start of the process. They are exact while no event is emitted; callable from any
        thread."""
        dropped = self.counters.dropped()
        never_queued = sum(count for reason, count in dropped.items() if reason in NEVER_QUEUED)
        waiting = len(self._queue)
        return SdkStatsReported(
            emitted=self._taken + waiting + never_queued,
            sent=self._delivery.sent,
            queued=waiting + self._delivery.pending,
            dropped=dropped,
            altered=self.counters.altered(),
        )

    def flush(self, timeout_s: float) -> bool:
        """Wait until all events put so far are acknowledged or dropped; return ``False`` if ``timeout_s`` passed
        first."""
        self._check_for_stall()
        if self._queue and not self._running:
            self._start()
        thread, loop = self._thread_and_loop()
        if thread is None or loop is None or not thread.is_alive():
            return not self._queue
        waiting = asyncio.run_coroutine_threadsafe(self._wait_until_flushed(time.monotonic() + timeout_s), loop)
        try:
            return waiting.result(timeout_s + 1.0)
        except (FutureTimeoutError, CancelledError):
            return False

    def close(self, timeout_s: float) -> bool:
        """Refuse further events, flush, send the final statistics and end the thread; return ``False`` if events were
        left unsent."""
        if self.refusal is not None:
            return True
        self.refusal = DropReason.CLOSED
        complete = self.flush(timeout_s)
        thread, loop = self._thread_and_loop()
        if thread is not None and loop is not None and thread.is_alive():
            loop.call_soon_threadsafe(self._stop.set)
            thread.join(CLOSE_S)
        left = len(self._queue) + self._delivery.pending
        if left:
            self._taken += len(self._queue)
            self._queue.clear()
            self._delivery.pending = 0
            self.counters.drop(
                DropReason.UNSENT_AT_CLOSE,
                f"{left} events were not acknowledged by {self.config.bootstrap} in {timeout_s:g} s",
                events=left,
            )
        self.counters.wait_until_logged(CLOSE_S)
        self.counters.log_counts(all_reasons=True)
        return complete and not left

    def _check_for_stall(self) -> None:
        """Log the position of a stalled thread, once a minute; called by the host's threads."""
        now, since, (thread, _) = time.monotonic(), self._gate.busy_since, self._thread_and_loop()
        if not since or thread is None or now - since < STALLED_S or now - self._stall_logged_at < 2 * STALLED_S:
            return
        self._stall_logged_at = now
        self.counters.log(
            logging.ERROR,
            f"the SDK's sender has been stalled for {now - since:.0f} s, {place_of(thread)}; "
            f"{len(self._queue)} events wait",
        )

    def _thread_and_loop(self) -> tuple[threading.Thread | None, asyncio.AbstractEventLoop | None]:
        return self._running.get("sender", (None, None))

    def _start(self) -> None:
        """Start the thread; if that fails, events wait and the next call after ``START_AGAIN_S`` tries again.

        Concurrent calls may start two threads: the one that is first registered in ``_running`` works, and the other
        ends immediately.
        """
        now = time.monotonic()
        if now < self._start_again_at:
            return
        self._start_again_at = now + START_AGAIN_S
        loop: SenderLoop | None = None
        try:
            if not self._closes_at_exit:
                self._closes_at_exit = True
                call_at_end(partial(self.close, self.config.flush_deadline_s))
            limit_client_log()
            loop = SenderLoop(self._gate)
            thread = threading.Thread(target=self._run, args=(loop,), name=THREAD_NAME, daemon=True)
            thread.start()
            self._running.setdefault("sender", (thread, loop))
        except Exception as error:  # noqa: BLE001 - out of threads, files or memory: a later attempt may succeed
            if loop is not None:
                loop.close()
            why = f"{type(error).__name__}: {error}"
            self.counters.log(
                logging.WARNING, f"the SDK's sender cannot be started ({why}): events wait, and a later event retries"
            )

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._running.setdefault("sender", (threading.current_thread(), loop))[1] is not loop:
            loop.close()
            return
        self._gate.enter()
        GATES.add(self._gate)
        pause = RESTART_S
        try:
            while True:
                try:
                    loop.run_until_complete(self._main())
                    return
                except Exception:  # noqa: BLE001 - no error may reach the host
                    self.counters.log(
                        logging.ERROR,
                        f"the SDK's sender failed and restarts in {pause:g} s\n{traceback.format_exc()}",
                    )
                loop.run_until_complete(asyncio.sleep(pause))
                pause = min(2 * pause, 60.0)
        finally:
            GATES.discard(self._gate)
            loop.close()
            self._gate.leave()

    async def _main(self) -> None:
        stop = asyncio.create_task(self._stop.wait())
        work = [asyncio.create_task(part) for part in (self._encode(), self._delivery.run(), self._report())]
        try:
            done, _ = await asyncio.wait([stop, *work], return_when=asyncio.FIRST_COMPLETED)
            await self._send_stats()
        finally:
            for task in (stop, *work):
                task.cancel()
            await asyncio.gather(stop, *work, return_exceptions=True)
        for task in done - {stop}:
            task.result()  # none of them ends normally: this raises its error

    async def _encode(self) -> None:
        """Move notes from the queue to the delivery, in order."""
        pause = IDLE_MIN_S
        while True:
            if self._queue:
                for _ in range(min(CHUNK, len(self._queue))):
                    self._take(Note(*self._queue.popleft()))
                pause = IDLE_MIN_S
                await asyncio.sleep(0)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._wake.clear()
                pause = min(2 * pause, IDLE_MAX_S)

    def _take(self, note: Note) -> None:
        self._taken += 1
        ticket = next(self._tickets)
        try:
            message, altered, described = encode_note(note, self.config.source, self.config.max_event_bytes)
        except TooLarge:
            self.counters.drop(DropReason.OVERSIZE, f"{note.model.TYPE} over {self.config.max_event_bytes} bytes")
            return
        except InvalidEvent as error:
            self.counters.drop(DropReason.INVALID, error)
            return
        except Exception as error:  # noqa: BLE001 - one event must not stop the others
            self.counters.drop(DropReason.INTERNAL, f"{note.model.TYPE}: {error!r}")
            return
        for kind, values in altered.items():
            why = f"{note.model.TYPE} contains a {described}, which is not read" if kind == LABEL else note.model.TYPE
            self.counters.alter(Alteration(kind), why, values=values)
        if self._delivery.pending_bytes + len(message.value) > self.config.queue_bytes:
            self.counters.drop(DropReason.QUEUE_BYTES, f"queue_bytes is {self.config.queue_bytes}")
        else:
            self._delivery.offer(ticket, note.topic, message)

    async def _wait_until_flushed(self, deadline: float) -> bool:
        last = self._taken + len(self._queue) - 1
        self._wake.set()
        while self._taken <= last or not self._delivery.resolved_up_to(last):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _report(self) -> None:
        reported = SdkStatsReported()
        while True:
            await asyncio.sleep(self.config.stats_interval_s)
            self.counters.log_counts()
            if self.stats() != reported:
                reported = self.stats()
                await self._send_stats()

    async def _send_stats(self) -> None:
        """Send the statistics once if there is a connection. They are not retried, because the next record includes
        them."""
        producer = self._delivery.producer
        if producer is None:
            return
        source = self.config.source
        envelope = Envelope(
            id=uuid7(),
            type=SdkStatsReported.TYPE,
            source=source,
            time_ms=time.time_ns() // 1_000_000,
            subject=source,
        )
        message = encode(self.stats(), key=source, envelope=envelope)
        try:
            async with asyncio.timeout(STATS_S):
                await producer.send_and_wait(SDK_STATS.name, message.value, message.key, headers=message.headers)
        except (KafkaError, TimeoutError) as error:
            LOG.debug("statistics were not sent: %r", error)
