"""Agent-side facts: what an agent did, in the words it happened in. Never edited after they are in the log.

The five nouns: a *trajectory* is one attempt at a task; a *model call* samples tokens; a *tool call* acts on the
world; a *context change* (summary, prune) rewrites what the model sees next; the *end* says how it went.

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
    """Whose weights sampled the trajectory: those in training, or a fixed policy whose output is an observation."""

    TRAINABLE = "trainable"
    FROZEN = "frozen"


class Purpose(StrEnum):
    """What the trajectory is for: training data, or a measurement that must never be trained on."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class EndStatus(StrEnum):
    """How a trajectory ended, as the agent saw it."""

    COMPLETED = "completed"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TURNS_EXHAUSTED = "turns_exhausted"
    ABORTED = "aborted"
    FAILED = "failed"


class ToolStatus(StrEnum):
    """Whether a tool call gave its result."""

    OK = "ok"
    ERROR = "error"


class ToolErrorClass(StrEnum):
    """Whose fault a failed tool call is: the policy's (invalid arguments), the world's, or ours."""

    INVALID_ARGUMENTS = "invalid_arguments"
    REFUSED = "refused"
    ENVIRONMENT = "environment"
    PROVIDER = "provider"
    ABORTED = "aborted"
    TIMEOUT = "timeout"


class VersionSpan(Part):
    """The policy version that sampled tokens ``[start, end)`` of an array."""

    version: Count | None
    """Policy version; ``None`` where the engine did not say which weights it served."""
    start: Count
    """First token of the span."""
    end: Count
    """One past the last token of the span."""
    run: Name | None = None
    """Training run that the version is of; ``None`` where the engine did not say."""


MAX_TEMPERATURE = 1e6
"""At it every token is as likely as another."""

MAX_PENALTY = 1e6
"""Largest size of a penalty on logits."""

Temperature: TypeAlias = Annotated[NonNegativeFloat, Within(MAX_TEMPERATURE)]
Penalty: TypeAlias = Annotated[float, Within(MAX_PENALTY)]


class SamplingSpan(Part):
    """The temperature at which tokens ``[start, end)`` of an array were sampled; nothing else changed the policy."""

    temperature: Temperature | None
    """Temperature; ``None`` where it was not said."""
    start: Count
    """First token of the span."""
    end: Count
    """One past the last token of the span."""


def tile(spans: Sequence[VersionSpan | SamplingSpan], length: int) -> bool:
    """Whether ``spans`` cover each token of ``[0, length)`` once, in order, and none of them is empty."""
    ends = [0, *(span.end for span in spans)]
    return (
        [span.start for span in spans] == ends[:-1]
        and all(span.start < span.end for span in spans)
        and ends[-1] == length
    )


class LogprobsOf(StrEnum):
    """Whose log-probabilities an engine reports (vLLM's ``--logprobs-mode``)."""

    PROCESSED = "processed"
    """The distribution's that was sampled from: temperature and whatever else changed it included."""
    RAW = "raw"
    """The model's own at temperature 1, whatever was sampled from (vLLM's default)."""


LEAST_TEMPERATURE = 0.01
"""Below it sampling is greedy, or the engine takes another temperature than it was given (vLLM takes this one)."""


class Sampling(Part):
    """Sampling parameters of a model call, as they were in force and not only as they were asked for.

    What is trained is the distribution that was sampled from. Of all that changes it, the trainer can follow the
    temperature; tokens under anything else are labelled and not trained. A field says what its absence means. A
    parameter that is not a field here may change the distribution too: where one has a value other than null, tokens
    are labelled ``unknown_sampling``. What does not change the distribution is better left out.
    """

    UNKNOWN_FIELDS_MATTER: ClassVar[bool] = True
    """Readers that leave unknown fields of other records out must keep these, or leave the record to the model."""

    temperature: Temperature | None = None
    """0 is greedy; below 0.01 counts as that. ``None``: not said, and tokens are labelled ``unknown_sampling``."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus; 1 keeps every token."""
    top_k: Annotated[int, Within(MAX_COUNT)] = 0
    """0 or −1 keeps every token."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """0 keeps every token."""
    max_tokens: PositiveCount | None = None
    """Limit of sampled tokens."""
    seed: Annotated[int, Within(MAX_OFFSET)] | None = None
    """Seed of the engine's sampler, where one was set."""
    presence_penalty: Penalty = 0.0
    """Taken from the logits of tokens that were sampled before; 0: none."""
    frequency_penalty: Penalty = 0.0
    """The same, times how often; 0: none."""
    repetition_penalty: Annotated[float, Field(gt=0), Within(MAX_PENALTY)] = 1.0
    """By which the logits of tokens that occurred before are divided; 1: none."""
    min_tokens: Count = 0
    """Tokens before which no end is sampled; 0: none."""
    altered_by: list[str] = []
    """What else changed the distribution: ``logit_bias``, ``structured_output``, ``bad_words``,
    ``no_repeat_ngram``, … by the engine's own names."""
    logprobs: LogprobsOf | None = None
    """Whose log-probabilities were recorded. At temperature 1, unaltered, both are the same; at another one ``raw`` or
    ``None`` (not said) is labelled ``unknown_sampling``."""

    @property
    def truncates(self) -> bool:
        """Whether tokens were cut from the distribution, which biases the recorded log-probabilities."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def is_greedy(self) -> bool:
        """Whether there was nothing to sample: the likeliest token was taken."""
        return self.temperature is not None and self.temperature < LEAST_TEMPERATURE

    @property
    def is_altered(self) -> bool:
        """Whether something beside temperature and truncation changed the distribution."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.min_tokens > 0
            or len(self.altered_by) > 0
        )

    @property
    def unknown_fields(self) -> list[str]:
        """Names of parameters that were said and are not known here, in order; one that is null was not in force."""
        extra = getattr(self, "model_extra", None) or {}  # what was read into a struct has none: see streams/structs.py
        return sorted(name for name, value in extra.items() if value is not None)

    @property
    def is_unknown(self) -> bool:
        """Whether the temperature was not said, recorded log-probabilities may be of another one, or a parameter is not
        known.
        """
        if self.temperature is None or self.unknown_fields:
            return True
        return self.temperature != 1 and not self.is_greedy and self.logprobs != "processed"


class Usage(Part):
    """Token counts of a model call, as the engine reported them."""

    prompt_tokens: Count = 0
    """Tokens read."""
    completion_tokens: Count = 0
    """Tokens sampled."""


class TrajectoryStarted(Record):
    """An attempt at a task begins."""

    TYPE: ClassVar[Literal["headrace.trajectory.started.v1"]] = "headrace.trajectory.started.v1"

    task_id: Name
    """The task that is attempted."""
    group_id: Name | None = None
    """Attempts that are compared with one another share it."""
    group_size: PositiveCount | None = None
    """How many attempts the group will have."""
    cohort_key: Name | None = None
    """Groups single attempts in production, where no prompt is tried twice."""
    agent: Name
    """Name of the agent."""
    harness_version: Name = ""
    """Version of the code around the model."""
    run: Name = "default"
    """The training run, or the recorded data set, that the trajectory belongs to."""
    role: Role = Role.TRAINABLE
    """Whether its tokens may be trained."""
    purpose: Purpose = Purpose.TRAIN
    """Training data or measurement."""
    parent_trajectory_id: Name | None = None
    """The orchestrator's trajectory, for a sub-agent."""
    consent: bool = True
    """Whether the user agreed to training on it."""
    tenant: Name | None = None
    """Whose data it is."""
    sample_rate: float = Field(default=1.0, gt=0, le=1)
    """Share of the traffic that is recorded."""
    task: dict[str, Any] = {}
    """What the reward must know and the model must not see (targets, expected answer), and labels for analysis."""


class ModelCalled(Record):
    """The model was asked and answered.

    The context is sent as a difference: ``context_ids`` follow an exact prefix, which is everything that the
    trajectory's current context held (context and sampled tokens), named by its length and hash. ``prefix_length`` 0
    says that ``context_ids`` are the whole context: a first call, or a context that was rewritten.
    """

    TYPE: ClassVar[Literal["headrace.model.called.v1"]] = "headrace.model.called.v1"

    model: Name
    """Model name as asked for."""
    prefix_length: Count = 0
    """Tokens of the context that were there before and did not change."""
    prefix_sha256: Name | None = None
    """Hash of the prefix (``prefix_hash``); ``None`` with an empty prefix."""
    context_ids: TokenIds | None = None
    """Context tokens after the prefix; ``None`` where tokens are not known (a closed model)."""
    sampled_ids: TokenIds | None = None
    """Tokens that the model sampled."""
    logprobs: LogProbs | None = None
    """Log-probability of each sampled token under the policy that sampled it."""
    version_spans: list[VersionSpan] = []
    """Which policy version sampled which of ``sampled_ids``."""
    sampling: Sampling = Sampling()
    """Sampling parameters."""
    finish_reason: Name | None = None
    """Why sampling stopped: stop, length, tool_calls, abort."""
    messages: list[dict[str, Any]] | None = None
    """New messages of the call and the answer, in OpenAI's form; ``None`` where hidden or not used."""
    hidden: list[str] = []
    """Names of the fields that were redacted before they left the agent's process."""
    latency_s: Seconds | None = None
    """Seconds from request to answer."""
    usage: Usage = Usage()
    """Token counts."""

    @model_validator(mode="after")
    def _arrays_agree(self) -> "ModelCalled":
        if self.prefix_length and self.prefix_sha256 is None:
            raise ValueError("prefix_sha256 is needed with prefix_length > 0")
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


class ToolCalled(Record):
    """The agent called a tool."""

    TYPE: ClassVar[Literal["headrace.tool.called.v1"]] = "headrace.tool.called.v1"

    call_id: Name
    """Pairs the call with its return, inside the trajectory."""
    tool: Name
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments as parsed; ``{"raw": …}`` where the model's text could not be parsed."""


class ToolReturned(Record):
    """A tool gave its result or failed."""

    TYPE: ClassVar[Literal["headrace.tool.returned.v1"]] = "headrace.tool.returned.v1"

    call_id: Name
    """The call that it answers."""
    tool: Name
    """Name of the tool."""
    status: ToolStatus = ToolStatus.OK
    """Result or failure."""
    error_class: ToolErrorClass | None = None
    """Whose fault a failure is."""
    result: Any = None
    """What the tool gave back, as JSON."""
    latency_s: Seconds | None = None
    """Seconds from call to return."""


class ContextSummarized(Record):
    """The context was replaced by a summary of it."""

    TYPE: ClassVar[Literal["headrace.context.summarized.v1"]] = "headrace.context.summarized.v1"

    summary: str | None = None
    """The summary; ``None`` where hidden."""
    tokens_before: Count
    """Context length before, in tokens."""
    tokens_after: Count
    """Context length after, in tokens."""


class ContextPruned(Record):
    """Pieces of the context were removed."""

    TYPE: ClassVar[Literal["headrace.context.pruned.v1"]] = "headrace.context.pruned.v1"

    pruned_ids: list[str]
    """What was removed."""
    tokens_before: Count
    """Context length before, in tokens."""
    tokens_after: Count
    """Context length after, in tokens."""


class SubagentStarted(Record):
    """An orchestrator gave a sub-task to a sub-agent."""

    TYPE: ClassVar[Literal["headrace.subagent.started.v1"]] = "headrace.subagent.started.v1"

    name: Name
    """Name of the sub-agent."""
    sub_trajectory_id: Name
    """The sub-agent's own trajectory."""
    stage: Count = 0
    """The orchestrator's turn; sub-agents of one stage run side by side."""


class SubagentFinished(Record):
    """A sub-agent came back."""

    TYPE: ClassVar[Literal["headrace.subagent.finished.v1"]] = "headrace.subagent.finished.v1"

    name: Name
    """Name of the sub-agent."""
    sub_trajectory_id: Name
    """The sub-agent's own trajectory."""
    stage: Count = 0
    """The stage it was started in."""
    status: EndStatus = EndStatus.COMPLETED
    """How it ended."""
    steps: Annotated[NonNegativeInt, Within(MAX_STEPS)] = 0
    """Model calls it made."""


class TrajectoryEnded(Record):
    """The attempt is over."""

    TYPE: ClassVar[Literal["headrace.trajectory.ended.v1"]] = "headrace.trajectory.ended.v1"

    status: EndStatus = EndStatus.COMPLETED
    """How it ended."""
    answer: Any = None
    """The final answer, as JSON."""
    outcome: RewardValue | None = None
    """Verifiable outcome where the environment knows it; ``None`` leaves it to the reward."""
    error: str | None = None
    """What went wrong, in the agent's words, for a failed one."""


class ClockTicked(Record):
    """Log time moved on an idle partition, so that timeouts follow the log and not the wall."""

    TYPE: ClassVar[Literal["headrace.clock.ticked.v1"]] = "headrace.clock.ticked.v1"

    unix_ms: UnixMs
    """Log time in milliseconds."""


class FeedbackGiven(Record):
    """Somebody, or something, judged a trajectory, perhaps much later."""

    TYPE: ClassVar[str] = "headrace.feedback.given.v1"

    signal: Name
    """What kind: score, edit_persisted, next_message, accepted, rejected …"""
    value: RewardValue
    """Its value, in the signal's own scale."""
    delay_s: Seconds | None = None
    """Seconds since the trajectory ended, where known."""
    comment: str | None = None
    """Words, where given."""


class SdkStatsReported(Record):
    """What an SDK did since it started: counted, so that a loss is never silent."""

    TYPE: ClassVar[str] = "headrace.sdk.stats.v1"

    emitted: Total = 0
    """Events the agent emitted."""
    sent: Total = 0
    """Events acknowledged by the broker."""
    queued: Total = 0
    """Events waiting in memory."""
    dropped: dict[Name, Annotated[int, Within(MAX_TOTAL)]] = {}
    """Events given up, by reason."""
    altered: dict[str, int] = {}
    """Values sent otherwise than the agent gave them (described, made text), by kind."""


Fact: TypeAlias = (
    TrajectoryStarted
    | ModelCalled
    | ToolCalled
    | ToolReturned
    | ContextSummarized
    | ContextPruned
    | SubagentStarted
    | SubagentFinished
    | TrajectoryEnded
    | ClockTicked
)
"""Every payload of the topic ``events``: the one list of event types.

Code that treats types differently ends its ``match`` in ``typing.assert_never``, so that mypy names each place that a
new type was not added to. It matches ``fact.TYPE`` and not the class where a fact may be a struct in the place of a
model (:mod:`headrace.streams.structs`).
"""

FACTS: tuple[type[Record], ...] = get_args(Fact)
"""The types of :data:`Fact`, in order."""
