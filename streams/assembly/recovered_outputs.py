"""The trajectories that earlier assemblers wrote at the end of an output partition.

They are read once the predecessor's transaction has ended. A transaction that is still open then belongs to another
group's assembler, which writes to the same topic, or did until it was killed. Its end is waited for: if it commits, its
trajectories exist, and if it aborts, they must be written. Only committed records count as written.
"""

import asyncio
import logging

from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.transactions import until_decided
from headrace.streams.assembly.recovery import emitted_of
from headrace.streams.assembly.remembered import Emitted
from headrace.streams.reading.partition_reader import open_reader

logger = logging.getLogger(__name__)

_IDLE_S = 0.005


async def recovered_outputs(
    bootstrap: str, target: TopicPartition, *, begin: int | None, remember: int
) -> tuple[list[Emitted], int]:
    """The committed trajectories in ``target`` from offset ``begin`` on, by default about the last ``remember``, and
    the partition's end offset. Waits until every transaction that was open in ``target`` has ended.

    If the input offset of the last commit is unknown, ``begin`` is 0: all trajectories.
    """
    async with open_consumer(bootstrap) as consumer:
        first = (await consumer.beginning_offsets([target]))[target]
    end = (await until_decided(bootstrap, [target]))[target]
    return await _read(bootstrap, target, max(first, end - remember if begin is None else begin), end), end


async def _read(bootstrap: str, target: TopicPartition, begin: int, end: int) -> list[Emitted]:
    """The trajectories in ``[begin, end)``. Other records were not written by an assembler and are skipped."""
    found: list[Emitted] = []
    if begin >= end:
        return found
    async with open_reader(bootstrap, target.topic, target.partition, begin) as reader:
        while reader.position < end:
            records = reader.read()
            for record in records:
                try:
                    found.append(emitted_of(record))
                except ValueError as error:
                    logger.warning("skipped: %s", error)
            await asyncio.sleep(0 if records else _IDLE_S)
    return [emitted for emitted in found if emitted.offset < end]
