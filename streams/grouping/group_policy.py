"""How rewards become groups: a policy per reward spec, as plain settings.

    {"*":        {"baseline": "leave_one_out"},
     "checkout": {"by": "cohort", "baseline": "running", "half_life": 500, "warmup": 50},
     "tab@2":    {"by": "cohort", "baseline": "threshold", "threshold": 0.0}}

A spec's policy is that of its label (``tab@2``), else of its name (``tab``), else ``*``, else the default: by group id,
the mean, all members or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import msgspec

from headrace.streams.grouping.baselines import Baseline
from headrace.streams.rewards.toggle import Toggle

TOLERANCE = 1e-6
"""Rewards closer than this are equal. Tests the spread and not the mean: 0.1 + 0.2 is not 0.3."""

MAX_GROUP_SIZE = 1024
"""Largest group: its training record must fit into Kafka's. A reward that asks for more is rejected as ``oversize``."""

EVERY_SPEC = "*"
"""The policy of every spec that has none of its own."""


class GroupBy(StrEnum):
    """What makes rewards members of one group."""

    ID = "id"
    """Their group id."""
    COHORT = "cohort"
    """Their group id or, where they have none, their cohort key."""


class Incomplete(StrEnum):
    """What becomes of a group whose time is over before all members came."""

    REJECT = "reject"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """How the rewards of one spec become groups."""

    by: GroupBy = GroupBy.ID
    """What makes a group. A reward with a group id is grouped by it in either case."""
    size: int | None = None
    """Members at which a group of a cohort is complete. By id: the size where no reward says it."""
    within_s: float | None = None
    """Log time from a group's first member to its end, in seconds; ``None``: the worker's ``group_timeout_s``."""
    baseline: Baseline = Baseline.MEAN
    """What is subtracted from rewards. ``running`` decides each reward of a cohort at once, against the mean of those
    before it; groups by id have no before, and under it the mean of their members."""
    tolerance: float = TOLERANCE
    """Rewards closer than this are equal; an advantage below it is none."""
    incomplete: Incomplete | None = None
    """``reject`` or ``shrink`` to the members that came; ``None``: reject by id, shrink in a cohort."""
    min_members: int = 2
    """Members with a reward that a shrunk group must have."""
    threshold: float = 0.0
    """The ``threshold`` baseline. 0 where the reward is signed by itself."""
    half_life: float | None = None
    """Rewards after which one weighs half in the ``running`` baseline; ``None``: the plain mean of all."""
    warmup: int = 16
    """Rewards of a cohort that only fill the ``running`` baseline and are rejected as ``no_baseline``."""
    toggle: Toggle | None = None
    """Length budgets in every other phase; ``None``: none."""

    def __post_init__(self) -> None:
        for wrong, text in (
            (self.size is not None and not 1 <= self.size <= MAX_GROUP_SIZE, f"size must be 1 to {MAX_GROUP_SIZE}"),
            (self.within_s is not None and self.within_s <= 0, "within_s must be above 0"),
            (self.tolerance < 0, "tolerance must be at least 0"),
            (self.min_members < 1, "min_members must be at least 1"),
            (self.half_life is not None and self.half_life <= 0, "half_life must be above 0"),
            (self.warmup < 1, "warmup must be at least 1"),
            (self._running and self.by is GroupBy.ID, "baseline 'running' needs by = 'cohort'"),
            (self._running and self.size is not None, "baseline 'running' takes no size: each reward is decided alone"),
            (self._collects and self.size is None, f"by = 'cohort' with baseline {self.baseline.value!r} needs a size"),
        ):
            if wrong:
                raise ValueError(text)

    @property
    def _running(self) -> bool:
        return self.baseline is Baseline.RUNNING

    @property
    def _collects(self) -> bool:
        return self.by is GroupBy.COHORT and self.baseline in (Baseline.MEAN, Baseline.LEAVE_ONE_OUT)

    @property
    def cohort_size(self) -> int:
        """Members at which a cohort's group is complete. A threshold needs no others: 1, unless told."""
        return self.size or 1

    def shrinks(self, *, cohort: bool) -> bool:
        """Whether a group whose time is over is made of the members that came."""
        return cohort if self.incomplete is None else self.incomplete is Incomplete.SHRINK

    def timeout_ms(self, default_ms: int) -> int:
        """Log time from a group's first member to its end, in milliseconds."""
        return default_ms if self.within_s is None else round(self.within_s * 1000)


DEFAULT_POLICY = GroupPolicy()


@dataclass(frozen=True, slots=True)
class GroupPolicies:
    """The policy of every reward spec."""

    by_spec: Mapping[str, GroupPolicy] = field(default_factory=dict)
    """Spec label, spec name or ``*`` → policy."""

    def of(self, label: str) -> GroupPolicy:
        """The policy of the spec ``label`` (``search@1``)."""
        if not self.by_spec:
            return DEFAULT_POLICY
        name = label.partition("@")[0]
        found = (self.by_spec.get(key) for key in (label, name, EVERY_SPEC))
        return next((policy for policy in found if policy is not None), DEFAULT_POLICY)


DEFAULT_POLICIES = GroupPolicies()


def parse_policies(settings: Mapping[str, Mapping[str, Any]], *, name: str = "workers.group_policies") -> GroupPolicies:
    """The policies that ``settings`` say. Raises ``ValueError`` that names the setting, under ``name``, and why."""
    return GroupPolicies({spec: _policy(policy, f"{name}[{spec!r}]") for spec, policy in settings.items()})


def _policy(settings: Mapping[str, Any], name: str) -> GroupPolicy:
    if not isinstance(settings, Mapping):
        raise ValueError(f"{name} is {settings!r}: write the policy's fields, as in {{'baseline': 'mean'}}")
    _refuse_unknown(settings, GroupPolicy, name)
    toggle = settings.get("toggle")
    if isinstance(toggle, Mapping):
        _refuse_unknown(toggle, Toggle, f"{name}['toggle']")
    try:
        return msgspec.convert(dict(settings), GroupPolicy)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _refuse_unknown(settings: Mapping[str, Any], kind: type[GroupPolicy | Toggle], name: str) -> None:
    known = [each.name for each in fields(kind)]
    if unknown := sorted(set(settings) - set(known)):
        raise ValueError(f"{name} has no field {', '.join(map(repr, unknown))}: the fields are {', '.join(known)}")
