"""What a consumer group has committed."""

from collections.abc import Collection

from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from headrace.schemas.kafka.clients import open_admin


# The coordinator may be moving or loading, as after a restart of the broker.
@retry(
    retry=retry_if_exception_type(KafkaError), wait=wait_exponential(0.1, 2), stop=stop_after_delay(60), reraise=True
)
async def committed_offsets(
    bootstrap: str, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What ``group`` committed of each of ``partitions``, with metadata; offset −1 where it committed nothing.

    Waits up to a minute for a coordinator that is loading, then raises aiokafka's error.
    """
    async with open_admin(bootstrap) as admin:
        commits: dict[TopicPartition, OffsetAndMetadata] = await admin.list_consumer_group_offsets(
            group, partitions=list(partitions)
        )
    if missing := set(partitions) - commits.keys():
        # So answers a coordinator that is still loading: the client overlooks its error. "Nothing yet" is an entry, −1.
        raise GroupLoadInProgressError(f"the coordinator of {group!r} said nothing of {sorted(missing)}")
    return commits
