"""The intake: reads committed training groups from the log, and the trajectories that their references point at.

Partitions are assigned, not subscribed: the checkpoint holds the position, and the broker's group offsets are ignored.
Groups arrive in the order of their partition, and each at most once. If a group was written twice, for example after
its partition's state was deleted, the repeated record is in the same partition, because a group's ID is its key, and is
recognised among the ``window`` records before it.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReplacedLog, ReportingConsumer
from headrace.schemas.kafka.expired import ExpiredRange, expired_range, report_expired, skip_expired
from headrace.schemas.kafka.read_back import FETCH_WAIT_MS, Place, read_back, read_places, read_range
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.rollouts import RolloutCounts, rollouts_in
from headrace.schemas.topics import TRAINING, TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.trainer.retries.broker import broker_errors

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SILENCE_S = 5.0
"""After this many seconds without a record the log's end is requested, to tell a quiet broker from a lost one."""

_MOST_NAMED = 8
"""Other runs whose groups are logged."""


class Retry(Protocol):
    """Repeats calls that raise ``LogUnavailable``, until its own retry limit."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of ``call``."""


async def call_once(call: Callable[[], Awaitable[T]]) -> T:
    """A :class:`Retry` that does not retry."""
    return await call()


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """A record of ``training``."""

    reference: Reference
    """Its place in the log."""
    group: TrainingGroup | None
    """``None`` if there is nothing to train: the record is of another run, a repetition, or unreadable."""
    problem: str | None = None
    """Why it could not be read."""
    rollouts: RolloutCounts | None = None
    """Counts of all rollouts of the run that the record reports, trained or not."""
    lost: int = 0
    """Records up to and including this place that were deleted before they were read; at most this many were groups. If
    it is above 0 there is no group, and ``reference`` is the last deleted place."""


class Intake:
    """Reads groups and resolves references, and retries while the broker is unavailable. One reader at a time."""

    def __init__(
        self,
        bootstrap: str,
        groups: ReportingConsumer,
        trajectories: ReportingConsumer,
        *,
        run: str,
        window: int,
        patience_s: float,
        answer_s: float,
        retry: Retry,
    ) -> None:
        """Reads through two consumers without assignment; see :func:`open_intake`."""
        self._bootstrap = bootstrap
        self._groups = groups
        self._trajectories = trajectories
        self._run = run
        self._window = window
        self._patience_s = patience_s
        self._answer_s = answer_s
        self._retry = retry
        self._last_contact = time.monotonic()
        self._seen: dict[int, OrderedDict[str, int]] = {}
        self._next: dict[int, int] = {}
        self._arrived: deque[TrainingRecord] = deque()
        self._has_own = False
        self._others: set[str] = set()
        groups.on_expired = self._note_lost
        groups.on_replaced = self._note_replaced

    async def start(self, offsets: Mapping[int, int]) -> None:
        """Start at ``offsets``: partition → first offset that has not been processed (absent: the first of the log).

        The records in the window before a position are read again, for the ids of their groups.
        """
        await self._reading(lambda: self._start(offsets))

    async def _start(self, offsets: Mapping[int, int]) -> None:
        partitions = await partitions_of(self._groups, TRAINING)
        self._groups.assign(partitions)
        self._groups.pause(*partitions)
        begins = await self._groups.beginning_offsets(partitions)
        self._arrived.clear()
        for partition in partitions:
            self._seen[partition.partition] = OrderedDict()
            position = max(offsets.get(partition.partition, 0), begins[partition])
            # Without an earlier position, no deleted record was due to be read.
            self._next[partition.partition] = offsets.get(partition.partition, position)
            if (expired := expired_range(partition, offsets.get(partition.partition), begins[partition])) is not None:
                self._note_lost(expired)
            start = max(position - self._window, begins[partition])
            for record in await read_range(
                self._groups, partition, start, position, wait_s=self._patience_s, stalled_s=self._answer_s
            ):
                self._arrival(record)
            self._groups.seek(partition, position)
        self._groups.resume(*partitions)
        places = await partitions_of(self._trajectories, TRAJECTORIES)
        self._trajectories.assign(places)
        self._trajectories.pause(*places)

    async def next_arrivals(self, at_most: int, *, timeout_s: float) -> list[TrainingRecord]:
        """Returns up to ``at_most`` records of ``training``, in order; none if nothing arrived within ``timeout_s``."""
        if not self._arrived:
            await self._reading(lambda: self._poll(timeout_s))
        return [self._arrived.popleft() for _ in range(min(at_most, len(self._arrived)))]

    async def _poll(self, timeout_s: float) -> None:
        batches = await self._groups.getmany(timeout_ms=int(timeout_s * 1000), max_records=256)
        for place, records in batches.items():
            self._arrived.extend(self._arrival(record) for record in records)
            self._next[place.partition] = records[-1].offset + 1
        if not batches and time.monotonic() - self._last_contact > _SILENCE_S:
            await self._groups.end_offsets(self._groups.assignment())  # the client reports no lost broker
        if batches or time.monotonic() - self._last_contact > _SILENCE_S:
            self._last_contact = time.monotonic()

    def _note_lost(self, expired: ExpiredRange) -> None:
        """Report deleted records as an arrival, without those of the window, which were read before."""
        partition = expired.place.partition
        unread = expired_range(expired.place, max(expired.position, self._next[partition]), expired.begin)
        if unread is not None:
            report_expired("trainer", unread)
            last = Reference(partition=partition, offset=unread.begin - 1)
            self._arrived.append(TrainingRecord(last, None, lost=unread.offsets))
            self._next[partition] = unread.begin

    def _note_replaced(self, log: ReplacedLog) -> None:
        """The partition is read from its start: whatever expires of the new log is lost."""
        self._next[log.place.partition] = 0

    async def reread(self, references: Collection[Reference]) -> dict[Place, TrainingGroup]:
        """Returns groups that arrived before, by place, without those that have expired."""
        places = [(reference.partition, reference.offset) for reference in references]
        found = {}
        records = await self._reading(lambda: read_back(self._bootstrap, TRAINING, places))
        for place, record in records.items():
            _, group = decode(record.headers, record.value)
            if isinstance(group, TrainingGroup):
                found[place] = group
        return found

    def _arrival(self, record: KafkaRecord) -> TrainingRecord:
        reference = Reference(partition=record.partition, offset=record.offset)
        try:
            _, group = decode(record.headers, record.value)
        except UnreadableRecord as error:
            return TrainingRecord(reference, None, str(error))
        if not isinstance(group, TrainingGroup):
            return TrainingRecord(reference, None, f"a {group.TYPE} does not belong here")
        # Only the trainer of the group's own run may reject it: a rejection here would give it two fates.
        if group.run != self._run:
            self._note_other(group.run)
            return TrainingRecord(reference, None)
        self._has_own = True
        if not self._is_first(group.group_id, reference):
            return TrainingRecord(reference, None)
        return TrainingRecord(reference, group, rollouts=_rollouts(record))

    def _note_other(self, run: str) -> None:
        """Log that groups of ``run`` are skipped, once for each run, as long as there was none of this run: a gateway
        or sampler that was started with another name sends everything past this trainer."""
        if self._has_own or run in self._others or len(self._others) >= _MOST_NAMED:
            return
        self._others.add(run)
        _log.warning(
            "groups of run %s are skipped: this trainer trains run %s, of which no group has arrived yet. If they are "
            "meant for it, start the stack and the samplers with --run %s",
            run, self._run, self._run,
        )  # fmt: skip

    def _is_first(self, group_id: str, reference: Reference) -> bool:
        seen = self._seen[reference.partition]
        while seen and next(iter(seen.values())) < reference.offset - self._window:
            seen.popitem(last=False)
        if group_id in seen:
            _log.info("group %s is in the log twice; the second record is ignored", group_id)
            return False
        seen[group_id] = reference.offset
        return True

    async def resolve(self, places: Collection[Place]) -> dict[Place, Trajectory]:
        """Returns the trajectories at ``places``, without those that are missing or unreadable.

        Places are read in few contiguous ranges, one partition at a time.
        """
        records = await self._reading(
            lambda: read_places(
                self._trajectories, TRAJECTORIES, places, wait_s=self._patience_s, stalled_s=self._answer_s
            )
        )
        read = ((place, _trajectory(record)) for place, record in records.items())
        return {place: trajectory for place, trajectory in read if trajectory is not None}

    async def _reading(self, call: Callable[[], Awaitable[T]]) -> T:
        async def once() -> T:
            with broker_errors(self._bootstrap, "read groups"):
                return await call()

        return await self._retry(once)


@asynccontextmanager
async def open_intake(
    bootstrap: str,
    *,
    run: str,
    window: int,
    patience_s: float = 10.0,
    answer_s: float = 30.0,
    retry: Retry = call_once,
) -> AsyncIterator[Intake]:
    """Open an intake of ``run``. ``patience_s``: how long to wait for a record that should exist.

    A broker that does not answer within ``answer_s`` is unavailable: ``LogUnavailable`` is raised here, and goes
    through ``retry`` afterwards.
    """
    options: dict[str, Any] = {"request_timeout_ms": round(answer_s * 1000)}
    async with AsyncExitStack() as stack:
        with broker_errors(bootstrap, "read groups"):
            groups = await stack.enter_async_context(open_consumer(bootstrap, **options))
            trajectories = await stack.enter_async_context(
                # A trajectory that has expired is missing from its group, which is decided without it.
                open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS, on_expired=skip_expired, **options)
            )
        yield Intake(
            bootstrap,
            groups,
            trajectories,
            run=run,
            window=window,
            patience_s=patience_s,
            answer_s=answer_s,
            retry=retry,
        )


def _rollouts(record: KafkaRecord) -> RolloutCounts | None:
    try:
        return rollouts_in(record.headers)
    except ValueError as error:  # only metrics need them, training does not
        _log.warning("training %d:%d: %s; its rollouts are not counted", record.partition, record.offset, error)
        return None


def _trajectory(record: KafkaRecord) -> Trajectory | None:
    try:
        _, payload = decode(record.headers, record.value)
    except UnreadableRecord as error:
        _log.warning("trajectories %d:%d cannot be read: %s", record.partition, record.offset, error)
        return None
    return payload if isinstance(payload, Trajectory) else None
