"""Derived records: everything that is a fold over facts and can be rebuilt from offsets.

    facts → Trajectory → Reward → TrainingGroup | Rejection → Step → Weights → Applied

Only a ``Trajectory`` holds tokens; later records point at it by ``Reference``, so a training batch is a list of
offsets. Every trajectory ends as a member of a trained group or as a ``Rejection``; what is neither is pending.
"""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from headrace.schemas.arrays import LogProbs, LossMask, TokenIds
from headrace.schemas.events import (
    EndStatus,
    Purpose,
    Role,
    ToolErrorClass,
    ToolStatus,
    TrajectoryStarted,
    VersionSpan,
)
from headrace.schemas.model import Part, Record


class Reference(Part):
    """Where a record stands in the log. The topic follows from the field's meaning."""

    partition: NonNegativeInt
    """Partition."""
    offset: NonNegativeInt
    """Offset in the partition."""


class Defect(StrEnum):
    """What keeps a trajectory from being trained. A label and never a filter: the trajectory goes on to be counted."""

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
    BAD_EVENT = "bad_event"
    OVERSIZE = "oversize"


class Segment(Part):
    """A run of model calls whose context only grew; axis legend: T tokens, S sampled tokens."""

    token_ids: TokenIds
    """(T,) context and sampled tokens in order."""
    loss_mask: LossMask
    """(T,) 1 on tokens that this segment's calls sampled, 0 on context."""
    logprobs: LogProbs | None
    """(S,) behaviour log-probability of each token under the mask; ``None`` where any is missing."""
    version_spans: list[VersionSpan]
    """Policy versions over sampled-token indices ``[0, S)``; empty where any is missing."""

    @model_validator(mode="after")
    def _axes_agree(self) -> "Segment":
        if len(self.loss_mask) != len(self.token_ids):
            raise ValueError(f"loss_mask has {len(self.loss_mask)} entries for {len(self.token_ids)} token_ids")
        sampled = self.loss_mask.tobytes().count(1)
        if self.logprobs is not None and len(self.logprobs) != sampled:
            raise ValueError(f"{len(self.logprobs)} logprobs for {sampled} sampled tokens")
        if self.version_spans and self.version_spans[-1].end != sampled:
            raise ValueError(f"version_spans end at {self.version_spans[-1].end} of {sampled} sampled tokens")
        return self


class ToolUse(Part):
    """A tool call with its return."""

    call_id: str
    """Pairs call and return."""
    tool: str
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments as parsed."""
    status: ToolStatus | None = None
    """``None`` where no return was seen."""
    error_class: ToolErrorClass | None = None
    """Whose fault a failure is."""
    result: Any = None
    """What the tool gave back."""
    latency_s: NonNegativeFloat | None = None
    """Seconds from call to return."""


class Turn(Part):
    """A model call and what followed from it before the next."""

    sampled_tokens: NonNegativeInt = 0
    """Tokens sampled."""
    finish_reason: str | None = None
    """Why sampling stopped."""
    messages: list[dict[str, Any]] | None = None
    """New messages, in OpenAI's form, where recorded."""
    tools: list[ToolUse] = []
    """Tool calls of the turn, in order."""
    pruned_ids: list[str] = []
    """What the turn removed from the context."""
    summarized: bool = False
    """Whether the turn ended in a summary of the context."""


class ToolStatistics(Part):
    """How a tool was used in a trajectory."""

    calls: NonNegativeInt = 0
    """Calls."""
    errors: dict[str, int] = {}
    """Failures by error class."""
    seconds: NonNegativeFloat = 0.0
    """Sum of latencies."""


class Trajectory(Record):
    """One attempt, folded from its events. The only record that holds tokens."""

    TYPE: ClassVar[str] = "headrace.trajectory.assembled.v1"

    trajectory_id: str
    """The trajectory."""
    started: TrajectoryStarted | None
    """How it began; ``None`` where the event is missing."""
    segments: list[Segment] = []
    """Its tokens. Empty where any model call came without token ids."""
    turns: list[Turn] = []
    """What it did, in order."""
    tools: dict[str, ToolStatistics] = {}
    """Use of each tool."""
    critical_steps: NonNegativeInt = 0
    """Σ over stages of the main agent's step plus the slowest sub-agent's (Kimi K2.5)."""
    total_steps: NonNegativeInt = 0
    """Model calls, those of sub-agents included."""
    subagents_assigned: NonNegativeInt = 0
    """Sub-agents started."""
    subagents_finished: NonNegativeInt = 0
    """Sub-agents that completed."""
    sampled_tokens: NonNegativeInt = 0
    """Tokens sampled, all segments."""
    status: EndStatus | None = None
    """How it ended; ``None`` where it did not."""
    answer: Any = None
    """The final answer."""
    outcome: float | None = None
    """Verifiable outcome."""
    missing: list[NonNegativeInt] = []
    """Sequence numbers that never came."""
    unreadable: list[NonNegativeInt] = []
    """Sequence numbers that came and could not be read: each is in ``dead-letters``."""
    events: NonNegativeInt = 0
    """Events folded, duplicates not counted."""
    duplicates: NonNegativeInt = 0
    """Events seen twice."""
    defects: list[Defect] = []
    """Why it cannot be trained; empty where it can."""
    first: Reference
    """First of its events in ``events``."""
    last: Reference
    """Last of its events in ``events``."""
    started_ms: NonNegativeInt
    """Time of its earliest event, Unix milliseconds."""
    ended_ms: NonNegativeInt
    """Time of its latest event, Unix milliseconds."""
    traceparent: str | None = None
    """Trace context of the agent's own span: that of the first event that has one."""

    @property
    def versions(self) -> list[int]:
        """Policy versions that sampled it, ascending; unknown ones left out."""
        spans = (span for segment in self.segments for span in segment.version_spans)
        return sorted({span.version for span in spans if span.version is not None})


class Component(Part):
    """One term of a reward."""

    value: float
    """Raw value."""
    weight: float
    """Its weight at the time, after any schedule."""
    details: dict[str, float] = {}
    """What the value was made of, where one number hides something: a judge's score by rubric."""


class Reward(Record):
    """A trajectory's score under one version of one reward spec."""

    TYPE: ClassVar[str] = "headrace.trajectory.scored.v1"

    trajectory_id: str
    """The trajectory."""
    trajectory: Reference
    """Where its record stands in ``trajectories``."""
    agent: str = ""
    """Name of the agent; empty where the start is missing."""
    run: str = ""
    """Training run; empty where the start is missing."""
    task_id: str | None = None
    """Task."""
    group_id: str | None = None
    """Group."""
    group_size: PositiveInt | None = None
    """Expected members."""
    cohort_key: str | None = None
    """Groups single attempts in production, where no prompt is tried twice."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or measurement."""
    role: Role = Role.TRAINABLE
    """Trainable or frozen."""
    spec: str
    """Reward spec, with its version: ``search@1``."""
    components: dict[str, Component] = {}
    """Every term."""
    total: float | None
    """The reward; ``None`` where it could not be computed."""
    maximum: float | None = None
    """Largest possible total, where the spec knows one: dashboards normalise by it."""
    unscored: str | None = None
    """Why there is no total."""
    revision: NonNegativeInt = 0
    """0 for the first; feedback that came after the window makes another of the same trajectory and spec."""
    feedback: list[Reference] = []
    """Where the feedback that it rests on stands in ``feedback``, in order."""
    defects: list[Defect] = []
    """Labels of the trajectory."""
    oldest_version: NonNegativeInt | None = None
    """Oldest policy version among its tokens."""
    newest_version: NonNegativeInt | None = None
    """Newest policy version among its tokens."""
    sampled_tokens: NonNegativeInt = 0
    """Tokens sampled."""
    turns: NonNegativeInt = 0
    """Model calls."""
    status: EndStatus | None = None
    """How it ended."""
    ended_ms: NonNegativeInt
    """When its last event happened, Unix milliseconds (log time)."""


class Stage(StrEnum):
    """Where a trajectory was turned away."""

    GROUP = "group"
    ADMISSION = "admission"
    TRAINING = "training"


class Reason(StrEnum):
    """Why a trajectory is not trained. A defect's reason has the defect's name."""

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
    BAD_EVENT = "bad_event"
    OVERSIZE = "oversize"
    EVALUATION = "evaluation"
    UNSCORED = "unscored"
    NO_GROUP = "no_group"
    ALL_SUCCESS = "zero_variance_all_success"
    ALL_FAIL = "zero_variance_all_fail"
    ALL_EQUAL = "zero_variance_all_equal"
    INCOMPLETE_GROUP = "incomplete_group"
    LATE_FOR_GROUP = "late_for_group"
    SURPLUS = "surplus"
    NO_BASELINE = "no_baseline"
    STALE = "stale"
    STALE_TOKENS = "stale_tokens"
    OTHER_RUN = "other_run"
    VOCABULARY = "vocabulary"
    TOO_LONG = "too_long"
    GROUP_TOO_LONG = "group_too_long"
    UNRESOLVED = "unresolved"
    DIVERGED = "diverged"
    CRASHED = "crashed"


class Rejection(Record):
    """A trajectory that will not be trained, and why."""

    TYPE: ClassVar[str] = "headrace.trajectory.rejected.v1"

    trajectory_id: str
    """The trajectory."""
    trajectory: Reference
    """Where its record stands in ``trajectories``."""
    stage: Stage
    """Where it was turned away."""
    reason: Reason
    """Why."""
    run: str = ""
    """Training run."""
    task_id: str | None = None
    """Task."""
    group_id: str | None = None
    """Group."""
    policy_version: NonNegativeInt | None = None
    """Oldest policy version among its tokens."""
    reward: float | None = None
    """Its reward, where it has one."""


class Member(Part):
    """A trajectory of a training group."""

    trajectory_id: str
    """The trajectory."""
    trajectory: Reference
    """Where its record stands in ``trajectories``."""
    reward: float
    """Its reward."""
    advantage: float
    """Reward minus baseline: what the loss multiplies every sampled token's objective by."""
    baseline: float | None = None
    """What was subtracted from this member's reward, where members differ (leave-one-out); else the group's."""
    oldest_version: NonNegativeInt
    """Oldest policy version among its tokens."""
    sampled_tokens: PositiveInt
    """Tokens to train."""


class TrainingGroup(Record):
    """Trajectories of one prompt that carry a gradient."""

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
    """What was subtracted."""
    cohort_key: str | None = None
    """Cohort, for a group that was made of single attempts."""
    expected: PositiveInt | None = None
    """Members that the group should have had, where that was known."""
    scored: PositiveInt
    """Members that had a reward, trainable or not."""
    members: list[Member]
    """Those to train, by trajectory id."""
    oldest_version: NonNegativeInt
    """Oldest policy version among all members' tokens."""


class TrainedGroup(Part):
    """A group in a step, with where everything stands."""

    group_id: str
    """The group."""
    group: Reference
    """Where it stands in ``training``."""
    trajectory_ids: list[str]
    """Members trained."""
    trajectories: list[Reference]
    """Where they stand in ``trajectories``, same order."""


class BatchRecipe(Part):
    """What was done with a step's groups to make its batch: with their places, enough to make it again."""

    format: PositiveInt = 1
    """How a batch is laid out; another number may give the same tokens another hash."""
    advantage_scale: str = "none"
    """What advantages were divided by: ``none`` or ``group_std``."""
    shuffle_seed: int | None = None
    """Seed by which advantages were dealt out anew inside each group (the control); ``None``: they were not."""


class Step(Record):
    """An optimiser step, and exactly what it was trained on."""

    TYPE: ClassVar[str] = "headrace.step.trained.v1"

    run: str
    """Training run."""
    step: PositiveInt
    """1 for the first."""
    version: PositiveInt
    """Policy version that the step made."""
    groups: list[TrainedGroup]
    """What it was trained on, in the batch's order."""
    config_sha256: str
    """Hash of the trainer's settings."""
    data_sha256: str
    """Hash of the packed batch: tokens, masks, log-probs, advantages."""
    recipe: BatchRecipe | None = None
    """How the batch was made of its groups; ``None`` in steps from before this was kept."""
    array_sha256: dict[str, str] = {}
    """Hash of each of the batch's arrays, by name: tells which one differs where a rebuilt batch does."""
    metrics: dict[str, float]
    """Loss, importance ratios, KL, entropy, grad norm, staleness, tokens, seconds …"""


class Canary(Part):
    """A prompt whose log-probabilities under a version are known: what an engine must reproduce."""

    token_ids: TokenIds
    """(T,) the whole sequence."""
    logprobs: LogProbs
    """(T − 1,) the trainer's log-probability of each token after the first."""


class Manifest(Part):
    """What stands beside an object of weights, and must be verified before it is loaded."""

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version."""
    parent: NonNegativeInt | None
    """The version it was trained from."""
    files: dict[str, str]
    """Object path → sha256 (hex)."""
    sizes: dict[str, int]
    """Object path → bytes."""
    tensors: NonNegativeInt
    """Number of tensors."""
    canaries: list[Canary]
    """What an engine must reproduce after the swap."""


class Weights(Record):
    """A policy version that can be had. The record is a pointer; the weights stand in the object store."""

    TYPE: ClassVar[str] = "headrace.weights.published.v1"

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version; 0 is the base model."""
    parent: NonNegativeInt | None
    """The version it was trained from."""
    kind: str
    """``anchor`` (complete) or ``delta``."""
    manifest_uri: str
    """Where the manifest stands."""
    sha256: str
    """Hash of the manifest's bytes."""
    size: NonNegativeInt
    """Bytes of the weights."""
    step: NonNegativeInt
    """The step that made it; 0 for the base."""


class Applied(Record):
    """An engine serves a version: swapped, and its log-probabilities compared with the canary's."""

    TYPE: ClassVar[str] = "headrace.weights.applied.v1"

    run: str
    """Training run."""
    engine: str
    """The inference engine's address or name."""
    version: NonNegativeInt
    """Policy version."""
    download_s: NonNegativeFloat
    """Seconds to fetch and verify."""
    swap_s: NonNegativeFloat
    """Seconds in which requests stood still."""
    canary_max_error: NonNegativeFloat
    """Largest absolute difference of log-probabilities over the canaries."""


class Budget(Record):
    """How much may be under way: samplers of the run begin new work only while they are below it.

    AReaL's admission rule: with B groups a step, group number N begins only while ⌊(N − 1) / B⌋ ≤ i + η, i being the
    policy version. That version was made of i · B groups: so at most (η + 1) · B groups are under way. The newest
    record of a run holds; a run without one is not bounded.
    """

    TYPE: ClassVar[str] = "headrace.budget.granted.v1"

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version from which on it holds: i."""
    groups_per_step: PositiveInt
    """Groups that a step is trained on: B."""
    max_steps_ahead: NonNegativeInt
    """Steps' worth of groups that may be under way beyond those of the next step: η."""
    max_groups: NonNegativeInt
    """Most groups under way, over all samplers of the run: begun, and neither trained nor rejected. 0 where the trainer
    has trained its last step."""


class Severity(StrEnum):
    """How soon somebody should look."""

    WARNING = "warning"
    CRITICAL = "critical"


class Alert(Record):
    """Something is wrong that a person should know of."""

    TYPE: ClassVar[str] = "headrace.alert.raised.v1"

    run: str
    """Training run; empty where none."""
    source: str
    """Part that noticed."""
    kind: str
    """A stable name: ``canary_mismatch`` …"""
    severity: Severity = Severity.WARNING
    """How soon somebody should look."""
    message: str
    """What is wrong and what to do, in a sentence."""
    details: dict[str, Any] = {}
    """Figures."""


class DeadLetterError(StrEnum):
    """Why a record could not be read."""

    BAD_JSON = "bad_json"
    BAD_HEADERS = "bad_headers"
    UNKNOWN_TYPE = "unknown_type"
    INVALID = "invalid"
    NULL_VALUE = "null_value"
    OVERSIZE = "oversize"
    LATE = "late"


class DeadLetter(Record):
    """A record that could not be read, whole: nothing is lost, and it can be repaired and sent again."""

    TYPE: ClassVar[str] = "headrace.record.dead.v1"

    topic: str
    """Where it stood."""
    partition: NonNegativeInt
    """Where it stood."""
    offset: NonNegativeInt
    """Where it stood."""
    error: DeadLetterError
    """What is wrong."""
    message: str
    """What is wrong, in words."""
    key: str | None
    """Original key, base64."""
    value: str | None
    """Original bytes, base64; ``None`` for a null value."""
    headers: list[tuple[str, str | None]]
    """Original headers; values base64."""
    timestamp_ms: int
    """Original timestamp, Unix milliseconds."""
    trajectory_id: str | None = None
    """Trajectory, where it could be told."""


class Repaired(Record):
    """What a person put in the place of a dead letter's original; the latest counts. Nothing is sent by it."""

    TYPE: ClassVar[str] = "headrace.record.repaired.v1"

    topic: str
    """Where the original stood."""
    partition: NonNegativeInt
    """Where the original stood."""
    offset: NonNegativeInt
    """Where the original stood."""
    key: str | None
    """Repaired key, base64."""
    value: str
    """Repaired bytes, base64."""
    headers: list[tuple[str, str | None]]
    """Repaired headers; values base64."""


class Redriven(Record):
    """A dead letter was sent again, as it was or repaired. Each record that was sent names it in a header."""

    TYPE: ClassVar[str] = "headrace.record.redriven.v1"

    topic: str
    """Where the original stood, and where it was sent again."""
    partition: NonNegativeInt
    """Where the original stood."""
    offset: NonNegativeInt
    """Where the original stood."""
    sha256: str
    """Hash of what was sent in the original's place: headers and bytes."""
    trajectory_id: str | None = None
    """Trajectory under which it was sent, where that can be told."""
    redrive_of: str | None = None
    """The closed trajectory that was sent again as a new one; ``None`` where the record was sent alone."""
    records: PositiveInt = 1
    """Records that were sent: all events of a closed trajectory, else one."""
