"""Transactions without an end: ending one's own, and waiting for those of other producers."""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable

from aiokafka import AIOKafkaProducer, TopicPartition

from headrace.schemas.kafka.clients import open_consumer

_log = logging.getLogger(__name__)

_LOOK_S = 0.1


_REMIND_S = 30.0


async def decide_unmarked(producer: AIOKafkaProducer, partitions: Iterable[TopicPartition], *, commit: bool) -> None:
    """Commit or abort an empty transaction of the transactional, idle ``producer`` over ``partitions``.

    Afterwards no record of its transactional ID is undecided there. Starting a producer ends its predecessor's
    transaction, but a broker that stops at that moment may omit the marker of a partition (Kafka 4.3.0); readers of the
    partition then wait until the producer's next transaction there. Markers are written with a short delay.
    """
    await begin_over(producer, partitions)
    await (producer.commit_transaction() if commit else producer.abort_transaction())


async def begin_over(producer: AIOKafkaProducer, partitions: Iterable[TopicPartition]) -> None:
    """Begin a transaction of the transactional, idle ``producer`` whose end is marked in ``partitions``, without
    records."""
    await producer.begin_transaction()
    for partition in partitions:
        producer._txn_manager.maybe_add_partition_to_txn(partition)  # what its send does before the record itself


async def until_decided(bootstrap: str, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Wait until every transaction that is open in ``places`` now has ended; returns the end offsets as of now.

    A read of committed records stops before the first open transaction of any producer, and later committed records
    are hidden until it ends. A process that reads the log to find out what it wrote itself must not stop there. A
    transaction that its producer does not end is aborted at its timeout.
    """
    async with (
        open_consumer(bootstrap) as committed,
        open_consumer(bootstrap, isolation_level="read_uncommitted") as written,
    ):
        ends: dict[TopicPartition, int] = await written.end_offsets(places)
        remind_at = time.monotonic()
        while True:
            stable = await committed.end_offsets(places)
            hidden = {place: end for place, end in ends.items() if stable[place] < end}
            if not hidden:
                return ends
            if time.monotonic() >= remind_at:
                for place, end in hidden.items():
                    _log.warning(
                        "%s[%d]: waiting for another producer's transaction, open at %d of %d. It is committed, or "
                        "aborted at its timeout; if this persists, `kafka-transactions.sh find-hanging` names it.",
                        place.topic, place.partition, stable[place], end,
                    )  # fmt: skip
                remind_at = time.monotonic() + _REMIND_S
            await asyncio.sleep(_LOOK_S)
