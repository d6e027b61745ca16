"""A trajectory: one attempt, folded from its events, and what keeps it from being trained."""

from enum import StrEnum
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, model_validator

from headrace.schemas.arrays import LogProbs, LossMask, TokenIds
from headrace.schemas.bounds import Name, Offset, Seconds, Total, UnixMs
from headrace.schemas.events import EndStatus, SamplingSpan, ToolErrorClass, ToolStatus, TrajectoryStarted, VersionSpan
from headrace.schemas.finite import RewardValue
from headrace.schemas.model import Part, Record
from headrace.schemas.records.reference import Reference


class Defect(StrEnum):
    """What keeps a trajectory from being trained. A label and never a filter: the trajectory goes on to be counted."""

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
    OTHER_RUN = "other_run"
    BROKEN_PREFIX = "broken_prefix"
    TRUNCATED_SAMPLING = "truncated_sampling"
    GREEDY_SAMPLING = "greedy_sampling"
    ALTERED_SAMPLING = "altered_sampling"
    UNKNOWN_SAMPLING = "unknown_sampling"
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
    sampling_spans: list[SamplingSpan] = []
    """Temperatures over sampled-token indices ``[0, S)``; empty in records from before they were kept: nobody
    knows their temperature, and the trainer turns them away as ``unknown_sampling``."""

    @model_validator(mode="after")
    def _axes_agree(self) -> "Segment":
        if len(self.loss_mask) != len(self.token_ids):
            raise ValueError(f"loss_mask has {len(self.loss_mask)} entries for {len(self.token_ids)} token_ids")
        sampled = self.loss_mask.tobytes().count(1)
        if self.logprobs is not None and len(self.logprobs) != sampled:
            raise ValueError(f"{len(self.logprobs)} logprobs for {sampled} sampled tokens")
        if self.version_spans and self.version_spans[-1].end != sampled:
            raise ValueError(f"version_spans end at {self.version_spans[-1].end} of {sampled} sampled tokens")
        if self.sampling_spans and self.sampling_spans[-1].end != sampled:
            raise ValueError(f"sampling_spans end at {self.sampling_spans[-1].end} of {sampled} sampled tokens")
        return self


class ToolUse(Part):
    """A tool call with its return."""

    call_id: Name
    """Pairs call and return."""
    tool: Name
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments as parsed."""
    status: ToolStatus | None = None
    """``None`` where no return was seen."""
    error_class: ToolErrorClass | None = None
    """Whose fault a failure is."""
    result: Any = None
    """What the tool gave back."""
    latency_s: Seconds | None = None
    """Seconds from call to return."""


class Turn(Part):
    """A model call and what followed from it before the next."""

    sampled_tokens: Total = 0
    """Tokens sampled."""
    finish_reason: Name | None = None
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

    calls: Total = 0
    """Calls."""
    errors: dict[str, int] = {}
    """Failures by error class."""
    seconds: NonNegativeFloat = 0.0
    """Sum of latencies."""


class SequenceRange(Part):
    """Sequence numbers ``[start, end)``."""

    start: Total
    """First of them."""
    end: Total
    """First after them."""


class Trajectory(Record):
    """One attempt, folded from its events. The only record that holds tokens."""

    TYPE: ClassVar[str] = "headrace.trajectory.assembled.v1"

    trajectory_id: Name
    """The trajectory."""
    started: TrajectoryStarted | None
    """How it began; ``None`` where the event is missing."""
    segments: list[Segment] = []
    """Its tokens. Empty where any model call came without token ids."""
    turns: list[Turn] = []
    """What it did, in order."""
    tools: dict[Name, ToolStatistics] = {}
    """Use of each tool."""
    critical_steps: Total = 0
    """Σ over stages of the main agent's step plus the slowest sub-agent's (Kimi K2.5)."""
    total_steps: Total = 0
    """Model calls, those of sub-agents included."""
    subagents_assigned: Total = 0
    """Sub-agents started."""
    subagents_finished: Total = 0
    """Sub-agents that completed."""
    sampled_tokens: Total = 0
    """Tokens sampled, all segments."""
    status: EndStatus | None = None
    """How it ended; ``None`` where it did not."""
    answer: Any = None
    """The final answer."""
    outcome: RewardValue | None = None
    """Verifiable outcome."""
    missing: list[Total] = []
    """Sequence numbers that never came: the first 256 of them; ``missing_ranges`` has all."""
    missing_ranges: list[SequenceRange] = []
    """All sequence numbers that never came, ascending; empty, too, in records of older releases."""
    missing_count: Total = 0
    """How many never came; 0, too, in records of older releases."""
    unreadable: list[Total] = []
    """Sequence numbers that came and could not be read: each is in ``dead-letters``."""
    events: Total = 0
    """Events folded, duplicates not counted."""
    duplicates: Total = 0
    """Events seen twice."""
    defects: list[Defect] = []
    """Why it cannot be trained; empty where it can."""
    first: Reference
    """First of its events in ``events``."""
    last: Reference
    """Last of its events in ``events``."""
    closed_offset: Offset | None = None
    """Offset in ``events`` from which on it was closed: what names it there or behind came late. ``None`` in records of
    older releases."""
    start_id: Name | None = None
    """``ce_id`` of its event 0, by which that event is told from another run's; ``None`` where it is missing or longer
    than 512 bytes."""
    started_ms: UnixMs
    """Time of its earliest event, Unix milliseconds."""
    ended_ms: UnixMs
    """Time of its latest event, Unix milliseconds."""
    traceparent: str | None = None
    """Trace context of the agent's own span: that of the first event that has one."""

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Sequence numbers that never came, as ranges ``[start, end)``, whichever release wrote the record."""
        if self.missing_ranges:
            return [(gap.start, gap.end) for gap in self.missing_ranges]
        return [(number, number + 1) for number in self.missing]

    @property
    def never_came(self) -> int:
        """How many of its events never came, whichever release wrote the record."""
        return max(self.missing_count, len(self.missing))

    @property
    def versions(self) -> list[int]:
        """Versions of its run that sampled it, ascending; unknown ones and other runs' are left out."""
        spans = (span for segment in self.segments for span in segment.version_spans if not self.is_foreign(span))
        return sorted({span.version for span in spans if span.version is not None})

    def is_foreign(self, span: VersionSpan) -> bool:
        """Whether ``span`` says that another run's policy sampled it: its version is no version of this run."""
        return span.run is not None and self.started is not None and span.run != self.started.run
