"""Creates topics."""

from collections.abc import Iterable

from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from headrace.schemas.kafka.clients import open_admin, open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.topics import TOPICS, Topic

BROKERS_DEFAULT = -1
"""The cluster's default replication factor."""


async def create_topics(
    bootstrap: str, topics: Iterable[Topic] = TOPICS, *, replication: int = BROKERS_DEFAULT
) -> list[str]:
    """Create the topics that are missing; return their names. Existing topics are left unchanged.

    Returns once the leader of every new partition answers. Before that, the first batch that a producer sends may be
    refused and the next one accepted; the retry of the first then looks like a duplicate to the leader, which reports
    it as written, and it is lost (idempotent producers with several requests in flight, Kafka 4.3.0).
    """
    topics = list(topics)
    async with open_admin(bootstrap) as admin:
        # The client accepts the cluster's default factor only together with an (empty) assignment of replicas.
        assignment: dict[int, list[int]] | None = {} if replication == BROKERS_DEFAULT else None
        wanted = [
            NewTopic(topic.name, topic.partitions, replication, assignment, topic_configs=topic.configs)
            for topic in topics
        ]
        response = await admin.create_topics(wanted)
        created = []
        for name, code, *rest in response.topic_errors:
            error = for_code(code)
            if code == 0:
                created.append(name)
            elif error is not TopicAlreadyExistsError:
                raise error(f"topic {name}: {rest[0] if rest else ''}")
    if created:
        async with open_consumer(bootstrap) as consumer:
            for topic in topics:
                if topic.name in created:
                    await consumer.end_offsets(await partitions_of(consumer, topic))
    return created
