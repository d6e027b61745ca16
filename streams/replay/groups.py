"""Rewards of a range grouped again: each partition of ``rewards`` by the operator of live grouping.

Rewards come in stream time, so time is known exactly: what is due by then is closed first. A group that stays
incomplete near the range's beginning may have lost members to it; it is left out and counted, and so is what is still
open at the end. Every other reward has its one fate.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.topics import TRAINING
from headrace.streams.grouping.group import SOURCE
from headrace.streams.grouping.group_state import GroupState, remembered
from headrace.streams.grouping.groups import GroupChanges, Groups
from headrace.streams.processors.group import TRAINED, GroupOperator
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.replay.rewards import written
from headrace.streams.rules import Rules
from headrace.streams.runtime.operator_run import OperatorRun
from headrace.streams.runtime.processor import Effects

CUT = "rewards_cut_at_begin"
OPEN = "rewards_open_at_end"
REPEATED = "rewards_repeated"


class Regrouping:
    """The groups of all partitions of ``rewards``."""

    def __init__(self, rules: Rules, *, partitions: int) -> None:
        """``partitions``: number of partitions of ``rewards``."""
        self.counts: Counter[str] = Counter()
        """Numbers of decided and undecided rewards, by reason."""
        self._cut_ms: int | None = None
        operators = [RangeGroupOperator(rules, self.counts, lambda: self._cut_ms) for _ in range(partitions)]
        self._runs = [OperatorRun(SOURCE, operator, strict=False) for operator in operators]

    def cut(self, time_ms: int) -> None:
        """Note that records may be missing at ``time_ms``: the range begins there, or a trajectory was skipped."""
        self._cut_ms = max(time_ms, self._cut_ms or 0)

    def take(self, record: LogRecord) -> list[Outgoing]:
        """Process the next record of ``rewards``; returns what is written because of it."""
        run = self._runs[record.partition]
        run.process(record)
        return written(run.flush()[1], self.counts)

    def finish(self, end_ms: int) -> list[Outgoing]:
        """Advance stream time to the end of the range; groups that are still open are counted."""
        out = []
        for run in self._runs:
            run.operator.advance(end_ms, 0)
            out += written(run.flush()[1], self.counts)
        decided = sum(count for name, count in self.counts.items() if name in (CUT, REPEATED, TRAINED))
        rejected = sum(count for name, count in self.counts.items() if name.startswith("rejected_"))
        self.counts[OPEN] = self.counts.pop("grouped", 0) - decided - rejected
        return out


class RangeGroupOperator(GroupOperator):
    """Group, if members may be missing because a range begins in the middle of the log."""

    def __init__(self, rules: Rules, counts: Counter[str], cut_ms: Callable[[], int | None]) -> None:
        """``cut_ms`` returns the latest stream time at which records may be missing; counts go to ``counts``."""
        super().__init__(Groups(rules.groups, policies=rules.policies))
        self._rules = rules
        self._counts = counts
        self._cut_ms = cut_ms

    def process(self, record: LogRecord) -> None:
        """Close what is due by the time of the record, then fold its reward into its group. A revision is of a reward
        that is counted already.
        """
        self.groups.pass_time(record.timestamp, self._changes)
        ignored = self._changes.ignored
        reward = self.fold(record)
        if reward.revision == 0:
            self._counts["grouped"] += 1
            self._counts[REPEATED] += self._changes.ignored - ignored

    def flush(self) -> Effects:
        """Decisions of groups that are complete in the range, without live grouping's counts of rollouts and without
        state, which a replay does not store.
        """
        changes = self._changes
        if not changes.outputs:
            self._changes = GroupChanges()
            return Effects()
        cut = set(self._cut(changes))
        self._counts[CUT] += len(cut)
        kept = []
        for decided in changes.outputs:
            record = decided.record
            if isinstance(record, TrainingGroup):
                members = [member.trajectory_id for member in record.members]
                if cut.issuperset(map(remembered, members)):
                    continue
                self._counts[TRAINING.name] += 1
                self._counts[TRAINED] += len(members)
            elif remembered(record.trajectory_id) in cut:
                continue
            else:
                self._counts[f"rejected_{record.reason}"] += 1
            kept.append(decided._replace(rollouts=None))
        changes.outputs[:] = kept
        changes.stored.clear()
        return super().flush()

    def _cut(self, changes: GroupChanges) -> Iterator[str]:
        """Trajectories (:func:`remembered`) whose group closed incomplete so early that the range may have cut it."""
        cut_ms = self._cut_ms()
        if cut_ms is None:
            return
        for state in changes.stored.values():
            if not isinstance(state, GroupState) or state.closed is None or state.cohort_key is not None:
                continue
            timeout_ms = self._rules.policies.of(state.spec).timeout_ms(self._rules.groups.timeout_ms)
            if len(state.closed) < (state.size or len(state.closed) + 1) and state.opened_ms < cut_ms + timeout_ms:
                yield from state.closed
