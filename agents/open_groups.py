"""The open groups of a sampler, and whether it may begin more. Pure.

A group is open from its beginning until each of its trajectories is trained or rejected. A sampler begins another group
only while

    open groups < min(limit, share · budget)

``budget`` is what the trainer grants all samplers of the run together: AReaL's admission rule, which keeps samples
from becoming too stale to train. ``limit`` is the sampler's own; it alone applies while no budget is known.
"""

from collections.abc import Iterable

from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection
from headrace.schemas.records.step import Budget, Step


class OpenGroups:
    """The open groups, by the ids of their trajectories. Repeating a call has no further effect."""

    def __init__(self, limit: int, share: float = 1.0) -> None:
        """``limit``: largest number of open groups. ``share``: this sampler's share of the run's budget, in (0, 1]; the
        shares of all samplers should add up to 1. Raises ``ValueError`` for other values."""
        if limit < 1:
            raise ValueError(f"limit is {limit}: expected at least 1 group")
        if not 0 < share <= 1:
            raise ValueError(f"share is {share}: expected a share of the run's budget, above 0 and at most 1")
        self.budget: Budget | None = None
        """The latest budget from the trainer; ``None`` if there is none."""
        self._limit = limit
        self._share = share
        self._group_of: dict[str, str] = {}
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def allowed(self) -> int:
        """Largest number of open groups at present. A share of less than one group allows one group, unless the budget
        is 0."""
        if self.budget is None:
            return self._limit
        granted = max(int(self._share * self.budget.max_groups), min(1, self.budget.max_groups))
        return min(self._limit, granted)

    @property
    def has_room(self) -> bool:
        """Whether another group may begin."""
        return len(self._open) < self.allowed

    def grant(self, budget: Budget) -> bool:
        """Apply ``budget``; return whether that changes the number of allowed groups."""
        before, self.budget = self.allowed, budget
        return self.allowed != before

    def begin(self, trajectory_ids: Iterable[str]) -> None:
        """Open a group of these trajectories, whose ids must be new."""
        ids = list(dict.fromkeys(trajectory_ids))
        for trajectory_id in ids:
            self._group_of[trajectory_id] = ids[0]
        if ids:
            self._open[ids[0]] = len(ids)

    def conclude(self, trajectory_id: str) -> bool:
        """Mark a trajectory as trained or rejected; return whether that closes its group. Trajectories of other
        samplers are ignored."""
        group = self._group_of.pop(trajectory_id, None)
        if group is None:
            return False
        self._open[group] -= 1
        if self._open[group]:
            return False
        del self._open[group]
        return True

    def conclude_all(self) -> bool:
        """Close every open group, because records that may have concluded it are lost; return whether there was one."""
        had_open = bool(self._open)
        self._group_of.clear()
        self._open.clear()
        return had_open


def concluded_by(record: Record) -> list[str]:
    """Return the trajectories that ``record`` concludes: those of a step, or the rejected one."""
    if isinstance(record, Step):
        return [trajectory_id for group in record.groups for trajectory_id in group.trajectory_ids]
    return [record.trajectory_id] if isinstance(record, Rejection) else []
