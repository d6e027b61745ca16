"""The background thread between the host and Kafka: a bounded queue in, acknowledged records out.

    host thread: put(note) ──deque──▶ sender thread: encode ──▶ Delivery ──▶ broker

The host's thread only appends. Validation, serialisation and all I/O happen here, on an event loop of the thread's own.
"""

import asyncio
import itertools
import multiprocessing.util
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError

from headrace.agents.client_log import THREAD_NAME, ration_client_log
from headrace.agents.delivery import Delivery
from headrace.agents.encoding import InvalidEvent, Note, NoteFields, encode_note, is_larger_than
from headrace.agents.tally import LOG, DropReason, Tally
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import SdkStatsReported
from headrace.schemas.ids import uuid7
from headrace.schemas.topics import SDK_STATS
from headrace.schemas.wire import encode

# Loads the codec that resolving a name needs: on the sender thread it would be loaded at some later time, and a fork in
# the middle of that leaves the child without it for good.
"".encode("idna")

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

NEVER_QUEUED = {
    DropReason.QUEUE_FULL,
    DropReason.AFTER_END,
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
    """Events that may wait, encoded or not."""
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    def put(self, note: NoteFields) -> None:
        """Take the fields of a :class:`Note` on, or count them as dropped; returns at once either way. Any thread."""
        queue = self._queue
        if len(queue) + self._delivery.unsettled >= self._limit:
            self.tally.drop(DropReason.QUEUE_FULL, f"{self._limit} events wait for {self.config.bootstrap}")
            return
        queue.append(note)
        if self._thread is None:
            self._start()

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
        )

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was put before is acknowledged or dropped; ``False`` where ``timeout_s`` passed first."""
        if not self._alive or self._loop is None:
            return not self._queue
        waiting = asyncio.run_coroutine_threadsafe(self._flushed(time.monotonic() + timeout_s), self._loop)
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
        if self._alive and self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CLOSE_S)
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
        return complete and not left

    @property
    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is not None:
                return
            ration_client_log()
            self._loop = _Loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name=THREAD_NAME, daemon=True)
            self._thread.start()
            # Children of multiprocessing leave without running atexit; these they do run.
            multiprocessing.util.Finalize(None, self.close, (self.config.flush_deadline_s,), exitpriority=0)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(self._main())
        except Exception:  # noqa: BLE001 - the host must not see it, whatever it is
            self.refusal = DropReason.INTERNAL
            LOG.exception("the SDK's sender ended: further events are dropped")
        finally:
            loop.close()

    async def _main(self) -> None:
        stop = asyncio.create_task(self._stop.wait())
        work = [asyncio.create_task(part) for part in (self._encode(), self._delivery.run(), self._report())]
        done, _ = await asyncio.wait([stop, *work], return_when=asyncio.FIRST_COMPLETED)
        await self._send_stats()
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
                    await asyncio.wait_for(self._nudge.wait(), pause)
                self._nudge.clear()
                pause = min(2 * pause, IDLE_MAX_S)

    def _take(self, note: Note) -> None:
        self._taken += 1
        ticket = next(self._tickets)
        if is_larger_than(note.fields, self.config.max_event_bytes):
            self.tally.drop(DropReason.OVERSIZE, f"{note.model.TYPE} over {self.config.max_event_bytes} bytes")
            return
        try:
            message = encode_note(note, self.config.source)
        except InvalidEvent as error:
            self.tally.drop(DropReason.INVALID, error)
            return
        if len(message.value) > self.config.max_event_bytes:
            why = f"{note.model.TYPE} of {len(message.value)} bytes, max_event_bytes is {self.config.max_event_bytes}"
            self.tally.drop(DropReason.OVERSIZE, why)
        elif self._delivery.unsettled_bytes + len(message.value) > self.config.queue_bytes:
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
            await asyncio.wait_for(
                producer.send_and_wait(SDK_STATS.name, message.value, message.key, headers=message.headers), STATS_S
            )
        except (KafkaError, TimeoutError) as error:
            LOG.debug("statistics were not reported: %r", error)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that resolves names on its own thread: the default executor is gone when an interpreter exits,
    and that is when a short program's events are sent."""

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        return socket.getaddrinfo(host, port, family, type, proto, flags)
