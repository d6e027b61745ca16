"""Rewards of a range grouped again: each partition of ``rewards`` by the fold that live grouping runs.

Rewards come in log time, so time is known exactly: what is due by then is closed first. A group that stays incomplete
near the range's beginning may have lost members to it; it is left out and counted, and so is what is still open at the
end. Every other reward has its one fate.
"""

from collections import Counter
from collections.abc import Iterator

from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import TRAINING
from headrace.streams.grouping.group import output_message
from headrace.streams.grouping.group_policy import GroupPolicies
from headrace.streams.grouping.group_state import GroupState, remembered
from headrace.streams.grouping.groups import Changes, GroupLimits, Groups
from headrace.streams.raw import Outgoing

CUT = "rewards_cut_at_begin"
OPEN = "rewards_open_at_end"
REPEATED = "rewards_repeated"


class Regrouping:
    """The groups of all partitions of ``rewards``."""

    def __init__(self, limits: GroupLimits, policies: GroupPolicies, *, partitions: int) -> None:
        """``partitions``: how many ``rewards`` has."""
        self.counts: Counter[str] = Counter()
        """Fates of the rewards, and what has none."""
        self._limits = limits
        self._policies = policies
        self._partitions = [Groups(limits, policies=policies) for _ in range(partitions)]
        self._cut_ms: int | None = None

    def cut(self, time_ms: int) -> None:
        """Something may be missing at ``time_ms``: the range begins there, or a trajectory was left out."""
        self._cut_ms = max(time_ms, self._cut_ms or 0)

    def take(self, reward: Reward, partition: int, time_ms: int, traceparent: str | None) -> list[Outgoing]:
        """What ``reward``, in ``partition`` of ``rewards`` at log time ``time_ms``, brings about."""
        groups, changes = self._partitions[partition], Changes()
        groups.expire_due(time_ms, changes)
        groups.add(reward, time_ms, changes, traceparent)
        # A revision is of a reward that is counted already.
        if reward.revision == 0:
            self.counts["grouped"] += 1
            self.counts[REPEATED] += changes.ignored
        return self._decided(changes)

    def finish(self, end_ms: int) -> list[Outgoing]:
        """Log time goes on to the end of the range; what is open then stays so, and is counted."""
        out = []
        for groups in self._partitions:
            changes = Changes()
            groups.expire_due(end_ms, changes)
            out += self._decided(changes)
        decided = sum(count for name, count in self.counts.items() if name in (CUT, REPEATED, "trained"))
        rejected = sum(count for name, count in self.counts.items() if name.startswith("rejected_"))
        self.counts[OPEN] = self.counts.pop("grouped", 0) - decided - rejected
        return out

    def _decided(self, changes: Changes) -> list[Outgoing]:
        cut = set(self._cut(changes))
        self.counts[CUT] += len(cut)
        out = []
        for record, time_ms, origin, _ in changes.outputs:
            if isinstance(record, TrainingGroup):
                members = [member.trajectory_id for member in record.members]
                if not cut.issuperset(map(remembered, members)):
                    self.counts[TRAINING.name] += 1
                    self.counts["trained"] += len(members)
                    out.append(Outgoing(*output_message(record, time_ms, origin=origin), time_ms))
            elif remembered(record.trajectory_id) not in cut:
                self.counts[f"rejected_{record.reason}"] += 1
                out.append(Outgoing(*output_message(record, time_ms, origin=origin), time_ms))
        return out

    def _cut(self, changes: Changes) -> Iterator[str]:
        """Trajectories (:func:`remembered`) whose group closed incomplete so early that the range may have cut it."""
        if self._cut_ms is None or not changes.outputs:
            return
        for state in changes.stored.values():
            if not isinstance(state, GroupState) or state.closed is None or state.cohort_key is not None:
                continue
            timeout_ms = self._policies.of(state.spec).timeout_ms(self._limits.timeout_ms)
            if (
                len(state.closed) < (state.size or len(state.closed) + 1)
                and state.opened_ms < self._cut_ms + timeout_ms
            ):
                yield from state.closed
