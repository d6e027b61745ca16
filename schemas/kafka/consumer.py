"""A consumer that reads on at the log start if retention has deleted what it was to read next, and reports it.

aiokafka's own ``auto_offset_reset`` does the same silently; with ``latest`` it even skips to the log end.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from headrace.schemas.kafka.expired import EXPIRED, Expired, ExpiredRange, expired_range, report_expired

logger = logging.getLogger(__name__)

_RESETS = ("earliest", "latest", "none")


class ReplacedLog(NamedTuple):
    """A log that ends before what was read of it: its topic was recreated, or its broker lost records."""

    place: TopicPartition
    """The partition."""
    position: int
    """The offset that was to be read next."""
    end: int
    """The log end offset."""


class ReportingConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types here
    """An aiokafka consumer for :meth:`getmany`.

    A partition without a committed offset, and without a seek, starts as ``auto_offset_reset`` says.
    """

    def __init__(
        self, *topics: str, auto_offset_reset: str = "earliest", on_expired: Expired | None = None, **options: Any
    ) -> None:
        """``auto_offset_reset``: ``earliest``, ``latest``, or ``none``, which raises aiokafka's errors instead.
        ``on_expired`` is called with what is skipped; default: :func:`report_expired`, as the consumer group.
        """
        if auto_offset_reset not in _RESETS:
            raise ValueError(f"auto_offset_reset is {auto_offset_reset!r}: expected one of {', '.join(_RESETS)}")
        super().__init__(*topics, auto_offset_reset="none", **options)
        self._reset = auto_offset_reset
        self.on_expired: Expired = on_expired or partial(report_expired, options.get("group_id") or "reader")
        """Called with offsets that have expired unread."""
        self.on_replaced: Callable[[ReplacedLog], object] | None = None
        """Called with partitions whose log ends before what was read; they are read again from their start."""

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list["ConsumerRecord[bytes | None, bytes | None]"]]:
        """Return the next records by partition, as aiokafka's method; none after a gap was reported, and none while the
        broker does not answer where the log begins."""
        try:
            found: dict[TopicPartition, list[ConsumerRecord[bytes | None, bytes | None]]] = await super().getmany(
                *partitions, timeout_ms=timeout_ms, max_records=max_records
            )
        except OffsetOutOfRangeError as error:
            if self._reset == "none":
                raise
            with _retried_by_the_next_call():
                for expired in await read_on(self, error.args[0], self.on_replaced):
                    self.on_expired(expired)
        except NoOffsetForPartitionError:
            if self._reset == "none":
                raise
            with _retried_by_the_next_call():
                await start_at(self, self._reset)
        else:
            return found
        return {}


@contextmanager
def _retried_by_the_next_call() -> Iterator[None]:
    """A ``with`` block whose errors of the broker are logged: the next fetch raises again what led to it."""
    try:
        yield
    except KafkaError as error:
        logger.warning("a partition's position is not known yet: %r", error)


def known_position(consumer: AIOKafkaConsumer, place: TopicPartition) -> int | None:
    """Return the position of ``consumer`` in ``place``, which is assigned; ``None`` while there is none: its own
    ``position`` waits for one.
    """
    state = consumer._subscription.subscription.assignment.state_value(place)
    return int(state.position) if state.has_valid_position else None


async def start_at(consumer: AIOKafkaConsumer, reset: str) -> None:
    """Have ``consumer`` read its partitions without position and committed offset from the log start or, if ``reset``
    is ``latest``, from the log end. Raises aiokafka's errors if the broker does not answer; it can then be called
    again.
    """
    # All at once: a request may wait half a second behind a fetch.
    waiting = [place for place in consumer.assignment() if known_position(consumer, place) is None]
    if consumer._group_id is not None:
        commits = await asyncio.gather(*[consumer.committed(place) for place in waiting])
        waiting = [place for place, commit in zip(waiting, commits, strict=True) if commit is None]
    offsets = await (consumer.end_offsets(waiting) if reset == "latest" else consumer.beginning_offsets(waiting))
    for place, offset in offsets.items():
        if place in consumer.assignment() and known_position(consumer, place) is None:
            consumer.seek(place, offset)


async def read_on(
    consumer: AIOKafkaConsumer,
    positions: Mapping[TopicPartition, int],
    on_replaced: Callable[[ReplacedLog], object] | None = None,
) -> list[ExpiredRange]:
    """Have ``consumer`` read on, at the log start, where the log does not have its ``positions``; return what has
    expired. Raises aiokafka's errors if the broker does not answer; it can then be called again.

    ``positions`` are those of an ``OffsetOutOfRangeError``. One behind the log end belongs to a log that was replaced
    or lost its end: that is logged, ``on_replaced`` is called, and the partition is read from its start.
    """
    begins, ends = await consumer.beginning_offsets(list(positions)), await consumer.end_offsets(list(positions))
    found = []
    for place, position in positions.items():
        if place not in consumer.assignment() or known_position(consumer, place) != position:
            continue  # reassigned, or sought meanwhile
        begin, end = begins[place], ends[place]
        if (expired := expired_range(place, position, begin)) is not None:
            found.append(expired)
        elif position > end:
            EXPIRED.start_again(place)
            if on_replaced is not None:
                on_replaced(ReplacedLog(place, position, end))
            logger.error(
                "%s[%d] ends at %d, and was read up to %d already: the topic was recreated, or its broker lost "
                "records; the partition is read again from its start",
                *place, end, position,
            )  # fmt: skip
        # A broker that has just become leader may have refused an offset that it has.
        consumer.seek(place, position if begin <= position <= end else begin)
    return found
