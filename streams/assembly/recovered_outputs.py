"""What an assembler wrote before it was this one: the trajectories at the end of its output partition.

Read once the predecessor's transaction is over, by decision of its coordinator, so everything up to the partition's
end should bear a marker. Where it does not, a broker was stopped between decision and markers, and left one out when it
came back (Kafka 4.3.0 says "these partitions are likely deleted already and hence can be skipped"). Such records become
committed together with the next transaction of the same producer. They are what this assembler would write again, byte
for byte, as that follows from the log; so they are taken as written, and not written a second time.
"""

import asyncio
import logging

from aiokafka import TopicPartition

from headrace.schemas.log import open_consumer
from headrace.streams.assembly.partition_reader import open_reader
from headrace.streams.assembly.recovery import Emitted, emitted_of

logger = logging.getLogger(__name__)

_IDLE_S = 0.005


async def recovered_outputs(
    bootstrap: str, target: TopicPartition, *, begin: int | None, remember: int
) -> tuple[list[Emitted], int]:
    """The trajectories in ``target`` from offset ``begin`` on, by default about the last ``remember``, and the
    partition's end.
    """
    async with (
        open_consumer(bootstrap) as committed,
        open_consumer(bootstrap, isolation_level="read_uncommitted") as written,
    ):
        first = (await committed.beginning_offsets([target]))[target]
        stable = (await committed.end_offsets([target]))[target]
        end = (await written.end_offsets([target]))[target]
    known_from = max(first, stable - remember if begin is None else begin)
    found = await _read(bootstrap, target, known_from, stable, committed=True)
    if stable < end:
        logger.warning(
            "%s[%d] bears no marker from %d to %d: taken as written, and committed with what comes next",
            target.topic, target.partition, stable, end,
        )  # fmt: skip
        found += await _read(bootstrap, target, max(known_from, stable), end, committed=False)
    return found, end


async def _read(bootstrap: str, target: TopicPartition, begin: int, end: int, *, committed: bool) -> list[Emitted]:
    """The trajectories in ``[begin, end)``. What is none was not written by an assembler, and is passed over."""
    found: list[Emitted] = []
    if begin >= end:
        return found
    async with open_reader(bootstrap, target.topic, target.partition, begin, committed=committed) as reader:
        while reader.position < end:
            records = reader.read()
            for record in records:
                try:
                    found.append(emitted_of(record))
                except ValueError as error:
                    logger.warning("passed over: %s", error)
            await asyncio.sleep(0 if records else _IDLE_S)
    return [emitted for emitted in found if emitted.offset < end]
