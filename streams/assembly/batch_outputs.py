"""What reports a batch of ``events`` that cannot be decompressed: a dead letter and an alert, with its position.

The batch stays in Kafka, and the partition is read on behind it.
"""

from aiokafka import TopicPartition

from headrace.schemas.kafka.inflation import MAX_INFLATED_BYTES
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.alerts import alert_message
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.dead_letters.build import dead_letter_message
from headrace.streams.raw import Outgoing, StoredRecord

KIND = "batch_unreadable"
"""Kind of the alert."""


def batch_outputs(place: TopicPartition, offsets: range, stream_ms: int) -> list[Outgoing]:
    """Returns the dead letter and the alert for the batch at ``offsets`` of ``place``."""
    begin, end = offsets.start, offsets.stop
    message = (
        f"the batch at offsets {begin} to {end - 1} cannot be decompressed, or inflates to more than "
        f"{MAX_INFLATED_BYTES // 1_000_000} MB: it exists only in {place.topic}[{place.partition}]"
    )
    record = StoredRecord(place.topic, place.partition, begin, stream_ms, None, None, ())
    dead_letter = dead_letter_message(record, UnreadableRecord(DeadLetterError.OVERSIZE, message))
    alert = alert_message(
        KIND,
        f"{message}. Its producer has write access to this topic and should not",
        source=SOURCE,
        subject=f"{place.topic}[{place.partition}]@{begin}",
        time_ms=stream_ms,
        about=(place.topic, place.partition, begin),
        details={"topic": place.topic, "partition": place.partition, "offset": begin, "end": end},
    )
    return [Outgoing(DEAD_LETTERS, dead_letter, stream_ms), Outgoing(ALERTS, alert, stream_ms)]
