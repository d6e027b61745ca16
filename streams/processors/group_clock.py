"""Determines stream time in idle partitions of ``rewards``.

Rewards have the timestamps of trajectories from several partitions, which score reads one after the other. So before a
group times out, the broker is queried for records in flight to it, and all of them must have been read.
"""

import logging
from collections.abc import Mapping
from time import monotonic

from aiokafka.errors import KafkaError

from headrace.schemas.topics import REWARDS
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.grouping.in_flight import Upstream, read_upstream
from headrace.streams.processors.group import GroupOperator
from headrace.streams.raw import LogRecord
from headrace.streams.runtime.stream_time import IDLE_GRACE_S, Reading

logger = logging.getLogger(__name__)

LOOK_S = 10.0
"""Longest interval in seconds between checks for records in flight to waiting groups; short timeouts check more often.
"""


class GroupClock:
    """Stream time of the partitions that this process owns."""

    def __init__(self, bootstrap: str, limits: GroupLimits) -> None:
        """``bootstrap``: Kafka brokers, ``host:port``, comma-separated."""
        self._bootstrap = bootstrap
        self._limits = limits
        self._look_at = 0.0
        self._seen_at: dict[int, float] = {}
        self._known: dict[
            int, tuple[int, int]
        ] = {}  # stream time by partition, and the end up to which it must be read

    def start(self, operators: Mapping[int, GroupOperator]) -> None:
        """Start with the partitions that this process now owns."""
        self._seen_at = dict.fromkeys(operators, monotonic())
        self._known = {}

    def see(self, record: LogRecord) -> None:
        """Note that a record was read."""
        self._seen_at[record.partition] = monotonic()

    async def passed_ms(self, waiting: Mapping[int, GroupOperator], reading: Reading) -> dict[int, int]:
        """Returns the confirmed stream time of partitions with waiting groups, Unix milliseconds."""
        # Taken before the check: a record that arrives during it may be newer than one in flight from another source.
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
            # Everything written before the check must have been read; on a busy partition that takes a moment.
            if number in waiting and await reading.has_taken(REWARDS.name, number, end):
                del self._known[number]
                passed[number] = now_ms
        return passed

    def _quiet_ms(self, number: int, operator: GroupOperator) -> int | None:
        """Returns stream time if nothing is in flight: that of the newest record, plus any silence beyond a grace."""
        newest_ms = operator.groups.time.newest_ms
        silent_s = max(0.0, monotonic() - self._seen_at[number] - IDLE_GRACE_S)
        return None if newest_ms is None else newest_ms + round(silent_s * 1000)

    async def _look_upstream(self) -> Upstream | None:
        """Check what is in flight; ``None`` if the last check was a moment ago or the broker does not answer."""
        if monotonic() < self._look_at:
            return None
        self._look_at = monotonic() + min(LOOK_S, self._limits.step_ms / 2000)
        try:
            return await read_upstream(self._bootstrap)
        except (KafkaError, LookupError) as error:
            logger.warning(
                "group timeouts are paused: the broker could not be queried for records in flight: %s", error
            )
            return None
