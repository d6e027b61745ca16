"""How far stream time has come in partitions of ``rewards`` where nothing flows.

Rewards bear the timestamps of trajectories from several partitions, which score reads one after the other. So before a
group's time is over, it is asked what is still on its way to it, and all of that must have been read.
"""

import logging
from collections.abc import Mapping
from time import monotonic

from aiokafka.errors import KafkaError

from headrace.schemas.topics import REWARDS
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.grouping.upstream import Upstream, look_upstream
from headrace.streams.processors.group import GroupOperator
from headrace.streams.raw import LogRecord
from headrace.streams.runtime.stream_time import IDLE_GRACE_S, Reading

logger = logging.getLogger(__name__)

LOOK_S = 10.0
"""How often the broker is asked what is on its way to groups that wait, at least; short timeouts ask more often."""


class GroupClock:
    """Stream time of the partitions that are this process's."""

    def __init__(self, bootstrap: str, limits: GroupLimits) -> None:
        """On the Kafka at ``bootstrap`` (``host:port``, several by comma)."""
        self._bootstrap = bootstrap
        self._limits = limits
        self._look_at = 0.0
        self._seen_at: dict[int, float] = {}
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # stream time by partition, and the end up to which it must be read

    def start(self, operators: Mapping[int, GroupOperator]) -> None:
        """These partitions are this process's now."""
        self._seen_at = dict.fromkeys(operators, monotonic())
        self._known = {}

    def see(self, record: LogRecord) -> None:
        """A record was read."""
        self._seen_at[record.partition] = monotonic()

    async def passed_ms(self, waiting: Mapping[int, GroupOperator], reading: Reading) -> dict[int, int]:
        """Stream time that has passed for certain in partitions with groups that wait, Unix milliseconds."""
        # Before the look: what arrives during it may be later than what is still on its way from another source.
        quiet = {number: self._quiet_ms(number, operator) for number, operator in waiting.items()}
        upstream = await self._look_upstream() if waiting else None
        if upstream is not None:
            self._known = {
                number: (now_ms, upstream.ends.get(number, 0))
                for number, operator in waiting.items()
                if (now_ms := operator.groups.time.passed_without(upstream.drained, quiet[number])) is not None
            }
        passed = {}
        for number, (now_ms, end) in list(self._known.items()):
            # What had been written by then must have been read; where much flows, that is a moment later.
            if number in waiting and await reading.has_taken(REWARDS.name, number, end):
                del self._known[number]
                passed[number] = now_ms
        return passed

    def _quiet_ms(self, number: int, operator: GroupOperator) -> int | None:
        """Stream time now, if nothing is on its way: the newest record's, and goes on after a while without one."""
        newest_ms = operator.groups.time.newest_ms
        silent_s = max(0.0, monotonic() - self._seen_at[number] - IDLE_GRACE_S)
        return None if newest_ms is None else newest_ms + round(silent_s * 1000)

    async def _look_upstream(self) -> Upstream | None:
        """What is on its way; ``None`` where it was asked a moment ago, or nobody answers."""
        if monotonic() < self._look_at:
            return None
        self._look_at = monotonic() + min(LOOK_S, self._limits.step_ms / 2000)
        try:
            return await look_upstream(self._bootstrap)
        except (KafkaError, LookupError) as error:
            logger.warning("groups' time stands still: what is on its way to them could not be asked: %s", error)
            return None
