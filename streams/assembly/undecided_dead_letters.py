"""Dead letters of a transaction that a broker left without an end: whether that transaction was committed.

The metadata of each commit has the end offset of its dead letters. Undecided ones before it were committed; later ones
were not, and are written again. In doubt they count as committed: a duplicate is better than a loss.
"""

from collections.abc import Sequence

from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, scan
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.wire import UnreadableRecord, decode


async def were_committed(
    bootstrap: str, places: Sequence[TopicPartition], source: TopicPartition, committed_end: int
) -> bool:
    """Whether the dead letters of ``source`` that are undecided in ``places``, all of ``dead-letters``, were committed.

    ``committed_end`` is :attr:`CommitMetadata.letters`. Also true if none are found and it is unknown.
    """
    if committed_end < 0 or len(places) != 1:
        return True
    async with open_consumer(bootstrap) as consumer:
        stable = (await consumer.end_offsets(places))[places[0]]
    if stable >= committed_end:
        return False
    async with open_consumer(bootstrap, isolation_level="read_uncommitted") as reader:
        behind = scan(reader, places, start={places[0].partition: stable})
        try:
            async for record in behind:
                if record.offset >= committed_end:
                    return False
                if _is_of(record, source):
                    return True
        finally:
            await behind.aclose()
    return False


def _is_of(record: KafkaRecord, source: TopicPartition) -> bool:
    try:
        _, letter = decode(record.headers, record.value)
    except UnreadableRecord:
        return False
    return isinstance(letter, DeadLetter) and (letter.topic, letter.partition) == (source.topic, source.partition)
