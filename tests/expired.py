"""Records deleted before a reader reads them, as retention deletes them in time."""

from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete

from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS
from headrace.schemas.wire import decode


async def delete_before(bootstrap: str, place: TopicPartition, offset: int) -> None:
    """Delete the records of ``place`` before ``offset`` immediately."""
    async with open_admin(bootstrap) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=offset)})


async def expired_alerts(bootstrap: str, source: str) -> list[tuple[str, int, int, int]]:
    """Returns topic, partition, log start and number of unread offsets, of the alerts of ``source``."""
    read = [decode(record.headers, record.value)[1] async for record in read_to_end(bootstrap, ALERTS, decided=True)]
    return [
        (each.details["topic"], each.details["partition"], each.details["begin"], each.details["unread"])
        for each in read
        if isinstance(each, Alert) and (each.kind, each.source) == ("records_expired", source)
    ]
