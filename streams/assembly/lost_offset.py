"""Handles an expired committed offset: brokers delete the offsets of a group without members, after a week by default.

The assembler then reads ``events`` again from the log start offset although its output exists. Recovery loads all of
that output, with the input offsets between which each trajectory was open. Records of written trajectories are dropped
as duplicates, and only open trajectories are rebuilt. The result is exact, but needs memory for every trajectory id.

A committed offset of another log, of a deleted topic or behind the log end, is refused, with an alert.
"""

import logging

from aiokafka import TopicPartition

from headrace.schemas.kafka.consumer import ReplacedLog
from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.lost_offset import LostOffsetError, publish, replaced_alert, replaced_sentence

logger = logging.getLogger(__name__)


def check_written_trajectories(limits: FoldLimits, written: int, source: TopicPartition) -> None:
    """Log that a start without a committed offset rereads ``source``, of which ``written`` trajectories exist.

    Raises :class:`LostOffsetError` if they are more than ``max_remembered``: they may not fit into memory.
    """
    if not written:
        return
    name = f"{source.topic}[{source.partition}]"
    if written > limits.max_remembered:
        raise LostOffsetError(
            f"the committed offset of {name} has expired on the broker (offsets.retention.minutes), and {written:,} "
            f"of its trajectories are in {TRAJECTORIES.name}. Rereading the partition from its start requires all of "
            f"them in memory, and max_remembered is {limits.max_remembered:,}. Start once with "
            f"assemble.max_remembered={written * 2} (about {written // 2000 + 1} MB more memory); nothing is written "
            "twice. To prevent this, set the broker's offsets.retention.minutes above the longest time for which the "
            "assembler is stopped. If another group's assembler wrote the trajectories, set "
            "assemble.shares_output=true"
        )
    logger.warning(
        "the committed offset of %s has expired on the broker (offsets.retention.minutes): the partition is read again "
        "from its start, with all %d written trajectories in memory. None is written twice; dead letters are written "
        "again with the same ids.",
        name, written,
    )  # fmt: skip


async def replaced(bootstrap: str, group: str, log: ReplacedLog, topic_id: str, *, is_new: bool) -> LostOffsetError:
    """Returns the error for ``log``, which is not the one that the group ``group`` assembled up to ``log.position``,
    after an alert. ``topic_id``: present id of its topic. ``is_new``: whether that was deleted and created again.
    """
    then = (
        "with the assembler stopped, delete the group (kafka-consumer-groups.sh --bootstrap-server "
        f"{bootstrap} --delete --group {group}), and start it again: it reads from the beginning, and writes nothing "
        "twice"
    )
    sentence = replaced_sentence(SOURCE, log, then, is_new_topic=is_new)
    await publish(bootstrap, replaced_alert(SOURCE, log, topic_id, sentence, is_new_topic=is_new))
    return LostOffsetError(sentence)
