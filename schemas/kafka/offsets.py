"""Committed offsets of consumer groups."""

from collections.abc import Collection

from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from headrace.schemas.kafka.clients import open_admin


# The coordinator may be moving or loading, for example after a restart of the broker.
@retry(
    retry=retry_if_exception_type(KafkaError), wait=wait_exponential(0.1, 2), stop=stop_after_delay(60), reraise=True
)
async def committed_offsets(
    bootstrap: str, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offset and metadata of ``group`` for each of ``partitions``; offset −1 if it committed none.

    Retries for up to a minute while the coordinator is loading, then raises aiokafka's error.
    """
    async with open_admin(bootstrap) as admin:
        commits: dict[TopicPartition, OffsetAndMetadata] = await admin.list_consumer_group_offsets(
            group, partitions=list(partitions)
        )
    if missing := set(partitions) - commits.keys():
        # The coordinator is still loading, and the client ignores its error. "Nothing committed" is an entry with −1.
        raise GroupLoadInProgressError(f"the coordinator of {group!r} returned no offsets of {sorted(missing)}")
    return commits
