"""A committed offset that is gone: brokers forget those of a group without members, after a week by default.

The log's beginning is then read again, beside output that is there. With all of that output known, and between which
input offsets each trajectory was open, records of what was written fall out, and only what was open comes into being
again: exact, and it needs memory for every id.
"""

import logging

from aiokafka import TopicPartition

from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.lost_place import LostPlaceError

logger = logging.getLogger(__name__)


def check_written(limits: FoldLimits, written: int, source: TopicPartition) -> None:
    """Say what a start without a committed offset does where ``written`` trajectories of ``source`` are there.

    Raises :class:`LostPlaceError` where they are more than ``max_remembered``: they may not fit into memory.
    """
    if not written:
        return
    name = f"{source.topic}[{source.partition}]"
    if written > limits.max_remembered:
        raise LostPlaceError(
            f"the broker has no committed offset of {name} any more (offsets.retention.minutes), and {written:,} "
            f"trajectories of it stand in {TRAJECTORIES.name}: to read it again from its beginning, all of them must "
            f"be remembered, and max_remembered is {limits.max_remembered:,}. Start once with "
            f"assemble.max_remembered={written * 2} (some {written // 2000 + 1} MB more memory); nothing is written "
            "twice then. So that it does not come again, raise offsets.retention.minutes of the broker above the "
            "longest time that the assembler is stopped. Where another group's assembler wrote them, set "
            "assemble.shares_output=true"
        )
    logger.warning(
        "the broker has no committed offset of %s any more (offsets.retention.minutes): it is read again from its "
        "beginning, with all %d trajectories known that were written. None is written twice; dead letters are written "
        "again under their ids.",
        name, written,
    )  # fmt: skip
