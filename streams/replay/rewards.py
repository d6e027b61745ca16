"""Trajectories of a range scored again: by the specs of the replay, with the operator and hook of live scoring.

Feedback meets its trajectory in the same join as live, in stream time. Judges are not asked here: their verdicts are
given, from the record or by the caller; a component without one is ``not_judged``.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from headrace.schemas.kafka.read_back import Place
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, TRAJECTORIES, Topic
from headrace.streams.processors.decider import Decider, Verdicts
from headrace.streams.processors.score import ScoreOperator, restore_score
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Outside, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.scoring.score import SOURCE

WAITING = "rewards_waiting_for_feedback_at_end"
UNREADABLE = "unreadable"


class Rescoring:
    """Scores the trajectories of all partitions, and counts them."""

    def __init__(self, rules: Rules, verdicts: Verdicts) -> None:
        """``verdicts``: answers of judges."""
        self.counts: Counter[str] = Counter()
        """Numbers of scored trajectories, and of unscored ones by label."""
        self._rules = rules
        self._partitions: dict[int, _Partition] = {}
        self._runtime = Runtime(SOURCE, _RecordedDecider(self, rules, verdicts), strict=True)

    def take(self, record: LogRecord) -> list[Outgoing]:
        """Process the next record of ``trajectories`` or ``feedback``; returns rewards and dead letters."""
        partition = self._partition(record.partition)
        if record.topic == TRAJECTORIES.name:
            partition.latest = record
        run_to_end(self._runtime.process([record]))
        partition.latest = None
        return self._written([record.partition])

    def pass_time(self, now_ms: int) -> list[Outgoing]:
        """The rewards of windows that ended before ``now_ms``, in stream time."""
        due = [number for number, partition in self._partitions.items() if partition.operator.is_due(now_ms)]
        run_to_end(self._runtime.advance(dict.fromkeys(due, now_ms)))
        return sorted(self._written(sorted(due)), key=lambda each: each.timestamp_ms)

    def finish(self, end_ms: int) -> list[Outgoing]:
        """Advance stream time to the end of the range; trajectories that still wait are counted."""
        made = self.pass_time(end_ms)
        joins = [partition.operator.join for partition in self._partitions.values()]
        self.counts += self._runtime.counts
        self.counts[WAITING] = sum(join.open for join in joins)
        for join in joins:
            self.counts += join.counts
        return made

    async def read_back(self, topic: Topic, places: Collection[Place]) -> dict[Place, LogRecord]:
        """The held records at ``places``."""
        return {(number, offset): self._partitions[number].by_offset[offset] for number, offset in places}

    def hold(self, operators: Mapping[int, ScoreOperator]) -> None:
        """Hold trajectories that may be scored (again) later, as long as the join remembers them."""
        for number, operator in operators.items():
            for offset, trajectory in operator.joining.items():
                self._partitions[number].hold(trajectory.trajectory_id, offset)

    def _partition(self, number: int) -> "_Partition":
        if number not in self._partitions:
            operator, _ = restore_score(self._rules, Start())
            self._partitions[number] = _Partition(operator)
            self._runtime.assign(number, operator, self._partitions[number])
        return self._partitions[number]

    def _written(self, numbers: Iterable[int]) -> list[Outgoing]:
        made = [each for number in numbers for each in self._partitions[number].written()]
        self.counts[UNREADABLE] += sum(each.topic is DEAD_LETTERS for each in made)
        return [each for each in made if each.topic is not ALERTS]


class _Partition(MemoryPartition):
    """A partition in memory, with the records that may be scored again."""

    def __init__(self, operator: ScoreOperator) -> None:
        super().__init__()
        self.operator = operator
        self.latest: LogRecord | None = None
        """The trajectory that is being processed."""
        self.by_offset: dict[int, LogRecord] = {}
        """Trajectories that the join remembers."""
        self._offsets: dict[bytes, int] = {}

    def hold(self, name: str, offset: int) -> None:
        if self.latest is not None and self._offsets.setdefault(name.encode(), offset) == offset:
            self.by_offset[offset] = self.latest

    async def commit(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """As :class:`MemoryPartition`, and drop what the join forgets."""
        await super().commit(offsets, {key: value and b"" for key, value in state.items()}, outgoing)
        for name, value in state.items():
            if value is None and name in self._offsets:
                del self.by_offset[self._offsets.pop(name)]


class _RecordedDecider(Decider):
    """Scores with given verdicts."""

    def __init__(self, rescoring: Rescoring, rules: Rules, verdicts: Verdicts) -> None:
        super().__init__(rules.rewards, Outside(rescoring.read_back), verdicts)
        self._rescoring = rescoring

    async def complete(self, operators: Mapping[int, ScoreOperator]) -> None:
        """Hold new trajectories, then score what is due."""
        self._rescoring.hold(operators)
        await super().complete(operators)
