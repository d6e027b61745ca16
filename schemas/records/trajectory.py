"""A trajectory: one attempt, folded from its events, with the defects that prevent training."""

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
    """Why a trajectory cannot be trained. A defect is a label and not a filter: the trajectory is still counted."""

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
    """Model calls each of which extends the context of the one before; axis legend: T tokens, S sampled tokens.

    Segments of a trajectory may share tokens: a fork begins with those with which an earlier call ended, as context.
    """

    token_ids: TokenIds
    """(T,) context and sampled tokens in order."""
    loss_mask: LossMask
    """(T,) 1 on tokens that this segment's calls sampled, 0 on context. Each token that the trajectory sampled is
    marked in one segment."""
    logprobs: LogProbs | None
    """(S,) behaviour log-probability of each sampled token; ``None`` if any is missing."""
    version_spans: list[VersionSpan]
    """Policy versions over sampled-token indices ``[0, S)``; empty if any is missing."""
    sampling_spans: list[SamplingSpan] = []
    """Temperatures over sampled-token indices ``[0, S)``. Empty in records of older releases, whose temperature is
    unknown; the trainer rejects them as ``unknown_sampling``."""

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
    """Id that pairs call and return."""
    tool: Name
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Parsed arguments."""
    thinking_tokens: Total | None = None
    """Tokens sampled before the call as thinking about it; ``None``: not distinguished from the call."""
    status: ToolStatus | None = None
    """Success or failure; ``None`` if the return is missing."""
    error_class: ToolErrorClass | None = None
    """Cause of a failure."""
    result: Any = None
    """Result of the tool."""
    latency_s: Seconds | None = None
    """Seconds from call to return."""


class Turn(Part):
    """A model call and the events between it and the next model call."""

    sampled_tokens: Total = 0
    """Tokens sampled."""
    finish_reason: Name | None = None
    """Why sampling stopped."""
    messages: list[dict[str, Any]] | None = None
    """New messages, in OpenAI's format, if recorded."""
    tools: list[ToolUse] = []
    """Tool calls of the turn, in order."""
    pruned_ids: list[str] = []
    """Ids of the pieces that the turn removed from the context."""
    summarized: bool = False
    """Whether the turn ended with a summary of the context."""
    snapshot_id: Name | None = None
    """The last snapshot of the environment that was taken after the turn's model call and before the next one;
    ``None`` if none was."""
    segment: Total | None = None
    """Index of the segment that holds its tokens. ``None`` without a model call, without segments, and in records of
    older releases."""


class ToolStatistics(Part):
    """Use of one tool in a trajectory."""

    calls: Total = 0
    """Number of calls."""
    errors: dict[str, int] = {}
    """Number of failures by error class."""
    seconds: NonNegativeFloat = 0.0
    """Sum of latencies, in seconds."""


class SequenceRange(Part):
    """Sequence numbers ``[start, end)``."""

    start: Total
    """First number."""
    end: Total
    """First number after the range."""


class Trajectory(Record):
    """One attempt, folded from its events. The only record that holds tokens."""

    TYPE: ClassVar[str] = "headrace.trajectory.assembled.v1"

    trajectory_id: Name
    """The trajectory."""
    started: TrajectoryStarted | None
    """Its start event; ``None`` if the event is missing."""
    segments: list[Segment] = []
    """Its tokens, in the order of the segments' first calls. Empty if any model call lacks token ids."""
    turns: list[Turn] = []
    """Its turns, in order."""
    tools: dict[Name, ToolStatistics] = {}
    """Use of each tool, by name."""
    critical_steps: Total = 0
    """Σ over stages of the main agent's step plus the slowest sub-agent's (Kimi K2.5)."""
    total_steps: Total = 0
    """Number of model calls, including those of sub-agents."""
    subagents_assigned: Total = 0
    """Number of sub-agents started."""
    subagents_finished: Total = 0
    """Number of sub-agents that completed."""
    sampled_tokens: Total = 0
    """Tokens sampled in all segments."""
    status: EndStatus | None = None
    """How it ended; ``None`` if it did not end."""
    answer: Any = None
    """The final answer."""
    outcome: RewardValue | None = None
    """Verifiable outcome."""
    missing: list[Total] = []
    """The first 256 sequence numbers that never arrived; ``missing_ranges`` has all."""
    missing_ranges: list[SequenceRange] = []
    """All sequence numbers that never arrived, ascending; always empty in records of older releases."""
    missing_count: Total = 0
    """Number of sequence numbers that never arrived; always 0 in records of older releases."""
    unreadable: list[Total] = []
    """Sequence numbers of events that arrived but could not be read; each event is in ``dead-letters``."""
    events: Total = 0
    """Number of events, without duplicates."""
    duplicates: Total = 0
    """Number of duplicate events."""
    defects: list[Defect] = []
    """Why it cannot be trained; empty if it can."""
    first: Reference
    """Position of its first event in ``events``."""
    last: Reference
    """Position of its last event in ``events``."""
    closed_offset: Offset | None = None
    """Offset in ``events`` at which it was closed: its events at or after this offset are late. ``None`` in records of
    older releases."""
    start_id: Name | None = None
    """``ce_id`` of its event 0, which distinguishes that event from another run's; ``None`` if it is missing or longer
    than 512 bytes."""
    started_ms: UnixMs
    """Time of its earliest event, Unix milliseconds."""
    ended_ms: UnixMs
    """Time of its latest event, Unix milliseconds."""
    traceparent: str | None = None
    """Trace context of the agent's span: that of the first event that has one."""
    continuations: Total | None = None
    """Number of continuations for which it ended; ``None`` or 0 if it ended for good."""

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Sequence numbers that never arrived, as ranges ``[start, end)``, for records of any release."""
        if self.missing_ranges:
            return [(gap.start, gap.end) for gap in self.missing_ranges]
        return [(number, number + 1) for number in self.missing]

    @property
    def never_arrived(self) -> int:
        """Number of its events that never arrived, for records of any release."""
        return max(self.missing_count, len(self.missing))

    @property
    def turn_count(self) -> int:
        """Number of its turns."""
        return len(self.turns)

    @property
    def versions(self) -> list[int]:
        """Versions of its run that sampled it, ascending; unknown versions and those of other runs are omitted."""
        spans = (span for segment in self.segments for span in segment.version_spans if not self.is_foreign(span))
        return sorted({span.version for span in spans if span.version is not None})

    def is_foreign(self, span: VersionSpan) -> bool:
        """Return whether the policy of another run sampled ``span``, so that its version is not one of this run."""
        return span.run is not None and self.started is not None and span.run != self.started.run
