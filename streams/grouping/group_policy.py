"""Policies for grouping rewards: one per reward spec, as plain settings.

    {"*":        {"baseline": "leave_one_out"},
     "checkout": {"by": "cohort", "baseline": "running", "half_life": 500, "warmup": 50},
     "tab@2":    {"by": "cohort", "baseline": "threshold", "threshold": 0.0}}

A spec uses the policy of its label (``tab@2``), else of its name (``tab``), else ``*``, else the default: by group id,
mean as baseline, all members or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import msgspec

from headrace.streams.grouping.baselines import Baseline
from headrace.streams.grouping.continuations import ForkedPrefix
from headrace.streams.rewards.toggle import Toggle

TOLERANCE = 1e-6
"""Rewards closer than this count as equal, because 0.1 + 0.2 is not 0.3. Applies to the spread, not to the mean."""

MAX_GROUP_SIZE = 1024
"""Largest group: its training record must fit into its topic. A reward with a larger size is rejected as ``oversize``.
"""

EVERY_SPEC = "*"
"""Key of the policy for specs without a separate policy."""


class GroupBy(StrEnum):
    """Key by which rewards are grouped."""

    ID = "id"
    """The group id."""
    COHORT = "cohort"
    """The group id or, if there is none, the cohort key."""


class Incomplete(StrEnum):
    """What happens to a group that times out before all members have arrived."""

    REJECT = "reject"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """How the rewards of one spec are grouped."""

    by: GroupBy = GroupBy.ID
    """Grouping key. A reward with a group id is always grouped by it."""
    size: int | None = None
    """Members at which a group of a cohort is complete. By id: the size if no reward specifies it."""
    within_s: float | None = None
    """Timeout from a group's first member, in seconds of stream time; ``None``: the worker's ``group_timeout_s``."""
    baseline: Baseline = Baseline.MEAN
    """Baseline subtracted from rewards. ``running`` decides each reward of a cohort immediately, against the mean of
    the earlier ones; groups by id then use the mean of their members."""
    tolerance: float = TOLERANCE
    """Rewards closer than this count as equal, and a smaller advantage counts as none."""
    incomplete: Incomplete | None = None
    """``reject``, or ``shrink`` to the members that arrived; ``None``: reject by id, shrink in a cohort."""
    min_members: int = 2
    """Least number of members with a reward in a shrunk group."""
    threshold: float = 0.0
    """The ``threshold`` baseline; 0 for rewards that are signed already."""
    half_life: float | None = None
    """Rewards after which one weighs half in the ``running`` baseline; ``None``: the plain mean of all."""
    warmup: int = 16
    """Rewards of a cohort that only fill the ``running`` baseline and are rejected as ``no_baseline``."""
    toggle: Toggle | None = None
    """Length budgets in every other phase; ``None``: none."""
    forked_prefix: ForkedPrefix = ForkedPrefix.NEVER
    """Whether the tokens of a trajectory that ended in order to be continued by several are trained: ``never``, or
    ``once``, with the mean of its continuations' rewards as its reward. Continuations never train them."""

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
            (
                self._running and self.forked_prefix is ForkedPrefix.ONCE,
                "forked_prefix 'once' needs a group that waits: baseline 'running' decides each reward alone",
            ),
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
        """Members at which a cohort's group is complete; 1 by default, which suffices for a threshold."""
        return self.size or 1

    def shrinks(self, *, cohort: bool) -> bool:
        """Whether a group that times out shrinks to the members that arrived."""
        return cohort if self.incomplete is None else self.incomplete is Incomplete.SHRINK

    def timeout_ms(self, default_ms: int) -> int:
        """Returns the timeout from a group's first member, in milliseconds of stream time."""
        return default_ms if self.within_s is None else round(self.within_s * 1000)


DEFAULT_POLICY = GroupPolicy()


@dataclass(frozen=True, slots=True)
class GroupPolicies:
    """The policy of every reward spec."""

    by_spec: Mapping[str, GroupPolicy] = field(default_factory=dict)
    """Spec label, spec name or ``*`` → policy."""

    def of(self, label: str) -> GroupPolicy:
        """Returns the policy of the spec ``label`` (``search@1``)."""
        if not self.by_spec:
            return DEFAULT_POLICY
        name = label.partition("@")[0]
        found = (self.by_spec.get(key) for key in (label, name, EVERY_SPEC))
        return next((policy for policy in found if policy is not None), DEFAULT_POLICY)


DEFAULT_POLICIES = GroupPolicies()


def parse_policies(settings: Mapping[str, Mapping[str, Any]], *, name: str = "workers.group_policies") -> GroupPolicies:
    """Parse policies from ``settings``. Raises ``ValueError`` that names the setting, under ``name``, and the error."""
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
