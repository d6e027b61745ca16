"""What a sampler has under way, and whether it may begin more. Pure.

A group is under way from its beginning until each of its trajectories is trained or rejected. A sampler begins another
only while

    groups under way < min(limit, share · budget)

``budget`` is what the trainer grants all samplers of the run together: AReaL's admission rule, by which nothing is
sampled that will be too stale to train. ``limit`` is the sampler's own; while no budget is known it alone holds.
"""

from collections.abc import Iterable

from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.step import Budget, Step


class UnderWay:
    """Groups begun and not settled, by the ids of their trajectories: telling the same fact twice changes nothing."""

    def __init__(self, limit: int, share: float = 1.0) -> None:
        """``limit``: most groups under way here. ``share``: this sampler's part of the run's budget, in (0, 1]; those
        of all samplers should add up to 1. Raises ``ValueError`` for others."""
        if limit < 1:
            raise ValueError(f"limit is {limit}: expected at least 1 group")
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}: expected a part of the run's budget, above 0 and up to 1")
        self.budget: Budget | None = None
        """What the trainer granted last; ``None`` where it never did."""
        self._limit = limit
        self._share = share
        self._group_of: dict[str, str] = {}
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def allowed(self) -> int:
        """Most groups under way at present. A share too small for a group is one group, unless none is granted."""
        if self.budget is None:
            return self._limit
        granted = max(int(self._share * self.budget.max_groups), min(1, self.budget.max_groups))
        return min(self._limit, granted)

    @property
    def has_room(self) -> bool:
        """Whether another group may begin."""
        return len(self._open) < self.allowed

    def granted(self, budget: Budget) -> bool:
        """The trainer granted ``budget``; whether that changes anything."""
        before, self.budget = self.allowed, budget
        return self.allowed != before

    def begun(self, trajectory_ids: Iterable[str]) -> None:
        """A group of these was begun. Ids are not used twice."""
        ids = list(dict.fromkeys(trajectory_ids))
        for trajectory_id in ids:
            self._group_of[trajectory_id] = ids[0]
        if ids:
            self._open[ids[0]] = len(ids)

    def settled(self, trajectory_id: str) -> bool:
        """A trajectory has its fate; whether that ends its group. Those of other samplers do not concern us."""
        group = self._group_of.pop(trajectory_id, None)
        if group is None:
            return False
        self._open[group] -= 1
        if self._open[group]:
            return False
        del self._open[group]
        return True


def settled_by(record: Record) -> list[str]:
    """The trajectories whose fate ``record`` tells: those of a step, or the one that was rejected."""
    if isinstance(record, Step):
        return [trajectory_id for group in record.groups for trajectory_id in group.trajectory_ids]
    return [record.trajectory_id] if isinstance(record, Rejection) else []
