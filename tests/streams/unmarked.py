"""A partition without the marker of a transaction, as Kafka 4.3.0 leaves it when it is stopped too early."""

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace.schemas.topics import Topic


async def let_partitions_be_left_out(bootstrap: str) -> None:
    """Have the broker take a transaction's records without asking the coordinator, as it did before Kafka 3.6."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        trusting = {"transaction.partition.verification.enable": "false"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", trusting)])
    finally:
        await admin.close()


def leave_out(producer: AIOKafkaProducer, topic: Topic) -> None:
    """Report no further partitions of ``topic`` to the coordinator: they get no markers."""
    manager = producer._txn_manager
    add = manager.maybe_add_partition_to_txn

    def add_others(place: TopicPartition) -> None:
        if place.topic != topic.name:
            add(place)

    manager.maybe_add_partition_to_txn = add_others
