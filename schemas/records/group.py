"""Results of grouping scored trajectories: training groups, and rejections with a reason."""

from enum import StrEnum
from typing import ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from headrace.schemas.model import Part, Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Hint


class Stage(StrEnum):
    """The stage at which a trajectory was rejected."""

    GROUP = "group"
    ADMISSION = "admission"
    TRAINING = "training"


class Reason(StrEnum):
    """Why a trajectory is not trained. The reason for a defect has the defect's name."""

    CONFLICT = "conflict"
    MISSING_EVENTS = "missing_events"
    NO_START = "no_start"
    NO_END = "no_end"
    NO_CONSENT = "no_consent"
    FROZEN_ROLE = "frozen_role"
    REDACTED = "redacted"
    NO_TOKEN_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    NOTHING_SAMPLED = "nothing_sampled"
    UNKNOWN_VERSION = "unknown_version"
    BROKEN_PREFIX = "broken_prefix"
    TRUNCATED_SAMPLING = "truncated_sampling"
    GREEDY_SAMPLING = "greedy_sampling"
    ALTERED_SAMPLING = "altered_sampling"
    UNKNOWN_SAMPLING = "unknown_sampling"
    BAD_EVENT = "bad_event"
    OVERSIZE = "oversize"
    EVALUATION = "evaluation"
    UNSCORED = "unscored"
    FORKED = "forked"
    NO_GROUP = "no_group"
    RESTARTED = "restarted"
    ALL_SUCCESS = "zero_variance_all_success"
    ALL_FAIL = "zero_variance_all_fail"
    ALL_EQUAL = "zero_variance_all_equal"
    INCOMPLETE_GROUP = "incomplete_group"
    LATE_FOR_GROUP = "late_for_group"
    SURPLUS = "surplus"
    NO_BASELINE = "no_baseline"
    STALE = "stale"
    STALE_TOKENS = "stale_tokens"
    ADMISSION_PAUSED = "admission_paused"
    OTHER_RUN = "other_run"
    FOREIGN_GROUP = "foreign_group"
    VOCABULARY = "vocabulary"
    TOO_LONG = "too_long"
    GROUP_TOO_LONG = "group_too_long"
    UNRESOLVED = "unresolved"
    IMPLAUSIBLE_LOGPROBS = "implausible_logprobs"
    DIVERGED = "diverged"
    CRASHED = "crashed"
    RAISED = "raised"


ZERO_VARIANCE = frozenset({Reason.ALL_SUCCESS, Reason.ALL_FAIL, Reason.ALL_EQUAL})
"""Reasons with which grouping rejects all members of a group without a gradient: their rewards are all equal."""


class Rejection(Record):
    """A trajectory that will not be trained, and why."""

    TYPE: ClassVar[str] = "headrace.trajectory.rejected.v1"

    trajectory_id: str
    """The trajectory."""
    trajectory: Reference
    """Position of its record in ``trajectories``."""
    stage: Stage
    """Stage at which it was rejected."""
    reason: Reason
    """Why it was rejected."""
    run: str = ""
    """Training run."""
    task_id: str | None = None
    """Task."""
    group_id: str | None = None
    """Group."""
    policy_version: NonNegativeInt | None = None
    """Oldest policy version among its tokens."""
    reward: float | None = None
    """Its reward, if it has one."""


class Member(Part):
    """A trajectory of a training group."""

    trajectory_id: str
    """The trajectory."""
    trajectory: Reference
    """Position of its record in ``trajectories``."""
    reward: float
    """Its reward."""
    advantage: float
    """Reward minus baseline: the factor of every sampled token's objective in the loss."""
    baseline: float | None = None
    """Baseline of this member, if members have different baselines (leave-one-out); otherwise the group's applies."""
    oldest_version: NonNegativeInt
    """Oldest policy version among its tokens."""
    sampled_tokens: PositiveInt
    """Tokens to train."""
    hints: list[Hint] = []
    """Hints for its turns, as in its reward."""


class TrainingGroup(Record):
    """Trajectories of one prompt that produce a gradient."""

    TYPE: ClassVar[str] = "headrace.group.formed.v1"

    group_id: str
    """The group."""
    run: str
    """Training run."""
    task_id: str
    """Task."""
    spec: str
    """Reward spec."""
    baseline: str
    """Name of the baseline: ``mean`` …"""
    baseline_value: float
    """The baseline, subtracted from the rewards."""
    cohort_key: str | None = None
    """Cohort, for a group of single attempts."""
    expected: PositiveInt | None = None
    """Expected number of members, if known."""
    scored: PositiveInt
    """Number of members with a reward, trainable or not."""
    reward_std: NonNegativeFloat | None = None
    """Sample standard deviation (n − 1) of the rewards of all scored members, trained or not, from which the baseline
    was computed. ``None`` if there is only one member, and in records of older releases."""
    members: list[Member]
    """Members to train, ordered by trajectory id."""
    oldest_version: NonNegativeInt
    """Oldest policy version among all members' tokens."""
    hints_refused: NonNegativeInt = 0
    """Number of its members' hints that were left out because the record would have been too large."""
