"""A trajectory's score."""

from enum import StrEnum
from typing import ClassVar

from pydantic import model_validator

from headrace.schemas.arrays import TokenIds
from headrace.schemas.bounds import Count, Name, PositiveCount, Total, UnixMs
from headrace.schemas.events import EndStatus, Purpose, Role
from headrace.schemas.finite import RewardValue
from headrace.schemas.model import Part, Record
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect


class Component(Part):
    """One term of a reward."""

    value: RewardValue
    """Value before weighting."""
    weight: RewardValue
    """Its weight when the trajectory was scored, after any schedule."""
    details: dict[str, float] = {}
    """Parts of the value, such as a judge's score for each rubric."""


MAX_HINTS = 4
"""Most hints for one trajectory."""

MAX_HINT_TOKENS = 256
"""Most tokens of a hint."""


class HintRefusal(StrEnum):
    """Why a hint is not distilled. Counted where it is refused: in the reward, the training group or the step."""

    RAISED = "raised"
    """The spec's function for hints raised."""
    TOO_MANY = "too_many"
    """More hints than a trajectory, or a step, may have."""
    REPEATED = "repeated"
    """Another hint for the same turn came first."""
    OUT_OF_RANGE = "out_of_range"
    """The trajectory has no such turn, or less context before it than the hint's gap."""
    OTHER_TENANT = "other_tenant"
    """The hint is of another tenant than the trajectory."""
    GROUP_TOO_LARGE = "group_too_large"
    """The group's record would have been too large with its hints."""
    UNLOCATED = "unlocated"
    """The record does not say which tokens the turn sampled: it is of an older release, and has several segments."""
    MASKED = "masked"
    """No token of the turn is trained: it sampled none, or a correction masks them."""
    VOCABULARY = "vocabulary"
    """It has a token that the model does not have."""
    TOO_LONG = "too_long"
    """Context, hint and turn are longer than the model's longest sequence."""


class Hint(Part):
    """A text that would have helped at a turn, as tokens. The trainer can distil the policy that reads it into the
    policy that does not, for this turn only (``trainer/batches/turn_hints.py``)."""

    turn: Count
    """Index in the trajectory's turns."""
    token_ids: TokenIds
    """(K,) the hint, with its chat template's tokens if there are any."""
    gap: Count = 0
    """Number of context tokens between the hint and the turn's first sampled token: those with which a chat template
    begins an answer. 0: the hint is directly before the turn."""
    source: Name = ""
    """What produced it: a rule, a judge, a person."""
    tenant: Name | None = None
    """Owner of the data in the hint; the trainer refuses a hint of another tenant than the trajectory's."""

    @model_validator(mode="after")
    def _is_bounded(self) -> "Hint":
        if not 1 <= len(self.token_ids) <= MAX_HINT_TOKENS:
            raise ValueError(f"a hint of {len(self.token_ids)} tokens: 1 to {MAX_HINT_TOKENS} are allowed")
        return self


class Reward(Record):
    """A trajectory's score under one version of one reward spec."""

    TYPE: ClassVar[str] = "headrace.trajectory.scored.v1"

    trajectory_id: Name
    """The trajectory."""
    trajectory: Reference
    """Position of its record in ``trajectories``."""
    agent: Name = ""
    """Name of the agent; empty if the start is missing."""
    run: Name = ""
    """Training run; empty if the start is missing."""
    task_id: Name | None = None
    """Task."""
    group_id: Name | None = None
    """Group."""
    group_size: PositiveCount | None = None
    """Expected number of members."""
    cohort_key: Name | None = None
    """Key that groups single attempts in production, where no prompt is attempted twice."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or evaluation."""
    role: Role = Role.TRAINABLE
    """Trainable or frozen."""
    tenant: Name | None = None
    """Owner of the data."""
    task_source: Name = ""
    """Where the task comes from: the text ``source`` of its data; empty if it has none."""
    tripwire: bool = False
    """Whether the task cannot be solved, so that a success shows a fault or a hack: ``tripwire`` of its data."""
    spec: Name
    """Reward spec, with its version: ``search@1``."""
    components: dict[str, Component] = {}
    """All terms, by name."""
    total: RewardValue | None
    """The reward; ``None`` if it could not be computed."""
    maximum: float | None = None
    """Largest possible total, if the spec defines it; dashboards normalise by it."""
    unscored: str | None = None
    """Why there is no total."""
    revision: Total = 0
    """0 for the first score. Feedback that arrives after the window produces another revision for the same trajectory
    and spec."""
    feedback: list[Reference] = []
    """Positions in ``feedback`` of the records that the score uses, in order."""
    defects: list[Defect] = []
    """Defects of the trajectory."""
    oldest_version: Total | None = None
    """Oldest policy version among its tokens."""
    newest_version: Total | None = None
    """Newest policy version among its tokens."""
    sampled_tokens: Total = 0
    """Tokens sampled."""
    turns: Total = 0
    """Number of model calls, plus one if a tool was called before the first."""
    status: EndStatus | None = None
    """How it ended."""
    ended_ms: UnixMs
    """Stream time of its last event, Unix milliseconds."""
    hints: list[Hint] = []
    """Hints for its turns, at most ``MAX_HINTS``."""
    hints_refused: dict[Name, Total] = {}
    """Number of hints that the spec gave and that are not in ``hints``, by reason: ``too_many``, ``other_tenant`` …"""
    parent_trajectory_id: Name | None = None
    """For a continuation: the trajectory that it continues."""
    fork_group_id: Name | None = None
    """For a continuation: the group in whose partition its reward is written."""
    continuations: Total | None = None
    """Number of continuations for which it ended; ``None`` or 0 if it ended for good."""

    @model_validator(mode="after")
    def _has_few_hints(self) -> "Reward":
        if len(self.hints) > MAX_HINTS:
            raise ValueError(f"{len(self.hints)} hints for one trajectory: at most {MAX_HINTS} are allowed")
        return self
