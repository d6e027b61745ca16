"""Committed offsets that belong to another log: the topic was deleted and created again, or its broker lost records.

    committed: 61 of Zk0dPQ…    the topic is now Q8vR1x…    → a new topic, of which nothing was processed
    committed: 61 of Zk0dPQ…    its log ends at 40          → it lost its end: the last of the 40 may be new records

A client would drop or skip the records up to offset 61 silently. A recreated topic is read from its start: no outputs
exist for its records. A log that lost its end is not read on: from its start, or from anywhere else, records would be
decided twice or never, so a person decides.
"""

from collections.abc import Mapping
from typing import NamedTuple

from aiokafka import TopicPartition

from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.streams.lost_offset import replaced_alert, replaced_sentence
from headrace.streams.raw import Outgoing


def replaced_logs(
    offsets: Mapping[str, int], ends: Mapping[TopicPartition, int], read_from: Mapping[str, str], ids: Mapping[str, str]
) -> list[ReplacedLog]:
    """Returns the partitions whose committed offset belongs to another log.

    ``offsets``: committed offset by topic. ``ends``: log end offsets. ``read_from``, ``ids``: former and present id of
    each topic; ids that are unknown are left out.
    """
    found = []
    for place, end in ends.items():
        at = offsets.get(place.topic, 0)
        if at > end or (at > 0 and is_new_topic(place.topic, read_from, ids)):
            found.append(ReplacedLog(place, at, end))
    return found


def is_new_topic(topic: str, read_from: Mapping[str, str], ids: Mapping[str, str]) -> bool:
    """Whether the ids show that ``topic`` was deleted and created again; arguments as of :func:`replaced_logs`."""
    return topic in read_from and read_from[topic] != ids.get(topic)


class Refusal(NamedTuple):
    """What a processor says about a log that was replaced."""

    sentence: str
    """What happened, and what to do."""
    alert: Outgoing
    """The same, as an alert."""


def refusal(bootstrap: str, group: str, log: ReplacedLog, topic_id: str, *, is_new: bool) -> Refusal:
    """Returns what the processor with the consumer group ``group`` says about ``log``, and logs it.

    ``topic_id``: present id of its topic. ``is_new``: whether it was deleted and created again.
    """
    topic, partition = log.place
    then = (
        "its start is committed. This process ends, because its client would drop the records up to that offset: start "
        "it again, unless it is supervised, and it reads the topic from its start"
        if is_new
        else "which of the records that it holds now were processed is unknown, so it is not read on. With every "
        "process of the group stopped, set the offset at which to continue: kafka-consumer-groups.sh "
        f"--bootstrap-server {bootstrap} --group {group} --topic {topic}:{partition} --reset-offsets --to-latest "
        "--execute (leaves out what it holds; with --to-earliest all of that is processed, some of it again)"
    )
    sentence = replaced_sentence(group, log, then, is_new_topic=is_new)
    return Refusal(sentence, replaced_alert(group, log, topic_id, sentence, is_new_topic=is_new))
