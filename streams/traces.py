"""Derives spans from records: from the agent's own span to the optimiser step that trained on its tokens.

    agent's span ─▶ events ─▶ trajectory ─┬─▶ score            one trace: the agent's
                                          ├─▶ group  (or reject)
                                          └─▶ train  ┄┄link┄┄▶ step ─▶ weights ─▶ applied      the step's trace

No processor spends time on tracing. An event carries its host's ``traceparent``; the assembler keeps it with the
trajectory; all later records refer to the trajectory. Ids are derived from records, so a span that is created twice has
the same id.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.trace import SpanContext, child, parse_traceparent

MAX_LINKS = 128
"""Most trajectories that a step's span links to; OpenTelemetry's own limit. The step's record names all of them."""

Attributes: TypeAlias = dict[str, str | int | float | bool]

OPERATION = "gen_ai.operation.name"
AGENT_NAME = "gen_ai.agent.name"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
"""Names of the GenAI conventions, where they have one for what a span says; all others begin with ``headrace.``."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """An OpenTelemetry span; times are Unix milliseconds."""

    name: str
    """Operation: ``score`` …"""
    context: SpanContext
    """Trace id and span id."""
    parent: SpanContext | None
    """Parent span; ``None`` for the root of a trace."""
    start_ms: int
    """Start."""
    end_ms: int
    """End."""
    attributes: Attributes = field(default_factory=dict)
    """Names of the GenAI conventions, or those of the records after ``headrace.``"""
    links: tuple[SpanContext, ...] = ()
    """Related spans of other traces."""
    error: str | None = None
    """Error, if it failed."""


def references(payload: Record) -> list[Reference]:
    """Returns the trajectories whose traces ``payload`` belongs to."""
    match payload:
        case Reward() | Rejection():
            return [payload.trajectory]
        case TrainingGroup():
            return [member.trajectory for member in payload.members]
        case Step():
            return [reference for group in payload.groups for reference in group.trajectories]
    return []


def spans(
    envelope: Envelope, payload: Record, timestamp_ms: int, context_of: Callable[[Reference], SpanContext | None]
) -> list[TraceSpan]:
    """Returns the spans of a record. ``context_of`` maps the position of a trajectory's record to its span."""

    def in_trajectory(
        name: str, reference: Reference, conventional: Attributes | None = None, **more: str | int | float | bool
    ) -> list[TraceSpan]:
        parent = context_of(reference)
        if parent is None:
            return []
        attributes: Attributes = {**(conventional or {}), **{f"headrace.{key}": value for key, value in more.items()}}
        return [TraceSpan(name, child(parent, envelope.id), parent, envelope.time_ms, timestamp_ms, attributes)]

    match payload:
        case Trajectory():
            return _of_trajectory(envelope, payload, timestamp_ms)
        case Reward():
            scored: Attributes = {EVALUATION_NAME: payload.spec}
            if payload.total is None:
                scored["headrace.unscored"] = payload.unscored or "unknown"
            else:
                scored[EVALUATION_SCORE] = payload.total
            return in_trajectory("score", payload.trajectory, scored)
        case Rejection():
            return in_trajectory("reject", payload.trajectory, stage=payload.stage.value, reason=payload.reason.value)
        case TrainingGroup():
            return [
                span
                for member in payload.members
                for span in in_trajectory(
                    "group", member.trajectory, group_id=payload.group_id, reward=member.reward,
                    advantage=member.advantage,
                )
            ]  # fmt: skip
        case Step():
            return _of_step(envelope, payload, timestamp_ms, context_of)
        case Weights():
            of_step = _step_context(payload.run, payload.version)
            parent = of_step if payload.step else None
            attributes: Attributes = {"headrace.run": payload.run, "headrace.version": payload.version}
            return [
                TraceSpan("weights", child(of_step, envelope.id), parent, envelope.time_ms, timestamp_ms, attributes)
            ]
        case Applied():
            published = child(
                _step_context(payload.run, payload.version), derived_id(Weights.TYPE, payload.run, payload.version)
            )
            start_ms = timestamp_ms - round((payload.download_s + payload.swap_s) * 1000)
            attributes = {"headrace.engine": payload.engine, "headrace.version": payload.version}
            return [TraceSpan("apply", child(published, envelope.id), published, start_ms, timestamp_ms, attributes)]
    return []


def _of_trajectory(envelope: Envelope, trajectory: Trajectory, timestamp_ms: int) -> list[TraceSpan]:
    context = parse_traceparent(envelope.traceparent)
    if context is None:
        return []
    started = trajectory.started
    attributes: Attributes = {
        "headrace.trajectory_id": trajectory.trajectory_id,
        "headrace.sampled_tokens": trajectory.sampled_tokens,
        "headrace.turns": len(trajectory.turns),
    }
    if started is not None:
        attributes |= {
            OPERATION: "invoke_agent",
            AGENT_NAME: started.agent,
            "headrace.run": started.run,
            "headrace.task_id": started.task_id,
        }
    error = ", ".join(trajectory.defects) or None
    agent = parse_traceparent(trajectory.traceparent)
    return [TraceSpan("trajectory", context, agent, trajectory.started_ms, timestamp_ms, attributes, error=error)]


def _of_step(
    envelope: Envelope, step: Step, timestamp_ms: int, context_of: Callable[[Reference], SpanContext | None]
) -> list[TraceSpan]:
    of_step = _step_context(step.run, step.version)
    trained = [
        TraceSpan(
            "train", child(parent, envelope.id), parent, envelope.time_ms, timestamp_ms,
            {"headrace.run": step.run, "headrace.step": step.step, "headrace.version": step.version},
            links=(of_step,),
        )
        for reference in references(step)
        if (parent := context_of(reference)) is not None
    ]  # fmt: skip
    seconds = step.metrics.get("seconds_train", 0.0)
    attributes: Attributes = {"headrace.run": step.run, "headrace.step": step.step, "headrace.version": step.version}
    attributes |= {f"headrace.metrics.{name}": value for name, value in step.metrics.items()}
    links = tuple(span.context for span in trained[:MAX_LINKS])
    start_ms = timestamp_ms - round(seconds * 1000)
    return [TraceSpan("step", of_step, None, start_ms, timestamp_ms, attributes, links), *trained]


def _step_context(run: str, version: int) -> SpanContext:
    """Returns the root span of the step that produced ``version``; it is derived from run and version alone."""
    digest = hashlib.sha256(f"headrace/{run}/{version}".encode()).hexdigest()
    return SpanContext(digest[:32], digest[32:48])
