"""The alerts of the sink about partitions whose log does not have the committed offset."""

from aiokafka import TopicPartition

from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.kafka.expired import expired_range
from headrace.streams.clickhouse.commits import Commit
from headrace.streams.clickhouse.unstored import SOURCE
from headrace.streams.lost_offset import expired_alert, replaced_alert, replaced_sentence
from headrace.streams.raw import Outgoing


def loss_alert(place: TopicPartition, commit: Commit, begin: int, end: int, topic_id: str) -> Outgoing | None:
    """Returns the alert if ``commit`` does not lie in the log of ``place`` from ``begin`` to ``end``, which it counts
    and logs; ``None`` if it does, or nothing was committed.
    """
    if (expired := expired_range(place, commit.offset, begin)) is not None:
        return expired_alert(SOURCE, expired, announced=commit.announced_end(place.partition))
    is_new_topic = commit.of_deleted is not None
    at = commit.of_deleted if commit.of_deleted is not None else commit.offset
    if at <= end and not is_new_topic:
        return None
    log = ReplacedLog(place, at, end)
    then = "it is read from its start. The rows of what it held before stay in ClickHouse."
    sentence = replaced_sentence(SOURCE, log, then, is_new_topic=is_new_topic)
    return replaced_alert(SOURCE, log, topic_id, sentence, is_new_topic=is_new_topic)
