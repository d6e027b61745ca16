"""The open groups of a sampler, and whether it may begin more. Pure.

A group is open from its beginning until each of its trajectories is trained or rejected. A sampler begins another group
only while

    open groups < min(limit, share · budget)

``budget`` is what the trainer grants all samplers of the run together: AReaL's admission rule, which keeps samples
from becoming too stale to train. ``limit`` is the sampler's own; it alone applies while no budget is known.

A group that closes without a gradient makes room at once, so that another refills its place in the batch. With
``ZeroVariance.DROP`` it keeps its place until the trainer's next version, so that a step costs no more samples than
planned, unless the trainer could not fill its next step with the groups that are open: then it makes room as well.
Either way open groups stay within the budget, because a place is given to another group and never added.
"""

import math
from collections.abc import Iterable
from enum import StrEnum

from headrace.schemas.model import Record
from headrace.schemas.records.group import ZERO_VARIANCE, Rejection
from headrace.schemas.records.step import Budget, Step


class ZeroVariance(StrEnum):
    """What becomes of the place of a group whose rewards are all equal, so that it has no gradient."""

    REFILL = "refill"
    """Another group takes it at once."""
    DROP = "drop"
    """It stays empty until the trainer's next version, as far as the trainer is not left waiting."""


class OpenGroups:
    """The open groups, by the ids of their trajectories. Repeating a call has no further effect."""

    def __init__(self, limit: int, share: float = 1.0, zero_variance: ZeroVariance = ZeroVariance.REFILL) -> None:
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
        self._drops = zero_variance is ZeroVariance.DROP
        self._dropped = 0
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
    def dropped(self) -> int:
        """Number of places that stay empty until the next version."""
        return self._dropped

    @property
    def has_room(self) -> bool:
        """Whether another group may begin."""
        if self.budget is None:  # no version would end the wait of a dropped place
            return len(self._open) < self.allowed
        of_a_step = math.ceil(self._share * self.budget.groups_per_step)  # so that all samplers together fill one
        return len(self._open) < self.allowed and (
            len(self._open) + self._dropped < self.allowed or len(self._open) < of_a_step
        )

    def grant(self, budget: Budget) -> bool:
        """Apply ``budget``; return whether that may make room."""
        before, had_dropped = self.allowed, self._dropped
        if self.budget is None or budget.version != self.budget.version:
            self._dropped = 0
        self.budget = budget
        return self.allowed != before or self._dropped != had_dropped

    def begin(self, trajectory_ids: Iterable[str]) -> None:
        """Open a group of these trajectories, whose ids must be new."""
        ids = list(dict.fromkeys(trajectory_ids))
        for trajectory_id in ids:
            self._group_of[trajectory_id] = ids[0]
        if ids:
            self._open[ids[0]] = len(ids)

    def conclude(self, trajectory_id: str, *, without_gradient: bool = False) -> bool:
        """Mark a trajectory as trained or rejected; return whether that closes its group. Trajectories of other
        samplers are ignored. ``without_gradient``: whether it was rejected with the whole group, for equal rewards."""
        group = self._group_of.pop(trajectory_id, None)
        if group is None:
            return False
        self._open[group] -= 1
        if self._open[group]:
            return False
        del self._open[group]
        self._dropped += self._drops and without_gradient
        return True

    def conclude_all(self) -> bool:
        """Close every open group, because records that may have concluded it are lost; return whether there was one."""
        had_open = bool(self._open)
        self._group_of.clear()
        self._open.clear()
        self._dropped = 0
        return had_open


def concluded_by(record: Record) -> list[str]:
    """Return the trajectories that ``record`` concludes: those of a step, or the rejected one."""
    if isinstance(record, Step):
        return [trajectory_id for group in record.groups for trajectory_id in group.trajectory_ids]
    return [record.trajectory_id] if isinstance(record, Rejection) else []


def is_without_gradient(record: Record) -> bool:
    """Whether ``record`` rejects a member of a group whose rewards are all equal."""
    return isinstance(record, Rejection) and record.reason in ZERO_VARIANCE
