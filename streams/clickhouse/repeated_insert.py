"""Reads the records of an announced insert again, those of partitions that belong to other processes included."""

import asyncio
from dataclasses import dataclass
from functools import partial

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import Stall
from headrace.streams.clickhouse.assigned_partitions import AssignedPartitions
from headrace.streams.clickhouse.batches import RowBatch, convert, joined
from headrace.streams.clickhouse.cuts import PlannedInsert
from headrace.streams.clickhouse.existing_topic import NotReadable, while_it_exists
from headrace.streams.clickhouse.pending import CHUNK_RECORDS

_IDLE_S = 0.02
"""Pause after a read without records."""


@dataclass(frozen=True, slots=True)
class RereadRange:
    """The records of a range, read again."""

    first: int
    """First offset that is left: retention may have deleted earlier ones."""
    batch: RowBatch
    """Their rows."""


async def ranges_again(bootstrap: str, insert: PlannedInsert) -> dict[int, RereadRange] | None:
    """Returns what is left of the ranges of ``insert`` by partition, without those of which retention has deleted
    everything or the log lost the end; ``None`` if the topic was deleted. Tries again while Kafka does not answer.
    """
    return await while_it_exists(bootstrap, insert.topic, insert.topic_id, partial(_read, bootstrap, insert))


async def _read(bootstrap: str, insert: PlannedInsert) -> dict[int, RereadRange]:
    """As :func:`ranges_again`, once."""
    async with open_consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign(insert.places)
        assigned = AssignedPartitions(bootstrap, consumer)
        await assigned.on_partitions_assigned(insert.places)
        begins, log_ends = await consumer.beginning_offsets(insert.places), await consumer.end_offsets(insert.places)
        ends, starts = {}, {}
        for each in insert.ranges:
            place = insert.place(each.partition)
            if max(each.first, begins[place]) < each.end <= log_ends[place]:
                starts[place], ends[place] = max(each.first, begins[place]), each.end
        found: dict[int, list[RowBatch]] = {place.partition: [] for place in ends}
        try:
            await assigned.start(starts)
            stall = Stall()
            positions = {place: await assigned.position(place) for place in ends}
            while any(positions[place] < end for place, end in ends.items()):
                records = await assigned.read(CHUNK_RECORDS)
                for place, read in records.items():
                    wanted = [record for record in read if record.offset < ends[place]]
                    found[place.partition].append(await asyncio.to_thread(convert, wanted))
                if failed := assigned.unreadable():
                    # Retention may have moved the start of the log meanwhile: it is looked up again.
                    raise NotReadable(", ".join(map(str, failed.values())))
                if not records:
                    await asyncio.sleep(_IDLE_S)
                positions = {place: await assigned.position(place) for place in ends}
                stall.moved_to(positions)
        finally:
            await assigned.close()
    return {place.partition: RereadRange(first, joined(found[place.partition])) for place, first in starts.items()}
