"""Facts: the events that record what an agent did. They are never edited once they are in the log.

The terms: a *trajectory* is one attempt at a task; a *model call* samples tokens; a *tool call* acts on the
environment; a *context change* (summary, prune) rewrites what the model sees next; the *end* states the outcome.

    tool.called {"call_id": "c1", "tool": "search_corpus", "arguments": {"query": "where does ada work"}}
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from headrace.schemas.arrays import LogProbs, TokenIds
from headrace.schemas.bounds import (
    MAX_COUNT,
    MAX_OFFSET,
    MAX_STEPS,
    MAX_TOTAL,
    Count,
    Milliseconds,
    Name,
    PositiveCount,
    Seconds,
    Total,
    UnixMs,
    Within,
)
from headrace.schemas.finite import RewardValue
from headrace.schemas.model import Part, Record


class Role(StrEnum):
    """Whether the policy in training sampled the trajectory, or a frozen policy whose output is an observation."""

    TRAINABLE = "trainable"
    FROZEN = "frozen"


class Purpose(StrEnum):
    """Purpose of a trajectory: training data, or an evaluation that must never be trained on."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class EndStatus(StrEnum):
    """How a trajectory ended, as reported by the agent."""

    COMPLETED = "completed"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TURNS_EXHAUSTED = "turns_exhausted"
    ABORTED = "aborted"
    FAILED = "failed"
    RESTARTED = "restarted"
    """The process that made the attempt ended, and its successor could not continue it; another attempt replaces it."""


class ToolStatus(StrEnum):
    """Whether a tool call succeeded."""

    OK = "ok"
    ERROR = "error"


class ToolErrorClass(StrEnum):
    """Cause of a failed tool call: the policy (invalid arguments), the environment, or the agent's own code."""

    INVALID_ARGUMENTS = "invalid_arguments"
    REFUSED = "refused"
    ENVIRONMENT = "environment"
    PROVIDER = "provider"
    ABORTED = "aborted"
    TIMEOUT = "timeout"


class SnapshotKind(StrEnum):
    """What a snapshot of an environment contains."""

    FILES = "files"
    """The files of the work folder."""
    MEMORY = "memory"
    """The files and the memory of the running processes."""


class VersionSpan(Part):
    """The policy version that sampled tokens ``[start, end)`` of an array."""

    version: Count | None
    """Policy version; ``None`` if the engine did not report which weights it served."""
    start: Count
    """First token of the span."""
    end: Count
    """One past the last token of the span."""
    run: Name | None = None
    """Training run to which the version belongs; ``None`` if the engine did not report it."""


MAX_TEMPERATURE = 1e6
"""Largest temperature; at this value all tokens are equally likely."""

MAX_PENALTY = 1e6
"""Largest magnitude of a penalty on logits."""

Temperature: TypeAlias = Annotated[NonNegativeFloat, Within(MAX_TEMPERATURE)]
Penalty: TypeAlias = Annotated[float, Within(MAX_PENALTY)]


class SamplingSpan(Part):
    """The temperature at which tokens ``[start, end)`` of an array were sampled; nothing else changed the
    distribution."""

    temperature: Temperature | None
    """Temperature; ``None`` if it was not recorded."""
    start: Count
    """First token of the span."""
    end: Count
    """One past the last token of the span."""


def tile(spans: Sequence[VersionSpan | SamplingSpan], length: int) -> bool:
    """Return whether ``spans`` cover each token of ``[0, length)`` exactly once, in order, and none is empty."""
    ends = [0, *(span.end for span in spans)]
    return (
        [span.start for span in spans] == ends[:-1]
        and all(span.start < span.end for span in spans)
        and ends[-1] == length
    )


class LogprobsOf(StrEnum):
    """Distribution whose log-probabilities an engine reports (vLLM's ``--logprobs-mode``)."""

    PROCESSED = "processed"
    """The distribution that was sampled from, after temperature and all other modifications."""
    RAW = "raw"
    """The model's own distribution at temperature 1, regardless of what was sampled from (vLLM's default)."""


LEAST_TEMPERATURE = 0.01
"""Below this temperature sampling is greedy, or the engine replaces the temperature (vLLM uses this value instead)."""


class Sampling(Part):
    """Sampling parameters of a model call that were in effect, including defaults of the server.

    Training needs the distribution that was sampled from. The trainer can reproduce the temperature only; tokens
    sampled under any other modification are labelled and not trained. The description of each field states what its
    absence means. Parameters that are not fields here may change the distribution too: if one has a value other than
    null, the tokens are labelled ``unknown_sampling``. Leave out parameters that do not change the distribution.
    """

    UNKNOWN_FIELDS_MATTER: ClassVar[bool] = True
    """Readers that drop unknown fields of other records must keep these, or have the model read the record."""

    temperature: Temperature | None = None
    """Temperature; below 0.01 sampling counts as greedy. ``None``: not recorded, and the tokens are labelled
    ``unknown_sampling``."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1 keeps every token."""
    top_k: Annotated[int, Within(MAX_COUNT)] = 0
    """Number of likeliest tokens to keep; 0 or −1 keeps every token."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Smallest probability relative to the likeliest token; 0 keeps every token."""
    max_tokens: PositiveCount | None = None
    """Largest number of tokens to sample."""
    seed: Annotated[int, Within(MAX_OFFSET)] | None = None
    """Seed of the engine's sampler, if one was set."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the logits of tokens that were sampled before; 0: none."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from the logits of tokens once per earlier occurrence; 0: none."""
    repetition_penalty: Annotated[float, Field(gt=0), Within(MAX_PENALTY)] = 1.0
    """Divisor of the logits of tokens that occurred before; 1: none."""
    min_tokens: Count = 0
    """Number of tokens before which no end token is sampled; 0: none."""
    altered_by: list[str] = []
    """Other parameters that changed the distribution, by the engine's names: ``logit_bias``, ``structured_output``,
    ``bad_words``, ``no_repeat_ngram`` …"""
    logprobs: LogprobsOf | None = None
    """Which log-probabilities were recorded. At temperature 1 without modifications both kinds are the same; at other
    temperatures ``raw`` and ``None`` (not recorded) are labelled ``unknown_sampling``."""

    @property
    def truncates(self) -> bool:
        """Whether tokens were removed from the distribution, which biases the recorded log-probabilities."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token was always chosen."""
        return self.temperature is not None and self.temperature < LEAST_TEMPERATURE

    @property
    def is_altered(self) -> bool:
        """Whether anything other than temperature and truncation changed the distribution."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.min_tokens > 0
            or len(self.altered_by) > 0
        )

    @property
    def unknown_fields(self) -> list[str]:
        """Sorted names of recorded parameters that are not fields; null means that a parameter was not in effect."""
        extra = getattr(self, "model_extra", None) or {}  # structs (streams/structs.py) have no model_extra
        return sorted(name for name, value in extra.items() if value is not None)

    @property
    def is_unknown(self) -> bool:
        """Whether the temperature is not recorded, the log-probabilities may be those of another temperature, or an
        unknown parameter was in effect."""
        if self.temperature is None or self.unknown_fields:
            return True
        return self.temperature != 1 and not self.is_greedy and self.logprobs != "processed"


class Usage(Part):
    """Token counts of a model call, as reported by the engine."""

    prompt_tokens: Count = 0
    """Tokens of the prompt; 0 if they were not counted."""
    completion_tokens: Count = 0
    """Tokens sampled; 0 if they were not counted, or if there are none."""


class Streamed(Part):
    """A result that was produced item by item."""

    items: Count = 0
    """Number of items."""
    kept: Count = 0
    """Number of leading items that the event contains: texts joined, other items as a list."""
    first_item_s: Seconds | None = None
    """Seconds from the first request to the first item; ``None`` without an item."""
    seconds: Seconds | None = None
    """Seconds from the first request to the end, including the time in which nobody requested an item."""
    complete: bool = True
    """Whether the stream ended by itself; otherwise its reader stopped, or it failed."""


class AgentRecord(Record):
    """An event with texts of an agent or of its users."""

    masked: dict[str, Any] = {}
    """Number of parts of its texts that were hidden before it was sent, by kind: ``email``, ``api_key``,
    ``payment_card``, a pattern's name, ``function``; ``failed`` for texts hidden whole because masking them failed."""


class TrajectoryStarted(AgentRecord):
    """An attempt at a task begins."""

    TYPE: ClassVar[Literal["headrace.trajectory.started.v1"]] = "headrace.trajectory.started.v1"

    task_id: Name
    """The attempted task."""
    group_id: Name | None = None
    """Group of attempts at the same prompt, which are compared with one another."""
    group_size: PositiveCount | None = None
    """Number of attempts in the group."""
    cohort_key: Name | None = None
    """Key that groups single attempts in production, where no prompt is attempted twice."""
    agent: Name
    """Name of the agent."""
    harness_version: Name = ""
    """Version of the code around the model."""
    run: Name = "default"
    """Training run, or recorded data set, to which the trajectory belongs."""
    role: Role = Role.TRAINABLE
    """Whether its tokens may be trained."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or evaluation."""
    parent_trajectory_id: Name | None = None
    """For a sub-agent: the orchestrator's trajectory. For a continuation (``fork_turn`` is set): the trajectory that it
    continues."""
    consent: bool = True
    """Whether the user agreed to training on it."""
    tenant: Name | None = None
    """Owner of the data."""
    sample_rate: float = Field(default=1.0, gt=0, le=1)
    """Share of the traffic that is recorded."""
    task: dict[str, Any] = {}
    """Data that the reward needs and the model must not see (targets, expected answer), and labels for analysis."""
    fork_turn: Count | None = None
    """For a continuation: after how many model calls of its parent it begins. Its first model call has their tokens as
    context, without a prefix. ``None``: it continues no other trajectory."""
    fork_group_id: Name | None = None
    """For a continuation whose parent is trained: group of the parent (with several levels, of the outermost one), in
    whose partition of ``rewards`` its own reward is written."""
    tools_offered: Name = ""
    """The tools that its first model call may use: names, sorted, joined by commas, at most 200 characters
    (``schemas/tools_offered.py``); empty if there are none or if they are unknown."""


class ModelCalled(AgentRecord):
    """A model call and its answer.

    The context is sent as a difference: ``context_ids`` follow an exact prefix, identified by length and hash. It is
    the context of an earlier call of the trajectory with the tokens that this call sampled: usually the previous call,
    but any one if calls overlap, branch or return to an earlier state. With ``prefix_length`` 0, ``context_ids`` are
    the whole context: at the first call, or after the context was rewritten.
    """

    TYPE: ClassVar[Literal["headrace.model.called.v1"]] = "headrace.model.called.v1"

    model: Name
    """Model name in the request."""
    prefix_length: Count = 0
    """Number of leading context tokens that are an earlier call's context and sampled tokens."""
    prefix_sha256: Name | None = None
    """Hash of the prefix (``prefix_hash``); ``None`` if the prefix is empty."""
    context_ids: TokenIds | None = None
    """Context tokens after the prefix; ``None`` if tokens are unknown (a closed model)."""
    sampled_ids: TokenIds | None = None
    """Tokens that the model sampled."""
    logprobs: LogProbs | None = None
    """Log-probability of each sampled token under the policy that sampled it."""
    version_spans: list[VersionSpan] = []
    """Policy versions that sampled the ranges of ``sampled_ids``."""
    sampling: Sampling = Sampling()
    """Sampling parameters."""
    finish_reason: Name | None = None
    """Why sampling stopped: stop, length, tool_calls, abort."""
    messages: list[dict[str, Any]] | None = None
    """New messages of the call and the answer, in OpenAI's format; ``None`` if hidden or not used."""
    hidden: list[str] = []
    """Names of the fields that the agent redacted before it sent the event."""
    latency_s: Seconds | None = None
    """Seconds from request to answer."""
    usage: Usage = Usage()
    """Token counts."""
    call_id: Name | None = None
    """Id that the gateway gave the request; all answers to it share the id."""
    choice: Count | None = None
    """Index of this answer among the answers to the request (``n``), each of which is an event of its own."""
    delivered: bool | None = None
    """Whether the client received the whole answer; ``None`` if unknown."""

    @model_validator(mode="after")
    def _arrays_agree(self) -> "ModelCalled":
        if self.prefix_length and self.prefix_sha256 is None:
            raise ValueError("prefix_sha256 is required if prefix_length > 0")
        if self.logprobs is not None and len(self.logprobs) != len(self.sampled_ids or ()):
            raise ValueError(f"{len(self.logprobs)} logprobs for {len(self.sampled_ids or ())} sampled_ids")
        position = 0
        for span in self.version_spans:
            if span.start != position or span.end <= span.start:
                raise ValueError(f"version_spans must tile sampled_ids in order; [{span.start}, {span.end}) does not")
            position = span.end
        if self.version_spans and position != len(self.sampled_ids or ()):
            raise ValueError(f"version_spans end at {position}, sampled_ids at {len(self.sampled_ids or ())}")
        return self


class ToolCalled(AgentRecord):
    """The agent called a tool."""

    TYPE: ClassVar[Literal["headrace.tool.called.v1"]] = "headrace.tool.called.v1"

    call_id: Name
    """Id that pairs the call with its return, unique within the trajectory."""
    tool: Name
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Parsed arguments; ``{"raw": …}`` if the model's text could not be parsed."""
    thinking_tokens: Count | None = None
    """Tokens that the model sampled before this call as thinking about it; ``None``: not distinguished from the
    call."""


class ToolReturned(AgentRecord):
    """A tool returned its result or failed."""

    TYPE: ClassVar[Literal["headrace.tool.returned.v1"]] = "headrace.tool.returned.v1"

    call_id: Name
    """Id of the call."""
    tool: Name
    """Name of the tool."""
    status: ToolStatus = ToolStatus.OK
    """Success or failure."""
    error_class: ToolErrorClass | None = None
    """Cause of a failure."""
    result: Any = None
    """Result of the tool, as JSON."""
    latency_s: Seconds | None = None
    """Seconds from call to return."""
    stream: Streamed | None = None
    """How ``result`` was produced, if the tool is a generator."""


class ContextSummarized(AgentRecord):
    """The context was replaced by a summary."""

    TYPE: ClassVar[Literal["headrace.context.summarized.v1"]] = "headrace.context.summarized.v1"

    summary: str | None = None
    """The summary; ``None`` if hidden."""
    tokens_before: Count
    """Context length before, in tokens."""
    tokens_after: Count
    """Context length after, in tokens."""
    chain_index: Count | None = None
    """Number of the summary in its trajectory, from 1: a trajectory with n summaries is a chain of n + 1 generations;
    ``None`` if the agent does not count them."""
    summary_tokens: Count | None = None
    """Tokens that the policy sampled for the summary; ``None`` if unknown."""


class ContextPruned(AgentRecord):
    """Pieces of the context were removed."""

    TYPE: ClassVar[Literal["headrace.context.pruned.v1"]] = "headrace.context.pruned.v1"

    pruned_ids: list[str]
    """Ids of the removed pieces."""
    tokens_before: Count
    """Context length before, in tokens."""
    tokens_after: Count
    """Context length after, in tokens."""


class SubagentStarted(AgentRecord):
    """An orchestrator gave a sub-task to a sub-agent."""

    TYPE: ClassVar[Literal["headrace.subagent.started.v1"]] = "headrace.subagent.started.v1"

    name: Name
    """Name of the sub-agent."""
    sub_trajectory_id: Name
    """The sub-agent's own trajectory."""
    stage: Count = 0
    """The orchestrator's turn; sub-agents of one stage run in parallel."""


class SubagentFinished(AgentRecord):
    """A sub-agent finished."""

    TYPE: ClassVar[Literal["headrace.subagent.finished.v1"]] = "headrace.subagent.finished.v1"

    name: Name
    """Name of the sub-agent."""
    sub_trajectory_id: Name
    """The sub-agent's own trajectory."""
    stage: Count = 0
    """The stage in which it was started."""
    status: EndStatus = EndStatus.COMPLETED
    """How it ended."""
    steps: Annotated[NonNegativeInt, Within(MAX_STEPS)] = 0
    """Number of its model calls."""


class EnvironmentSnapshotted(AgentRecord):
    """The environment's state was frozen. It is the state after the last turn whose model call is before the event."""

    TYPE: ClassVar[Literal["headrace.environment.snapshotted.v1"]] = "headrace.environment.snapshotted.v1"

    snapshot_id: Name
    """The snapshot. Equal work from the same parent may have the same snapshot."""
    parent_id: Name | None = None
    """The snapshot from which the environment started, or that it took before; ``None`` for the first one."""
    kind: SnapshotKind = SnapshotKind.FILES
    """What it contains."""
    sha256: Name | None = None
    """Digest of the content, in hexadecimal; ``None`` if the provider reports none."""
    provider: Name = ""
    """Provider of sandboxes that can restore it."""
    ms: Milliseconds = 0.0
    """Milliseconds that it took."""


class EnvironmentForked(AgentRecord):
    """Further environments were started from a snapshot, beside the one of this trajectory."""

    TYPE: ClassVar[Literal["headrace.environment.forked.v1"]] = "headrace.environment.forked.v1"

    snapshot_id: Name
    """The snapshot from which they started."""
    parent_id: Name | None = None
    """The snapshot before it."""
    kind: SnapshotKind = SnapshotKind.FILES
    """What it contains."""
    sha256: Name | None = None
    """Digest of the content, in hexadecimal; ``None`` if the provider reports none."""
    provider: Name = ""
    """Provider of the sandboxes."""
    forks: PositiveCount
    """Number of environments started."""
    ms: Milliseconds = 0.0
    """Milliseconds that starting all of them took."""


class EnvironmentRestored(AgentRecord):
    """The trajectory's environment was started from a snapshot, which another trajectory may have taken."""

    TYPE: ClassVar[Literal["headrace.environment.restored.v1"]] = "headrace.environment.restored.v1"

    snapshot_id: Name
    """The snapshot from which it started."""
    parent_id: Name | None = None
    """The snapshot before it."""
    kind: SnapshotKind = SnapshotKind.FILES
    """What it contains."""
    sha256: Name | None = None
    """Digest of the content, in hexadecimal; ``None`` if the provider reports none."""
    provider: Name = ""
    """Provider of the sandbox."""
    source_trajectory_id: Name | None = None
    """Trajectory in which the snapshot was taken, if it is another one."""
    ms: Milliseconds = 0.0
    """Milliseconds that it took."""


class TrajectoryEnded(AgentRecord):
    """The attempt ended."""

    TYPE: ClassVar[Literal["headrace.trajectory.ended.v1"]] = "headrace.trajectory.ended.v1"

    status: EndStatus = EndStatus.COMPLETED
    """How it ended."""
    answer: Any = None
    """The final answer, as JSON."""
    outcome: RewardValue | None = None
    """Verifiable outcome, if the environment knows it; ``None`` if the reward computes it."""
    error: str | None = None
    """The agent's error message, if the attempt failed."""
    stream: Streamed | None = None
    """How ``answer`` was produced, if the agent is a generator."""
    continuations: Count | None = None
    """Number of continuations, if it ended in order to be continued by several trajectories: it has no outcome of its
    own. ``None`` or 0: it ended for good."""


class ClockTicked(Record):
    """Stream time advanced on an idle partition, so that timeouts depend on the log and not on the wall clock."""

    TYPE: ClassVar[Literal["headrace.clock.ticked.v1"]] = "headrace.clock.ticked.v1"

    unix_ms: UnixMs
    """Stream time in Unix milliseconds."""


class FeedbackGiven(AgentRecord):
    """A person or a system judged a trajectory, possibly long after it ended."""

    TYPE: ClassVar[str] = "headrace.feedback.given.v1"

    signal: Name
    """Kind of feedback: score, edit_persisted, next_message, accepted, rejected …"""
    value: RewardValue
    """Its value, on the signal's own scale."""
    delay_s: Seconds | None = None
    """Seconds since the trajectory ended, if known."""
    comment: str | None = None
    """Comment in words, if given."""


class SdkStatsReported(Record):
    """Event counts of an SDK since it started, so that losses are visible."""

    TYPE: ClassVar[str] = "headrace.sdk.stats.v1"

    emitted: Total = 0
    """Events that the agent emitted."""
    sent: Total = 0
    """Events that the broker acknowledged."""
    queued: Total = 0
    """Events waiting in memory."""
    spooled: Total = 0
    """Events waiting on disk. Events emitted and adopted are those sent, queued, spooled and dropped."""
    replayed: Total = 0
    """Events that were on disk and have been sent since."""
    adopted: Total = 0
    """Events that ended processes left on disk and this one took over."""
    dropped: dict[Name, Annotated[int, Within(MAX_TOTAL)]] = {}
    """Dropped events, by reason."""
    altered: dict[str, int] = {}
    """Values sent in another form than the agent gave them (described, converted to text), by kind."""


class GatewayStatsReported(Record):
    """Counts of a gateway's calls since it started, and what is open in it."""

    TYPE: ClassVar[str] = "headrace.gateway.stats.v1"

    calls: Total = 0
    """Calls that it took."""
    errors: dict[Name, Annotated[int, Within(MAX_TOTAL)]] = {}
    """Calls that were answered with an error, by kind."""
    left: Total = 0
    """Calls whose client did not wait for the answer."""
    open_calls: Total = 0
    """Calls without an answer yet."""
    waiting: Total = 0
    """Calls that wait for an engine with room."""
    sessions: Total = 0
    """Open sessions."""
    engines: dict[Name, Annotated[int, Within(MAX_TOTAL)]] = {}
    """Calls in flight by engine; the engines behind it."""
    unacknowledged: Total = 0
    """Events that Kafka has not acknowledged, in memory and on disk."""
    spooled: Total = 0
    """Those of them that wait on disk."""
    holes: Total = 0
    """Events that are neither on disk nor in Kafka."""


Fact: TypeAlias = (
    TrajectoryStarted
    | ModelCalled
    | ToolCalled
    | ToolReturned
    | ContextSummarized
    | ContextPruned
    | SubagentStarted
    | SubagentFinished
    | EnvironmentSnapshotted
    | EnvironmentForked
    | EnvironmentRestored
    | TrajectoryEnded
    | ClockTicked
)
"""Every payload of the topic ``events``: the only list of event types.

Code that treats types differently ends its ``match`` with ``typing.assert_never``, so that mypy reports each place to
which a new type was not added. It matches ``fact.TYPE`` rather than the class if a fact may be a struct instead of a
model (:mod:`headrace.streams.structs`).
"""

FACTS: tuple[type[Record], ...] = get_args(Fact)
"""The types of :data:`Fact`, in order."""
