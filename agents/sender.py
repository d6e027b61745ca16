"""The background thread between the host and Kafka: a bounded queue in, acknowledged records out.

    host thread: put(note) ──deque──▶ sender thread: encode ──▶ Outbox ──▶ EventDelivery ──▶ broker

The host's thread only appends to the queue. Validation, serialisation and all I/O run on the sender's thread, in an
event loop of its own.

``put`` and ``stats`` take no lock and write no log line, because a signal handler or a ``__del__`` may emit an event
while the same thread is inside them.
"""

import asyncio
import itertools
import logging
import os
import threading
import time
import traceback
from collections import deque
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from time import time_ns

from aiokafka.errors import KafkaError

from headrace.agents.client_log import THREAD_NAME, limit_client_log
from headrace.agents.counters import LOG, Alteration, DropReason, SdkCounters
from headrace.agents.delivery import EventDelivery, Ticket
from headrace.agents.encoding import InvalidEvent, Note, NoteFields, encode_note
from headrace.agents.json_form import LABEL, TooLarge
from headrace.agents.masking.masker import Masker
from headrace.agents.outbox import Outbox
from headrace.agents.process_end import call_at_end
from headrace.agents.sender_config import SenderConfig
from headrace.agents.sender_loop import GATES, Gate, SenderLoop, place_of
from headrace.agents.spool import Spool
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import SdkStatsReported
from headrace.schemas.ids import uuid7, uuid7_of, uuid7_tail
from headrace.schemas.topics import SDK_STATS
from headrace.schemas.wire import encode

CHUNK = 16
"""Events encoded before the thread releases the GIL: the host waits no longer for it than these take."""

IDLE_MIN_S, IDLE_MAX_S = 0.005, 0.1
"""Pauses between checks of the queue, growing while it is empty. Waking the thread would cost the host 5-10 µs."""

POLL_S = 0.005
"""Pause between checks whether a flush is complete."""

TAILS = 64
"""Random parts of IDs that are drawn in advance: a new one costs the host 1-2 µs."""

STATS_S = 1.0
"""Longest wait for the acknowledgement of a statistics record."""

CLOSE_S = 15.0
"""Longest wait for the thread to end after its final flush. It ends immediately unless a connection hangs: then it may
wait ``STATS_S``, four times for the client's stop, ``FINISH_S``, for the disk, and ``END_S``."""

END_S = 1.0
"""Longest wait for tasks that were cancelled at the end."""

STALLED_S = 30.0
"""A thread that has not waited for I/O for this many seconds is stalled, which is logged."""

STALL_MASK = 63
"""The host's thread checks for that when the number of waiting events is a multiple of 64."""

RESTART_S = 1.0
"""Pause before the thread's work restarts after a failure; it doubles with each failure, up to a minute."""

START_AGAIN_S = 1.0
"""Pause between two attempts to start the thread."""

FINISH_S = 2.0
"""Longest time for encoding what is left in the queue at the end, before it is spooled."""

NEVER_QUEUED = {
    DropReason.QUEUE_FULL,
    DropReason.SPOOL_FULL,
    DropReason.AFTER_END,
    DropReason.BAD_IDENTIFIER,
    DropReason.BAD_ARGUMENT,
    DropReason.BAD_CONSENT,
    DropReason.NO_TRAJECTORY,
    DropReason.FORKED,
    DropReason.CLOSED,
    DropReason.INTERNAL,
}
"""Reasons for which an event is dropped on the host's thread."""


class Sender:
    """The queue and the thread of one process. A forked child gets its own."""

    def __init__(self, config: SenderConfig, counters: SdkCounters) -> None:
        self.config = config
        self.counters = counters
        self.refusal: DropReason | None = None
        """Reason for which all further events are dropped; ``None`` while open."""
        self._queue: deque[NoteFields] = deque()
        self._room = config.queue_size
        self._gate = Gate()
        self._delivery = EventDelivery(config.bootstrap, config.kafka_options, counters, self._resolved)
        self._outbox = self._new_outbox()
        self._masker = None if config.masking is None else Masker(config.masking)
        self._tickets = itertools.count()
        self._taken = 0
        self._refused_by_encoder = 0
        self._tails: deque[str] = deque()
        self._draw()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._running: dict[str, tuple[threading.Thread, asyncio.AbstractEventLoop]] = {}
        self._start_again_at = 0.0
        self._closes_at_exit = False
        self._adopted_and_lost = 0
        self._is_closed = False
        self._given_up = 0  # events that were counted as dropped, and are still those of a thread that does not end
        self._counting = threading.RLock()  # of calls of close; a signal handler may call it inside another call
        self._stall_logged_at = 0.0

    def new_id(self) -> str:
        """Return a new UUIDv7. Its random part was drawn by the sender's thread, if that has been able to."""
        try:
            tail = self._tails.popleft()
        except IndexError:
            return uuid7()
        return uuid7_of(time_ns() // 1_000_000, tail)

    def put(self, note: NoteFields) -> None:
        """Queue the fields of a :class:`Note`, or count them as dropped. Never blocks; callable from any thread."""
        queue = self._queue
        if len(queue) >= self._room:
            self._check_for_stall()
            reason = DropReason.SPOOL_FULL if self._outbox.is_full else DropReason.QUEUE_FULL
            self.counters.drop(reason, f"{self.config.queue_size} events wait in memory for {self.config.bootstrap}")
            return
        queue.append(note)
        if not self._running:
            self._start()
        elif not len(queue) & STALL_MASK:
            self._check_for_stall()

    def stats(self) -> SdkStatsReported:
        """Return the counts since the start of the process. They are exact while no event is emitted; callable from any
        thread."""
        dropped = self.counters.dropped()
        never_queued = sum(count for reason, count in dropped.items() if reason in NEVER_QUEUED)
        waiting, outbox = len(self._queue), self._outbox
        return SdkStatsReported(
            emitted=self._taken + waiting + never_queued - self._refused_by_encoder,
            sent=self._delivery.sent,
            queued=max(0, waiting + self._delivery.pending + len(outbox.behind) - self._given_up),
            spooled=outbox.spooled,
            replayed=outbox.replayed,
            adopted=outbox.adopted + self._adopted_and_lost,
            dropped=dropped,
            altered=self.counters.altered(),
        )

    def drop_left_behind(self, reason: DropReason, why: str, events: int) -> None:
        """Count ``events`` of an ended process as adopted and dropped; called on another thread than the sender's."""
        self._adopted_and_lost += events
        self.counters.drop(reason, why, events=events)

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
        finally:
            waiting.cancel()  # also if Ctrl-C interrupts the wait; nothing happens if it is done

    def close(self, timeout_s: float) -> bool:
        """Refuse further events, flush, send the final statistics, spool what was not sent and end the thread; return
        ``False`` if events were left unsent.

        A call while another one runs, or after one that an exception ended (a second Ctrl-C), does the same. Of an
        interrupted call only the rest of the flush is left out: what was not sent is spooled.
        """
        if self._is_closed or self.refusal not in (None, DropReason.CLOSED):
            return True
        self.refusal = DropReason.CLOSED
        complete = False
        try:
            complete = self.flush(timeout_s)
        finally:
            left = self._end(timeout_s)
        return complete and not left

    def _end(self, timeout_s: float) -> int:
        """End the thread, count what neither Kafka nor the spool has taken, and return how many events these are."""
        thread, loop = self._thread_and_loop()
        if thread is not None and loop is not None and thread.is_alive():
            with suppress(RuntimeError):  # another call has ended it just now
                loop.call_soon_threadsafe(self._stop.set)
            thread.join(CLOSE_S)
        with self._counting:
            left = len(self._queue) + self._delivery.pending + len(self._outbox.behind)
            if thread is not None and thread.is_alive():
                self._given_up = left  # they are the thread's: it may still spool some of them
            elif left:
                self._taken += len(self._queue)
                self._queue.clear()
                self._outbox.behind.clear()
                self._delivery.pending = 0
            if left:
                self.counters.drop(
                    DropReason.UNSENT_AT_CLOSE,
                    f"{left} events were not acknowledged by {self.config.bootstrap} in {timeout_s:g} s",
                    events=left,
                )
            self._is_closed = True
        self.counters.wait_until_logged(CLOSE_S)
        self.counters.log_counts(all_reasons=True)
        return left

    def leave_to_parent(self, counters: SdkCounters) -> None:
        """Refuse further events in a forked child, count them in ``counters``, and give up what belongs to the parent:
        files, and parts of IDs that it will use. Does nothing in later calls, or if all was closed before the fork."""
        if self.refusal is DropReason.FORKED or self._is_closed:
            return
        self.refusal, self.counters = DropReason.FORKED, counters
        self._tails.clear()
        self._outbox.forget()

    def _new_outbox(self) -> Outbox:
        config, spool = self.config, None
        if config.spool_folder is not None and config.spool_bytes:
            spool = Spool(
                config.spool_folder,
                config.spool_bytes,
                config.cluster,
                lambda path, loss: self._outbox.count_loss(path, loss),
                sync=self._sync,
            )
        return Outbox(self._delivery, spool, self.counters, config.queue_size, config.queue_bytes)

    def _resolved(self, ticket: Ticket) -> None:
        self._outbox.resolve(ticket)
        self._count_room()

    def _count_room(self) -> None:
        """Count how many events the queue may hold: once here, and not by the host's thread with every event."""
        self._room = self.config.queue_size - self._delivery.pending - len(self._outbox.behind)

    def _sync(self, file: int) -> None:
        """fsync on the sender's thread: a wait, during which the process may fork."""
        self._gate.leave()
        try:
            os.fsync(file)
        finally:
            self._gate.enter()

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
            loop.run_until_complete(_end_tasks())
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
        for task in done - {stop}:  # none of them ends normally
            if task.cancelled():  # by what it awaited: it must not end the thread, as only a close does
                raise RuntimeError("a part of the sender was cancelled")
            task.result()  # raises its error
        self._spool_the_rest()
        if self._masker is not None:
            self._masker.calls.close()

    async def _encode(self) -> None:
        """Move notes from the queue to the delivery, in order."""
        pause = IDLE_MIN_S
        while True:
            if self._queue:
                for _ in range(min(CHUNK, len(self._queue))):
                    self._take(Note(*self._queue.popleft()))
                    self._count_room()
                pause = IDLE_MIN_S
                self._draw()
                self._tick()
                await asyncio.sleep(0)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._wake.clear()
                self._draw()
                self._tick()
                pause = min(2 * pause, IDLE_MAX_S)

    def _tick(self) -> None:
        self._outbox.tick()
        self._count_room()

    def _draw(self) -> None:
        """Draw the random parts of new IDs, so that the host's thread need not."""
        while len(self._tails) < TAILS:
            self._tails.append(uuid7_tail())

    def _spool_the_rest(self) -> None:
        """Write everything that was not acknowledged to the spool, if there is one, when nothing else runs any more."""
        if not self._outbox.has_spool:
            return
        deadline = time.monotonic() + FINISH_S
        while self._queue and time.monotonic() < deadline:
            self._take(Note(*self._queue.popleft()))
        self._outbox.finish()

    def _take(self, note: Note) -> None:
        self._taken += 1
        ticket = next(self._tickets)
        try:
            encoded = encode_note(note, self.config.source, self.config.max_event_bytes, self._masker)
        except TooLarge:
            self.counters.drop(DropReason.OVERSIZE, f"{note.model.TYPE} over {self.config.max_event_bytes} bytes")
            return
        except InvalidEvent as error:
            self.counters.drop(DropReason.INVALID, error)
            return
        except Exception as error:  # noqa: BLE001 - one event must not stop the others
            self.counters.drop(DropReason.INTERNAL, f"{note.model.TYPE}: {error!r}")
            return
        message = encoded.message
        for kind, values in encoded.altered.items():
            why = f" contains a {encoded.described}, which is not read" if kind == LABEL else ""
            self.counters.alter(Alteration(kind), note.model.TYPE + why, values=values)
        if encoded.failure:
            self.counters.alter(Alteration.MASKING_FAILED, f"{note.model.TYPE}: {encoded.failure}")
        if self._delivery.pending_bytes + self._outbox.behind_bytes + len(message.value) <= self.config.queue_bytes:
            self._outbox.offer(ticket, note.topic, message)
        elif self._outbox.is_full:
            self._refused_by_encoder += 1
            self.counters.drop(DropReason.SPOOL_FULL, f"spool_bytes is {self.config.spool_bytes}")
        else:
            self.counters.drop(DropReason.QUEUE_BYTES, f"queue_bytes is {self.config.queue_bytes}")

    async def _wait_until_flushed(self, deadline: float) -> bool:
        last = self._taken + len(self._queue) - 1
        self._wake.set()
        while self._taken <= last or not self._outbox.resolved_up_to(last):
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
            time_ms=time_ns() // 1_000_000,
            subject=source,
        )
        message = encode(self.stats(), key=source, envelope=envelope)
        try:
            async with asyncio.timeout(STATS_S):
                await producer.send_and_wait(SDK_STATS.name, message.value, message.key, headers=message.headers)
        except (KafkaError, TimeoutError) as error:
            LOG.debug("statistics were not sent: %r", error)


async def _end_tasks() -> None:
    """End what still runs: flushes of threads that wait while another one closes, and tasks of a client whose stop was
    interrupted. asyncio would report each of them in the host's log."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for each in rest:
        each.cancel()
    if rest:
        await asyncio.wait(rest, timeout=END_S)
