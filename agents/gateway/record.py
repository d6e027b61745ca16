"""A completed call → the events that record it.

    CallRecord(prefix_length=412, context_ids=[…], answer=…)  →  model.called, tool.called, tool.called

The shell sends each :class:`TrajectoryEvent` under its trajectory and sequence number.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.agents.gateway.canonical import Api, Call, CanonicalRequest, Message, to_chat
from headrace.agents.gateway.nodes import Answer, Match, Node
from headrace.agents.gateway.note import CallNote, forms_of, note_bytes
from headrace.agents.gateway.terms import Terms
from headrace.schemas.arrays import IntArray
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import (
    Fact,
    FeedbackGiven,
    ModelCalled,
    Purpose,
    Role,
    Sampling,
    ToolCalled,
    ToolReturned,
    ToolStatus,
    TrajectoryStarted,
    Usage,
)
from headrace.schemas.hidden import hidden_tokens

ABORTED = "abort"
"""Finish reason of an answer that was given up, because its client left or the engine failed. It is not replayed."""


@dataclass(frozen=True, slots=True)
class TrajectoryEvent:
    """An event with its place."""

    trajectory_id: str
    seq: int | None
    """Sequence number in the trajectory, from 0 without gaps; ``None`` for feedback, which has none."""
    fact: Fact | FeedbackGiven
    note: bytes | None = None
    """What a gateway that starts needs to know beside the fact (:mod:`headrace.agents.gateway.note`)."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What a session says about its trajectories; fields as in ``TrajectoryStarted``."""

    task_id: str | None = None
    """``None``: the session's id."""
    agent: str | None = None
    """``None``: the known client, else ``gateway``."""
    group_id: str | None = None
    group_size: int | None = None
    cohort_key: str | None = None
    harness_version: str = ""
    run: str = "default"
    purpose: Purpose = Purpose.TRAIN
    task: Mapping[str, Any] = field(default_factory=dict)

    def alone(self) -> "TaskInfo":
        """Return the same task in no group."""
        return replace(self, group_id=None, group_size=None, cohort_key=None)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A completed call, one choice of it; axis legend: C context tokens after the prefix."""

    call_id: str
    """Id of the call; the choices of a call share it."""
    choice: int
    """Index of the choice."""
    model: str
    """Model in the request."""
    prefix_length: int
    """Leading tokens that earlier calls of the trajectory recorded; 0 if ``context_ids`` are the whole context."""
    prefix_sha256: str | None
    """Hash of the prefix; ``None`` if it is empty."""
    context_ids: IntArray
    """(C,) int32 context after the prefix."""
    messages: tuple[Message, ...]
    """Messages of the context after the prefix."""
    previous_calls: tuple[Call, ...]
    """Tool calls of the answer that ends the prefix, to which ``messages`` may have results."""
    answer: Answer
    """What was sampled and delivered."""
    sampling: Sampling
    """Sampling parameters in effect."""
    usage: Usage
    latency_s: float | None
    """Seconds from request to answer."""

    @property
    def delivered(self) -> bool | None:
        """Whether the client received all of the answer; ``None`` if unknown."""
        return self.answer.delivered


def model_called(call: CallRecord, *, masked: bool) -> ModelCalled:
    """Return the event of a call. ``masked``: without tokens and messages."""
    answer = call.answer
    fields: dict[str, Any] = {
        "model": call.model,
        "prefix_length": call.prefix_length,
        "prefix_sha256": call.prefix_sha256,
        "version_spans": list(answer.version_spans),
        "sampling": call.sampling,
        "finish_reason": answer.finish_reason,
        "latency_s": call.latency_s,
        "usage": call.usage,
        "call_id": call.call_id,
        "choice": call.choice,
        "delivered": call.delivered,
    }
    if masked:
        fields |= hidden_tokens(also=["messages"])
    else:
        # The versions that sampled an answer come with its end. Without them its tokens are context, as they are for
        # what follows; as sampled tokens of an unknown version they would make the whole trajectory untrainable.
        context, sampled, logprobs = call.context_ids, answer.sampled_ids, answer.logprobs
        if answer.finish_reason == ABORTED:
            context, sampled, logprobs = context + sampled, array("i"), array("f")
            fields["version_spans"] = []
        fields |= {
            "context_ids": context,
            "sampled_ids": sampled,
            "logprobs": logprobs,
            "messages": to_chat((*call.messages, answer.message), call.previous_calls),
        }
    return ModelCalled.model_validate(fields)


def call_note(
    fact: ModelCalled,
    node: Node,
    request: CanonicalRequest,
    messages: tuple[Message, ...],
    match: Match,
    window: int | None,
) -> bytes:
    """Return the note of the event ``fact`` of ``node``. ``messages``: those of the event, without the answer."""
    chat, first = fact.messages, len(messages)
    # Only the Responses API lets a client refer to a history that it does not send.
    of_context = forms_of(messages, chat) if chat is not None and request.api is Api.RESPONSES else None
    of_answer = None if chat is None else forms_of((*messages, node.answer.message), chat, first)
    note = CallNote(
        tenant=node.tenant,
        scope=node.scope,
        slot=node.slot,
        context=match.context_key,
        opening=match.opening_key,
        key=b"" if node.key == node.slot else node.key,
        ends_with_stop_token=node.answer.ends_with_stop_token,
        has_instructions=request.has_instructions and not fact.prefix_length,
        has_tools=bool(request.tools),
        window=window,
        consent=node.consent,
        purpose=node.purpose,
        has_context=of_context is not None,
        forms=(*(of_context or ()), *(of_answer or ())),
    )
    return note_bytes(note) if of_context is None else note_bytes(note, shorter=of_answer or ())


def trajectory_started(
    task: TaskInfo,
    terms: Terms,
    *,
    tenant: str,
    session_id: str,
    agent: str | None,
    role: Role,
    parent_trajectory_id: str | None,
    tools_offered: str = "",
) -> TrajectoryStarted:
    """Return the first event of a trajectory. ``agent``: name if the session gives none. ``tools_offered``: label of
    the tools in its first request, if that is known."""
    return TrajectoryStarted(
        task_id=task.task_id or session_id,
        group_id=task.group_id,
        group_size=task.group_size,
        cohort_key=task.cohort_key,
        agent=task.agent or agent or "gateway",
        harness_version=task.harness_version,
        run=task.run,
        role=role,
        purpose=terms.purpose,
        parent_trajectory_id=parent_trajectory_id,
        consent=terms.consent,
        tenant=tenant,
        sample_rate=terms.sample_rate,
        task=dict(task.task),
        tools_offered=tools_offered,
    )


def tool_called(call: Call, *, masked: bool) -> ToolCalled:
    """Return the event of a tool call that an answer contains."""
    return ToolCalled(
        call_id=call.call_id[:MAX_NAME], tool=call.tool[:MAX_NAME], arguments={} if masked else call.value
    )


def tool_returned(call_id: str, tool: str, result: Message, latency_s: float, *, masked: bool) -> ToolReturned:
    """Return the event of a tool's result.

    The cause of a failure is not known, so its class stays empty. ``latency_s``: seconds from the answer with the call
    to the request with the result, an upper bound.
    """
    return ToolReturned(
        call_id=call_id[:MAX_NAME],
        tool=tool[:MAX_NAME],
        status=ToolStatus.ERROR if result.failed else ToolStatus.OK,
        result=None if masked else result.text,
        latency_s=max(0.0, latency_s),
    )
