"""The gateway's journal: a call's events are on disk before its answer is complete, and then sent to Kafka.

    record(events) ──fsync──▶ spool ─▶ the answer completes
                                └─▶ delivery ──▶ Kafka ──acknowledged──▶ the segment file is removed

An answer may complete once Kafka has its events or the disk has them; the disk is faster, and concurrent calls share
one fsync. While Kafka takes events they are sent from memory; while it does not, they wait on disk and are read back in
order. What a killed gateway left is sent by the next one first, under the same event ids; until Kafka has it, the next
one's own events wait on disk, because they may continue its trajectories.

If the spool is full, ``strict`` refuses the call, so that nothing is trained that is not on the log; ``open`` lets the
answer complete and counts a hole: the events' sequence numbers are used up, and the trajectory is labelled.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from aiokafka.errors import KafkaError

from headrace.agents.counters import DropReason, SdkCounters
from headrace.agents.delivery import EventDelivery, Ticket
from headrace.agents.gateway.note import signed
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.work_thread import WorkThread
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, SpooledRecord
from headrace.agents.spool_segments import Segment, Taken
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import GatewayStatsReported
from headrace.schemas.headers import GATEWAY
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.topics import EVENTS, FEEDBACK, SDK_STATS
from headrace.schemas.wire import Message, encode

_log = logging.getLogger(__name__)

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""Events that Kafka has not acknowledged and that are sent from memory, in bytes; further ones are read from disk."""

WINDOW: Final = 1_000
"""Most events that are read from disk at once."""

WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Size at which such a read ends, in bytes."""

TICK_S: Final = 0.5
"""Pause between two looks for files to remove, and for events to read from disk."""

ADOPT_S: Final = 30.0
"""Time between two searches for events that a killed gateway left, in seconds."""

STATS_S: Final = 5.0
"""Time within which Kafka must acknowledge statistics, in seconds."""

RETRY_AFTER_S: Final = 5.0
"""When a client that was refused should try again, in seconds."""


class WhenFull(StrEnum):
    """What happens to a call whose events the spool cannot take."""

    STRICT = "strict"
    """The call is refused."""
    OPEN = "open"
    """The answer completes, and its events are a counted hole."""


class JournalFull(RuntimeError):
    """The events of a call can be made durable nowhere: Kafka does not take events, and the spool is full."""

    def __init__(self) -> None:
        super().__init__(
            "Kafka does not take events and the gateway's spool is full: try again later, enlarge spool_bytes, or set "
            "when_full to open to answer without recording"
        )
        self.retry_after_s = RETRY_AFTER_S
        """When to try again, in seconds."""


class Journal:
    """Makes events durable and sends them. Everything but the disk's work runs on one event loop."""

    def __init__(
        self,
        spool: Spool,
        bootstrap: str,
        options: Mapping[str, Any],
        counters: SdkCounters,
        *,
        source: str,
        when_full: WhenFull = WhenFull.STRICT,
        new_id: Callable[[], str],
        sealer: Sealer | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """Nothing is written before :meth:`start`.

        Args:
            spool: Of which this journal is the only user; its ``on_loss`` calls :meth:`lost`.
            bootstrap: Kafka address, host:port.
            options: Further settings of the Kafka client, such as security.
            counters: Where events are counted that are lost.
            source: CloudEvents source of the events.
            when_full: What to do with a call whose events fit nowhere.
            new_id: Makes ids of events, UUIDv7.
            sealer: Signs the notes of events; without it they are left out.
            memory_bytes: See :data:`MEMORY_BYTES`.
        """
        self._unwritten = 0
        self._damaged = 0
        self._spool = spool
        self._counters = counters
        self._source = source
        self._when_full = when_full
        self._new_id = new_id
        self._sealer = sealer
        self._memory_bytes = memory_bytes
        self._disk = WorkThread("headrace-journal")
        self._delivery = EventDelivery(bootstrap, options, counters, self._resolved)
        self._gathered: list[tuple[list[SpooledRecord], asyncio.Future[bool]]] = []
        self._tickets = itertools.count()
        self._oldest: Ticket = 0
        self._resolved_early: set[Ticket] = set()
        self._has_caught_up = False
        self._segments: dict[Ticket, Segment] = {}
        self._done: deque[Segment] = deque()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._is_closing = False
        self._has_failed = False
        # Events are passed to the delivery in the order of the spool: read ones before those appended meanwhile.
        self._order = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Write and send in ``tasks`` until :meth:`close`."""
        self._tasks = [tasks.create_task(work) for work in (self._delivery.run(), self._read(), self._write())]

    async def close(self, flush_s: float = 10.0) -> None:
        """Write what was recorded, and wait up to ``flush_s`` seconds for Kafka. What it has not acknowledged by then
        stays on disk, for the next gateway."""
        self._is_closing = True
        self._wake.set()
        *others, writing = self._tasks
        await writing
        self._flushed.clear()
        self._announce_if_flushed()
        with suppress(TimeoutError):
            async with asyncio.timeout(flush_s):
                await self._flushed.wait()
        if left := self.unacknowledged:
            _log.warning(
                "%d events were not sent within %g s; they are in %s, and the next gateway sends them",
                left, flush_s, self._spool.path,
            )  # fmt: skip
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        await asyncio.to_thread(self._close_spool)
        self._disk.stop()

    @property
    def holes(self) -> int:
        """Number of events that are neither on disk nor in Kafka: not written, refused by the broker, or damaged on
        disk."""
        return self._unwritten + self._damaged + self._counters.dropped().get(DropReason.REFUSED, 0)

    @property
    def unacknowledged(self) -> int:
        """Number of events that Kafka has not acknowledged."""
        return self._delivery.pending + self._spool.waiting

    @property
    def spooled(self) -> int:
        """Number of those of them that are on disk only."""
        return self._spool.waiting

    async def publish(self, stats: GatewayStatsReported, now_ms: int) -> bool:
        """Send ``stats`` once if there is a connection, and return whether Kafka has them: the next ones include them.
        ``now_ms``: Unix milliseconds."""
        producer = self._delivery.producer
        if producer is None:
            return False
        envelope = Envelope(self._new_id(), stats.TYPE, self._source, now_ms, self._source)
        message = encode(stats, key=self._source, envelope=envelope)
        try:
            async with asyncio.timeout(STATS_S):
                await producer.send_and_wait(SDK_STATS.name, message.value, message.key, headers=message.headers)
        except (KafkaError, TimeoutError) as error:
            _log.debug("statistics were not sent: %r", error)
            return False
        return True

    async def record(self, events: Sequence[TrajectoryEvent], now_ms: int) -> bool:
        """Make ``events`` durable, in the order of the calls of this method; return whether they are.

        ``now_ms``: when they happened, Unix milliseconds. Raises :class:`JournalFull` if they are not and ``when_full``
        is ``strict``: nothing of them is written then. Returns ``False`` if it is ``open``.
        """
        if not events:
            return True
        records, too_large = list[SpooledRecord](), list[str]()
        for event in events:
            record = self._record_of(event, now_ms)
            size = len(record.value or b"")
            if size <= MAX_REQUEST_BYTES:
                records.append(record)
            else:
                too_large.append(f"{event.fact.TYPE} of {event.trajectory_id} has {size:,} bytes")
        is_written = await self.write(records, len(records))
        # Not before: a call that was refused is recorded again.
        self._unwritten += len(too_large)
        for what in too_large:
            self._counters.drop(DropReason.OVERSIZE, f"{what}: Kafka takes at most {MAX_REQUEST_BYTES:,}")
        return is_written

    def lost(self, path: str, loss: Loss) -> None:
        """Count what cannot be read of a file of the spool; called on the thread that reads it."""
        if not loss.is_torn:  # of the end of a file that was being written nobody was told that it is recorded
            self._damaged += loss.records
        self._counters.drop_damaged(path, loss)

    async def write(self, records: Sequence[SpooledRecord], events: int) -> bool:
        """Make ``records``, of so many ``events``, durable; returns and raises as :meth:`record` does."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._gathered.append((list(records), answer))
        self._wake.set()
        # The write continues if the caller is cancelled: its events are complete.
        if await asyncio.shield(answer):
            return True
        if self._when_full is WhenFull.STRICT:
            raise JournalFull
        self._unwritten += events
        return False

    def _record_of(self, event: TrajectoryEvent, now_ms: int) -> SpooledRecord:
        envelope = Envelope(
            id=self._new_id(),
            type=event.fact.TYPE,
            source=self._source,
            time_ms=now_ms,
            subject=event.trajectory_id,
            sequence=event.seq,
        )
        message = encode(event.fact, key=event.trajectory_id, envelope=envelope)
        if event.note is not None and event.seq is not None and self._sealer is not None:
            note = signed(event.note, self._sealer, event.trajectory_id, event.seq, message.value)
            message.headers.append((GATEWAY, note))
        topic = FEEDBACK if event.seq is None else EVENTS
        return SpooledRecord(topic.name, message.key, message.value, tuple(message.headers))

    async def _write(self) -> None:
        """Write what has gathered, again and again: while the disk works, the next calls gather."""
        while self._gathered or not self._is_closing:
            if not self._gathered:
                self._wake.clear()
                await self._wake.wait()
                continue
            calls, self._gathered = self._gathered, []
            # Together first: one that does not fit must not affect the others.
            if len(calls) == 1 or not await self._append(calls):
                for call in calls:
                    if not await self._append([call]):
                        call[1].set_result(False)

    async def _append(self, calls: Sequence[tuple[list[SpooledRecord], "asyncio.Future[bool]"]]) -> bool:
        """Append the events of ``calls`` with one fsync and answer; ``False``, without an answer, if that fails."""
        records = [record for each, _ in calls for record in each]
        async with self._order:
            has_room = self._delivery.pending_bytes < self._memory_bytes
            is_held = self._has_caught_up and has_room and not self._spool.waiting
            try:
                segments = await self._disk.run(lambda: self._spool.append(records, held=is_held)) if records else []
            except OSError as error:
                self._report(error)
                return False
            if len(segments) < len(records):
                return False
            self._has_failed = False
            if is_held:
                for record, segment in zip(records, segments, strict=True):
                    self._offer(record, segment)
        for _, answer in calls:
            answer.set_result(True)
        return True

    def _offer(self, record: SpooledRecord, segment: Segment) -> None:
        ticket = next(self._tickets)
        self._segments[ticket] = segment
        message = Message(record.key or b"", record.value or b"", list(record.headers))
        self._delivery.offer(ticket, record.topic, message)

    def _resolved(self, ticket: Ticket) -> None:
        # In the order of the tickets, so that a killed gateway leaves every event after the oldest one that it leaves:
        # the next gateway knows then which number of a trajectory was the latest.
        self._resolved_early.add(ticket)
        while self._oldest in self._resolved_early:
            self._resolved_early.remove(self._oldest)
            # The spool may wait for the disk: not on the event loop.
            self._done.append(self._segments.pop(self._oldest))
            self._oldest += 1
        self._announce_if_flushed()

    def _report(self, error: OSError) -> None:
        """Log that the disk failed, once until it works again."""
        if not self._has_failed:
            _log.error("the spool in %s cannot be used: %s", self._spool.path, error)
        self._has_failed = True

    def _announce_if_flushed(self) -> None:
        if not self.unacknowledged:
            self._flushed.set()

    async def _read(self) -> None:
        """Remove files of acknowledged events, and send events that are on disk only."""
        adopt_at = 0.0
        while True:
            now = asyncio.get_running_loop().time()
            adopts = now >= adopt_at
            if adopts:
                adopt_at = now + ADOPT_S
            has_room = self._delivery.pending_bytes <= self._memory_bytes // 2
            taken: list[Taken] = []
            async with self._order:
                try:
                    taken = await asyncio.to_thread(self._use_disk, has_room, adopts)
                except OSError as error:
                    self._report(error)
                for each in taken:
                    self._offer(each.record, each.segment)
            if not taken:
                await asyncio.sleep(TICK_S)

    def _use_disk(self, has_room: bool, adopts: bool) -> list[Taken]:
        """Runs on a thread. At first, what a killed gateway left: own events may continue its trajectories. Later, own
        events first: what is left then are trajectories of another gateway."""
        while self._done:
            self._spool.done(self._done.popleft())
        if not self._has_caught_up:
            # Nothing is left only once Kafka has all of it.
            self._has_caught_up = not self._spool.adopt()
            if not self._has_caught_up:
                return self._spool.take_adopted(WINDOW, WINDOW_BYTES) if has_room else []
        if not has_room:
            return []
        # Without records to be taken, this lets go of the files whose events are acknowledged.
        taken = self._spool.take(WINDOW, WINDOW_BYTES)
        if not taken and (self._spool.has_adopted or (adopts and self._spool.adopt())):
            taken = self._spool.take_adopted(WINDOW, WINDOW_BYTES)
        return taken

    def _close_spool(self) -> None:
        while self._done:
            self._spool.done(self._done.popleft())
        if not self._spool.waiting:
            self._spool.take(1, 1)  # lets go of the last file
        self._spool.close()
