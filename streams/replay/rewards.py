"""Trajectories of a range scored again: by the specs of the replay, with the operator and hook of live scoring.

Feedback meets its trajectory in the same join as live, in stream time. Judges are not asked here: their verdicts are
given, from the record or by the caller; a component without one is ``not_judged``.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, Topic
from headrace.streams.processors.score import ScoreOperator, restore_score
from headrace.streams.processors.score_hook import Decider, Verdicts
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import run_to_end
from headrace.streams.runtime.operator_run import OperatorRun
from headrace.streams.runtime.processor import Outside, Start
from headrace.streams.scoring.score import SOURCE

WAITING = "rewards_waiting_for_feedback_at_end"
UNREADABLE = "unreadable"

_AT_MOST = 500
"""Windows that are closed at a time: as many trajectories are read back at once."""


class Rescoring:
    """Scores the trajectories of all partitions, and counts them."""

    def __init__(self, rules: Rules, verdicts: Verdicts) -> None:
        """``verdicts``: answers of judges."""
        self.counts: Counter[str] = Counter()
        """Numbers of scored trajectories, and of unscored ones by label."""
        self._rules = rules
        self._partitions: dict[int, _Partition] = {}
        self._waiting: dict[int, _Partition] = {}  # those whose join has had state
        self._decider = Decider(rules.rewards, Outside(self.read_back), verdicts)

    def take(self, record: LogRecord) -> list[Outgoing]:
        """Process the next record of ``trajectories`` or ``feedback``; returns rewards and dead letters."""
        number = record.partition
        if number not in self._partitions:
            self._partitions[number] = _Partition(restore_score(self._rules, Start())[0])
        partition = self._partitions[number]
        partition.run.process(record)
        if partition.operator.waits:
            self._waiting[number] = partition
            partition.hold(record)
        return self._flushed(number, partition)

    def pass_time(self, now_ms: int) -> list[Outgoing]:
        """The rewards of windows that ended before ``now_ms``, in stream time."""
        if not self._waiting:
            return []
        made: list[Outgoing] = []
        for number, partition in sorted(self._waiting.items()):
            while partition.operator.is_due(now_ms):
                partition.operator.advance(now_ms, _AT_MOST)
                made += self._flushed(number, partition)
        return sorted(made, key=lambda each: each.timestamp_ms)

    def finish(self, end_ms: int) -> list[Outgoing]:
        """Advance stream time to the end of the range; trajectories that still wait are counted."""
        made = self.pass_time(end_ms)
        joins = [partition.operator.join for partition in self._partitions.values()]
        self.counts[WAITING] = sum(join.open for join in joins)
        for join in joins:
            self.counts += join.counts
        return made

    async def read_back(self, topic: Topic, places: Collection[Place]) -> dict[Place, LogRecord]:
        """The held records at ``places``."""
        return {(number, offset): self._partitions[number].by_offset[offset] for number, offset in places}

    def _flushed(self, number: int, partition: "_Partition") -> list[Outgoing]:
        """Rewards and dead letters that ``partition`` has made since the last call, once what is due is decided."""
        if partition.operator.changes.due:
            run_to_end(self._decider.complete({number: partition.operator}))
        effects, outgoing = partition.run.flush()
        partition.forget(effects.state)
        for name, count in effects.counts.items():
            self.counts[name] += count
        return written(outgoing, self.counts)


def written(outgoing: Iterable[Outgoing], counts: Counter[str]) -> list[Outgoing]:
    """What of ``outgoing`` a replay writes: all but alerts. Dead letters are counted in ``counts``."""
    kept = [each for each in outgoing if each.topic is not ALERTS]
    for each in kept:
        if each.topic is DEAD_LETTERS:
            counts[UNREADABLE] += 1
    return kept


class _Partition:
    """The operator of a partition, and the records that may be scored again."""

    def __init__(self, operator: ScoreOperator) -> None:
        self.operator = operator
        self.run = OperatorRun(SOURCE, operator, strict=False)
        self.by_offset: dict[int, LogRecord] = {}
        """Trajectories that the join remembers."""
        self._offsets: dict[bytes, int] = {}

    def hold(self, record: LogRecord) -> None:
        """Hold ``record`` if it is a trajectory that the operator has just passed to its join."""
        for offset, trajectory in self.operator.joining.items():
            if self._offsets.setdefault(trajectory.trajectory_id.encode(), offset) == offset:
                self.by_offset[offset] = record

    def forget(self, state: Mapping[bytes, bytes | None]) -> None:
        """Drop the trajectories that the join has dropped from its ``state``."""
        for name, value in state.items():
            if value is None and name in self._offsets:
                del self.by_offset[self._offsets.pop(name)]
