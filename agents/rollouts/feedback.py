"""What became of a sampler's groups, from the records about them: pass rates, and groups without a gradient. Pure.

    watched = GroupFeedback(passes_at=0.5)
    watched.began("g7", level=1, size=8)
    watched.add(reward)            →  None, until the group's eighth reward: GroupResult(level=1, pass_rate=0.625)
    watched.add(rejection)         →  DecidedGroup(level=1, fate="zero_variance_all_fail"), once a group

A group's result is known when all of its attempts are scored, some time before it is trained or rejected. Records may
be repeated, late or missing: nothing waits for them, and what is remembered of groups is bounded.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.agents.rollouts.curriculum import GroupResult
from headrace.schemas.events import EndStatus, Purpose, Role
from headrace.schemas.model import Record
from headrace.schemas.records.group import ZERO_VARIANCE, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reward import Reward

REMEMBERED = 4_096
"""Number of groups that are remembered; the oldest are forgotten, with their feedback."""


_OF_GROUPS = frozenset({Reason.INCOMPLETE_GROUP, Reason.NO_BASELINE, Reason.RAISED})
"""Other reasons with which grouping rejects all members of a group."""

_OF_NO_MEMBER = frozenset(
    {Reason.RESTARTED, Reason.EVALUATION, Reason.FROZEN_ROLE, Reason.FOREIGN_GROUP, Reason.LATE_FOR_GROUP}
)
"""Reasons with which grouping rejects what only names a group: they say nothing about it."""


class GroupFate(StrEnum):
    """What grouping made of a group."""

    GRADIENT = "gradient"
    ALL_SUCCESS = "zero_variance_all_success"
    ALL_FAIL = "zero_variance_all_fail"
    ALL_EQUAL = "zero_variance_all_equal"
    REJECTED = "rejected"
    """Rejected for another reason: incomplete, unscored …"""


@dataclass(frozen=True, slots=True)
class DecidedGroup:
    """A group that was decided."""

    level: int | None
    """Level of its task."""
    fate: GroupFate
    """What became of it."""


@dataclass(slots=True)
class _Group:
    level: int | None
    size: int
    passed: dict[str, bool] = field(default_factory=dict)
    """Whether an attempt passed, by trajectory."""
    is_complete: bool = False
    rejected: set[str] = field(default_factory=set)
    """Members that were rejected for reasons of their own: others may be trained."""
    fate: GroupFate | None = None


class GroupFeedback:
    """Feedback on the groups of one sampler; records about other groups are ignored."""

    def __init__(self, passes_at: float = 0.5, remembered: int = REMEMBERED) -> None:
        """``passes_at``: reward, as a share of its maximum, from which an attempt has passed. ``remembered``: number of
        groups."""
        self._passes_at = passes_at
        self._remembered = remembered
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    def began(self, group_id: str, *, level: int | None, size: int) -> None:
        """Follow a group of ``size`` attempts."""
        self._groups[group_id] = _Group(level, size)
        while len(self._groups) > self._remembered:
            self._groups.popitem(last=False)

    def add(self, record: Record) -> GroupResult | DecidedGroup | None:
        """Fold a record; return a group's result or fate when it becomes known, once each."""
        match record:
            case Reward():
                return self._scored(record)
            case TrainingGroup():
                return self._decided(record.group_id, GroupFate.GRADIENT)
            case Rejection(stage=Stage.GROUP, reason=reason, group_id=str(group_id)) if reason not in _OF_NO_MEMBER:
                if reason in ZERO_VARIANCE:
                    return self._decided(group_id, GroupFate(reason))
                if reason in _OF_GROUPS or self._all_rejected(group_id, record.trajectory_id):
                    return self._decided(group_id, GroupFate.REJECTED)
                return None
            case _:
                return None

    def _scored(self, reward: Reward) -> GroupResult | None:
        group = self._groups.get(reward.group_id or "")
        if group is None or group.is_complete or reward.total is None or not reward.maximum:
            return None
        is_member = reward.purpose is Purpose.TRAIN and reward.role is Role.TRAINABLE
        if not is_member or reward.status is EndStatus.RESTARTED:
            return None
        group.passed[reward.trajectory_id] = reward.total / reward.maximum >= self._passes_at
        if len(group.passed) < group.size:
            return None
        group.is_complete = True
        return GroupResult(group.level, sum(group.passed.values()) / len(group.passed), len(group.passed))

    def _all_rejected(self, group_id: str, trajectory_id: str) -> bool:
        """Note a rejected member; return whether no other is left. The topics of groups and of rejections are not read
        in the order of the decisions."""
        group = self._groups.get(group_id)
        if group is None or group.fate is not None:
            return False
        group.rejected.add(trajectory_id)
        return len(group.rejected) >= group.size

    def _decided(self, group_id: str, fate: GroupFate) -> DecidedGroup | None:
        """Return a group's first fate."""
        group = self._groups.get(group_id)
        if group is None or group.fate is not None:
            return None
        group.fate = fate
        return DecidedGroup(group.level, fate)
