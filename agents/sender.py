"""The background thread between the host and Kafka: a bounded queue in, acknowledged records out.

    host thread: put(note) ──deque──▶ sender thread: encode ──▶ Delivery ──▶ broker

The host's thread only appends. Validation, serialisation and all I/O happen here, on an event loop of the thread's own.

``put`` and ``stats`` take no lock and write no log line: a signal handler or a ``__del__`` may note an event while the
same thread is anywhere inside them.
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

from headrace.agents.client_log import THREAD_NAME, ration_client_log
from headrace.agents.delivery import Delivery
from headrace.agents.encoding import InvalidEvent, Note, NoteFields, encode_note
from headrace.agents.json_form import LABEL, TooLarge
from headrace.agents.process_end import call_at_end
from headrace.agents.sender_loop import GATES, Gate, SenderLoop, place_of
from headrace.agents.tally import LOG, Alteration, DropReason, Tally
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import SdkStatsReported
from headrace.schemas.ids import uuid7
from headrace.schemas.topics import SDK_STATS
from headrace.schemas.wire import encode

CHUNK = 16
"""Events encoded before the thread lets go of the GIL: the host never waits longer for it than these take."""

IDLE_MIN_S, IDLE_MAX_S = 0.005, 0.1
"""Pauses between looks at the queue, growing while it stays empty. Waking the thread instead costs the host 5-10 µs."""

POLL_S = 0.005
"""Pause between looks at whether a flush is complete."""

STATS_S = 1.0
"""Longest wait for a report of statistics to be acknowledged."""

CLOSE_S = 6.0
"""Longest wait for the thread to end after its last flush. It ends at once unless a connection hangs."""

STALLED_S = 30.0
"""A thread that came to no wait for so many seconds stands still, and that is told."""

RESTART_S = 1.0
"""Pause before the work of a thread is begun again after a failure; doubled each time up to a minute."""

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
    """What the sender must know."""

    bootstrap: str
    """Kafka address, ``host:port`` with commas between several."""
    source: str
    """Name of the emitting program: ``ce_source``, and the key of its statistics."""
    queue_size: int = 10_000
    """Events that may wait, encoded or not; beside them the one that is being encoded."""
    queue_bytes: int = 64 * 1024 * 1024
    """Bytes of encoded events that may wait."""
    max_event_bytes: int = 1024 * 1024
    """Largest event, serialised."""
    flush_deadline_s: float = 5.0
    """Longest wait for the last flush."""
    stats_interval_s: float = 10.0
    """Seconds between two reports to ``sdk-stats``."""
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the aiokafka producer: security, timeouts."""


class Sender:
    """One process's queue and thread. A forked child gets a new one."""

    def __init__(self, config: SenderConfig, tally: Tally) -> None:
        self.config = config
        self.tally = tally
        self.refusal: DropReason | None = None
        """Why nothing more is taken; ``None`` while open."""
        self._queue: deque[NoteFields] = deque()
        self._limit = config.queue_size
        self._delivery = Delivery(config.bootstrap, config.kafka_options, tally)
        self._tickets = itertools.count()
        self._taken = 0
        self._nudge = asyncio.Event()
        self._stop = asyncio.Event()
        self._running: dict[str, tuple[threading.Thread, asyncio.AbstractEventLoop]] = {}
        self._start_again_at = 0.0
        self._closes_at_exit = False
        self._gate = Gate()
        self._stall_told = 0.0

    def put(self, note: NoteFields) -> None:
        """Take the fields of a :class:`Note` on, or count them as dropped; returns at once either way. Any thread."""
        queue = self._queue
        if len(queue) + self._delivery.unsettled >= self._limit:
            self._look()
            self.tally.drop(DropReason.QUEUE_FULL, f"{self._limit} events wait for {self.config.bootstrap}")
            return
        queue.append(note)
        if not self._running:
            self._start()
        elif self._gate.busy_since:
            self._look()

    def stats(self) -> SdkStatsReported:
        """Counts since the start of the process. Exact once the agent is quiet; any thread."""
        dropped = self.tally.dropped()
        never_queued = sum(count for reason, count in dropped.items() if reason in NEVER_QUEUED)
        waiting = len(self._queue)
        return SdkStatsReported(
            emitted=self._taken + waiting + never_queued,
            sent=self._delivery.sent,
            queued=waiting + self._delivery.unsettled,
            dropped=dropped,
            altered=self.tally.altered(),
        )

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put before is acknowledged or dropped; ``False`` where ``timeout_s`` passed first."""
        self._look()
        if self._queue and not self._running:
            self._start()
        thread, loop = self._thread_and_loop()
        if thread is None or loop is None or not thread.is_alive():
            return not self._queue
        waiting = asyncio.run_coroutine_threadsafe(self._flushed(time.monotonic() + timeout_s), loop)
        try:
            return waiting.result(timeout_s + 1.0)
        except (FutureTimeoutError, CancelledError):
            return False

    def close(self, timeout_s: float) -> bool:
        """Take no more, flush, report the last statistics, end the thread; ``False`` where events were left unsent."""
        if self.refusal is not None:
            return True
        self.refusal = DropReason.CLOSED
        complete = self.flush(timeout_s)
        thread, loop = self._thread_and_loop()
        if thread is not None and loop is not None and thread.is_alive():
            loop.call_soon_threadsafe(self._stop.set)
            thread.join(CLOSE_S)
        left = len(self._queue) + self._delivery.unsettled
        if left:
            self._taken += len(self._queue)
            self._queue.clear()
            self._delivery.unsettled = 0
            self.tally.drop(
                DropReason.UNSENT_AT_CLOSE,
                f"{left} events were not acknowledged by {self.config.bootstrap} in {timeout_s:g} s",
                events=left,
            )
        self.tally.wait_until_told(CLOSE_S)
        self.tally.remind(at_once=True)
        return complete and not left

    def _look(self) -> None:
        """Tell where the thread is, if it stands still, once a minute; called by the host's threads."""
        now, since, (thread, _) = time.monotonic(), self._gate.busy_since, self._thread_and_loop()
        if not since or thread is None or now - since < STALLED_S or now - self._stall_told < 2 * STALLED_S:
            return
        self._stall_told = now
        self.tally.say(
            logging.ERROR,
            f"the SDK's sender has stood still for {now - since:.0f} s, {place_of(thread)}; "
            f"{len(self._queue)} events wait",
        )

    def _thread_and_loop(self) -> tuple[threading.Thread | None, asyncio.AbstractEventLoop | None]:
        return self._running.get("sender", (None, None))

    def _start(self) -> None:
        """Start the thread; where that fails, the next call after ``START_AGAIN_S`` tries again, and events wait.

        Two calls at once may start two: the one that is entered first in ``_running`` works, the other ends at once.
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
            ration_client_log()
            loop = SenderLoop(self._gate)
            thread = threading.Thread(target=self._run, args=(loop,), name=THREAD_NAME, daemon=True)
            thread.start()
            self._running.setdefault("sender", (thread, loop))
        except Exception as error:  # noqa: BLE001 - out of threads, files or memory: there may be more later
            if loop is not None:
                loop.close()
            why = f"{type(error).__name__}: {error}"
            self.tally.say(
                logging.WARNING, f"the SDK's sender cannot be started ({why}): events wait, a later one tries again"
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
                except Exception:  # noqa: BLE001 - the host must not see it, whatever it is
                    self.tally.say(
                        logging.ERROR,
                        f"the SDK's sender failed, and begins again in {pause:g} s\n{traceback.format_exc()}",
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
            task.result()  # none of them ends by itself: this raises what ended it

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
                        await self._nudge.wait()
                self._nudge.clear()
                pause = min(2 * pause, IDLE_MAX_S)

    def _take(self, note: Note) -> None:
        self._taken += 1
        ticket = next(self._tickets)
        try:
            message, altered, described = encode_note(note, self.config.source, self.config.max_event_bytes)
        except TooLarge:
            self.tally.drop(DropReason.OVERSIZE, f"{note.model.TYPE} over {self.config.max_event_bytes} bytes")
            return
        except InvalidEvent as error:
            self.tally.drop(DropReason.INVALID, error)
            return
        except Exception as error:  # noqa: BLE001 - one event must not stop the others
            self.tally.drop(DropReason.INTERNAL, f"{note.model.TYPE}: {error!r}")
            return
        for kind, values in altered.items():
            why = f"{note.model.TYPE} holds a {described}, which is not read" if kind == LABEL else note.model.TYPE
            self.tally.alter(Alteration(kind), why, values=values)
        if self._delivery.unsettled_bytes + len(message.value) > self.config.queue_bytes:
            self.tally.drop(DropReason.QUEUE_BYTES, f"queue_bytes is {self.config.queue_bytes}")
        else:
            self._delivery.offer(ticket, note.topic, message)

    async def _flushed(self, deadline: float) -> bool:
        last = self._taken + len(self._queue) - 1
        self._nudge.set()
        while self._taken <= last or not self._delivery.settled_up_to(last):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _report(self) -> None:
        reported = SdkStatsReported()
        while True:
            await asyncio.sleep(self.config.stats_interval_s)
            self.tally.remind()
            if self.stats() != reported:
                reported = self.stats()
                await self._send_stats()

    async def _send_stats(self) -> None:
        """Report once, where there is a connection. Statistics are not worth a retry: the next report has them all."""
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
            LOG.debug("statistics were not reported: %r", error)
