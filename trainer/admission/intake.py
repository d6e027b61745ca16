"""The intake: committed training groups from the log, and the trajectories that their references point at.

Partitions are assigned, not subscribed: the position belongs to the checkpoint, so the broker's group offsets have no
say. Groups come in the order of their partition, and each at most once: the same group again (a stream worker that
died repeats what it had not yet acknowledged) stands in the same partition, because a group's id is its key, and is
recognised among the ``window`` records before it.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.read_back import FETCH_WAIT_MS, Place, read_back, read_places, read_range
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.rollouts import RolloutCounts, rollouts_in
from headrace.schemas.topics import TRAINING, TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.trainer.retries.broker import log_trouble

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SILENCE_S = 5.0
"""After so many seconds without a record the broker is asked for the log's end: is it silent, or away?"""


class Retry(Protocol):
    """Calls again what raised ``LogUnavailable``, for as long as it likes."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of ``call``."""


async def call_once(call: Callable[[], Awaitable[T]]) -> T:
    """A :class:`Retry` that calls once."""
    return await call()


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """A record of ``training``."""

    reference: Reference
    """Where it stands."""
    group: TrainingGroup | None
    """``None`` where it is nothing to train: of another run, seen before, or unreadable."""
    problem: str | None = None
    """Why it could not be read."""
    rollouts: RolloutCounts | None = None
    """All rollouts of the run that the group's record tells of."""
    lost: int = 0
    """Records up to and including this place that retention took before they were read; at most so many were groups.
    Then there is no group, and the place is the last one that is gone."""


class Intake:
    """Reads groups and resolves references, whatever becomes of the broker meanwhile. One reader at a time."""

    def __init__(
        self,
        bootstrap: str,
        groups: AIOKafkaConsumer,
        trajectories: AIOKafkaConsumer,
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

    async def start(self, offsets: Mapping[int, int]) -> None:
        """Take up position: ``offsets`` is partition → first offset that has not been dealt with (absent: the first).

        What stands in the window before a position was dealt with; the ids of its groups are read back from there.
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
            start = max(position - self._window, begins[partition])
            for record in await read_range(
                self._groups, partition, start, position, wait_s=self._patience_s, stalled_s=self._answer_s
            ):
                self._arrival(record)
            self._groups.seek(partition, position)
            # Where no position was taken up before, nobody waited for what is gone.
            self._next[partition.partition] = offsets.get(partition.partition, position)
            self._note_lost(partition.partition, begins[partition])
        self._groups.resume(*partitions)
        places = await partitions_of(self._trajectories, TRAJECTORIES)
        self._trajectories.assign(places)
        self._trajectories.pause(*places)

    async def next_arrivals(self, at_most: int, *, timeout_s: float) -> list[TrainingRecord]:
        """Up to ``at_most`` records of ``training``, in order; none where nothing came in time."""
        if not self._arrived:
            await self._reading(lambda: self._poll(timeout_s))
        return [self._arrived.popleft() for _ in range(min(at_most, len(self._arrived)))]

    async def _poll(self, timeout_s: float) -> None:
        batches = await self._groups.getmany(timeout_ms=int(timeout_s * 1000), max_records=256)
        # Offsets are left out for markers, too, so where the log begins is asked for.
        jumped = [place for place, records in batches.items() if records[0].offset > self._next[place.partition]]
        try:
            begins = await self._groups.beginning_offsets(jumped) if jumped else {}
        except BaseException:
            for place, records in batches.items():
                self._groups.seek(place, records[0].offset)  # or nobody would ever read them
            raise
        for place, begin in begins.items():
            self._note_lost(place.partition, begin)
        for place, records in batches.items():
            self._arrived.extend(self._arrival(record) for record in records)
            self._next[place.partition] = records[-1].offset + 1
        if not batches and time.monotonic() - self._last_contact > _SILENCE_S:
            await self._groups.end_offsets(self._groups.assignment())  # the client itself never says that it is cut off
        if batches or time.monotonic() - self._last_contact > _SILENCE_S:
            self._last_contact = time.monotonic()

    def _note_lost(self, partition: int, begin: int) -> None:
        """Let an arrival tell what is gone, where the log of ``partition`` begins behind the next record to be read."""
        lost = begin - self._next[partition]
        if lost > 0:
            self._arrived.append(TrainingRecord(Reference(partition=partition, offset=begin - 1), None, lost=lost))
            self._next[partition] = begin

    async def reread(self, references: Collection[Reference]) -> dict[Place, TrainingGroup]:
        """Groups that arrived before, by place; one that is past its retention is absent."""
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
        # Another run's groups are another trainer's to judge: a rejection here would give them two fates.
        if group.run != self._run or not self._is_first(group.group_id, reference):
            return TrainingRecord(reference, None)
        return TrainingRecord(reference, group, rollouts=_rollouts(record))

    def _is_first(self, group_id: str, reference: Reference) -> bool:
        seen = self._seen[reference.partition]
        while seen and next(iter(seen.values())) < reference.offset - self._window:
            seen.popitem(last=False)
        if group_id in seen:
            _log.info("group %s stands in the log twice; the second is ignored", group_id)
            return False
        seen[group_id] = reference.offset
        return True

    async def resolve(self, places: Collection[Place]) -> dict[Place, Trajectory]:
        """The trajectories at ``places``; one that cannot be found or read is absent.

        Places are read in few contiguous ranges, each partition by itself.
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
            with log_trouble(self._bootstrap, "read groups"):
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
    """An intake of ``run``. ``patience_s``: how long a record that should be there is waited for.

    A broker that does not answer within ``answer_s`` is away: ``LogUnavailable`` is raised here, and afterwards through
    ``retry``.
    """
    options: dict[str, Any] = {"request_timeout_ms": round(answer_s * 1000)}
    async with AsyncExitStack() as stack:
        with log_trouble(bootstrap, "read groups"):
            groups = await stack.enter_async_context(open_consumer(bootstrap, **options))
            trajectories = await stack.enter_async_context(
                open_consumer(bootstrap, fetch_max_wait_ms=FETCH_WAIT_MS, **options)
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
    except ValueError as error:  # metrics are the poorer for it, training is not
        _log.warning("training %d:%d: %s; its rollouts are not counted", record.partition, record.offset, error)
        return None


def _trajectory(record: KafkaRecord) -> Trajectory | None:
    try:
        _, payload = decode(record.headers, record.value)
    except UnreadableRecord as error:
        _log.warning("trajectories %d:%d cannot be read: %s", record.partition, record.offset, error)
        return None
    return payload if isinstance(payload, Trajectory) else None
