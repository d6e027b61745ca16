"""Summaries of records, one function per type: what a reader wants to know without reading the JSON.

model.called        2+2 tokens after 7, v3–4, stop, 0.41 s
trajectory.scored   search@1 1.83 of 2 = 0.7·0.9 f_beta + 0.3·1 trajectory_recall − 1·0.1 prune_penalty
"""

import json
import math
from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import Any, TypeAlias, assert_never

from headrace.schemas import events
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, Redriven, Repaired
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.watch import Observation, Readings
from headrace.schemas.records.weights import Applied, Weights

FormatId: TypeAlias = Callable[[str], str]
"""Formats an id: shortened or in full."""

MAX_JSON_CHARACTERS = 80
"""Longest piece of JSON or text in a summary."""


@singledispatch
def sentence(payload: Record, format_id: FormatId) -> str:
    """Returns a summary of ``payload``; JSON for a derived type that has no function here."""
    return _fact(payload, format_id) if isinstance(payload, events.Fact) else _json(payload.model_dump(mode="json"))


def _fact(fact: events.Fact, format_id: FormatId) -> str:
    match fact:
        case events.TrajectoryStarted():
            return _started(fact, format_id)
        case events.ModelCalled():
            return _called(fact)
        case events.ToolCalled():
            return f"{fact.tool} {_json(fact.arguments)}"
        case events.ToolReturned():
            return _returned(fact)
        case events.ContextSummarized():
            return _joined(f"{fact.tokens_before} → {fact.tokens_after} tokens", fact.summary and _cut(fact.summary))
        case events.ContextPruned():
            return _joined(f"{fact.tokens_before} → {fact.tokens_after} tokens", _cut(" ".join(fact.pruned_ids)))
        case events.SubagentStarted():
            return f"{fact.name} as {format_id(fact.sub_trajectory_id)} in stage {fact.stage}"
        case events.SubagentFinished():
            return f"{fact.name} {fact.status} in {_count(fact.steps, 'step')}"
        case events.EnvironmentSnapshotted():
            return f"{fact.kind} as {format_id(fact.snapshot_id)} in {fact.ms:.1f} ms"
        case events.EnvironmentForked():
            return f"{_count(fact.forks, 'fork')} of {format_id(fact.snapshot_id)} in {fact.ms:.1f} ms"
        case events.EnvironmentRestored():
            source = fact.source_trajectory_id and f"of {format_id(fact.source_trajectory_id)}"
            return _joined(f"{format_id(fact.snapshot_id)} in {fact.ms:.1f} ms", source)
        case events.TrajectoryEnded():
            return _ended(fact)
        case events.ClockTicked():
            return f"stream time {fact.unix_ms} ms"
        case _:
            assert_never(fact)


def _started(fact: events.TrajectoryStarted, format_id: FormatId) -> str:
    group = fact.group_id and f"group {format_id(fact.group_id)}" + (
        f" of {fact.group_size}" if fact.group_size else ""
    )
    return _joined(
        f"{fact.agent} {fact.harness_version}".strip(),
        f"task {format_id(fact.task_id)}",
        group,
        fact.cohort_key and f"cohort {fact.cohort_key}",
        f"run {fact.run}",
        fact.role is events.Role.FROZEN and "frozen",
        fact.purpose is events.Purpose.EVALUATE and "evaluation",
        not fact.consent and "no consent",
        fact.parent_trajectory_id and f"helper of {format_id(fact.parent_trajectory_id)}",
    )


def _called(fact: events.ModelCalled) -> str:
    if fact.sampled_ids is None:
        usage = fact.usage.prompt_tokens or fact.usage.completion_tokens
        counted = usage and f"{fact.usage.prompt_tokens}+{fact.usage.completion_tokens} tokens"
        tokens = _joined(fact.model, counted, "token ids unknown")
    else:
        prefix = f" after {fact.prefix_length}" if fact.prefix_length else ""
        tokens = f"{len(fact.context_ids or ())}+{len(fact.sampled_ids)} tokens{prefix}"
    return _joined(
        tokens,
        _versions(span.version for span in fact.version_spans),
        fact.finish_reason,
        _seconds(fact.latency_s),
        fact.hidden and "redacted",
        fact.delivered is False and "not delivered",
        fact.messages and _message(fact.messages[-1]),
    )


def _returned(fact: events.ToolReturned) -> str:
    how = fact.status + (f" ({fact.error_class})" if fact.error_class else "")
    return _joined(f"{fact.tool} {how}", _seconds(fact.latency_s), fact.result is not None and _json(fact.result))


def _ended(fact: events.TrajectoryEnded) -> str:
    answer = fact.answer is not None and _json(fact.answer)
    return _joined(fact.status, _outcome(fact.outcome), fact.error and _cut(fact.error), answer)


@sentence.register
def _(fact: events.FeedbackGiven, format_id: FormatId) -> str:
    after = fact.delay_s is not None and f"{_number(fact.delay_s)} s after the end"
    return _joined(f"{fact.signal} {_number(fact.value)}", after, fact.comment and _cut(fact.comment))


@sentence.register
def _(fact: events.SdkStatsReported, format_id: FormatId) -> str:
    dropped = [f"{count:,} dropped: {reason}" for reason, count in sorted(fact.dropped.items())]
    altered = [f"{count:,} altered: {kind}" for kind, count in sorted(fact.altered.items())]
    counts = [f"{fact.emitted:,} emitted", f"{fact.sent:,} sent", f"{fact.queued:,} queued"]
    disk = {"spooled": fact.spooled, "replayed": fact.replayed, "adopted": fact.adopted}
    counts += [f"{count:,} {what}" for what, count in disk.items() if count]
    return _joined(*counts, *dropped, *altered)


@sentence.register
def _(fact: events.GatewayStatsReported, format_id: FormatId) -> str:
    failed = [f"{count:,} failed: {kind}" for kind, count in sorted(fact.errors.items())]
    counts = {
        "left": fact.left, "open": fact.open_calls, "waiting": fact.waiting, "sessions": fact.sessions,
        "engines": len(fact.engines), "unacknowledged": fact.unacknowledged, "spooled": fact.spooled,
        "holes": fact.holes,
    }  # fmt: skip
    return _joined(f"{fact.calls:,} calls", *failed, *[f"{count:,} {what}" for what, count in counts.items() if count])


@sentence.register
def _(trajectory: Trajectory, format_id: FormatId) -> str:
    started = trajectory.started
    tokens = sum(len(segment.token_ids) for segment in trajectory.segments)
    return _joined(
        started.agent if started else "no start",
        _count(len(trajectory.turns), "turn"),
        f"{tokens} tokens, {trajectory.sampled_tokens} sampled" if tokens else "no tokens",
        _versions(trajectory.versions),
        trajectory.status or "no end",
        _outcome(trajectory.outcome),
        trajectory.never_arrived and f"{trajectory.never_arrived} missing",
        trajectory.defects and "not trainable: " + " ".join(trajectory.defects),
    )


@sentence.register
def _(reward: Reward, format_id: FormatId) -> str:
    of = f" of {_number(reward.maximum)}" if reward.maximum is not None else ""
    head = f"{reward.spec} {f'unscored: {reward.unscored}' if reward.total is None else _number(reward.total) + of}"
    terms = ""
    for name, part in reward.components.items():
        sign = ("− " if part.weight < 0 else "+ ") if terms else ("−" if part.weight < 0 else "")
        terms += f"{' ' if terms else ''}{sign}{_number(abs(part.weight))}·{_number(part.value)} {name}"
    weighed = sum(part.weight * part.value for part in reward.components.values())
    exact = reward.total is not None and math.isclose(weighed, reward.total, abs_tol=1e-6)
    if terms:
        head += f" {'=' if exact else 'from'} {terms}"
    return _joined(head, reward.revision and f"revision {reward.revision}")


@sentence.register
def _(rejection: Rejection, format_id: FormatId) -> str:
    reward = rejection.reward is not None and f"reward {_number(rejection.reward)}"
    group = rejection.group_id and f"group {format_id(rejection.group_id)}"
    version = rejection.policy_version is not None and f"v{rejection.policy_version}"
    return _joined(f"{rejection.reason} at {rejection.stage}", reward, version, group)


@sentence.register
def _(group: TrainingGroup, format_id: FormatId) -> str:
    advantages = sorted(member.advantage for member in group.members)
    span = f"advantages {_signed(advantages[0])} … {_signed(advantages[-1])}" if advantages else "no member"
    members = f"{len(group.members)} of {group.expected or group.scored}"
    return _joined(
        group.spec,
        members,
        f"{group.baseline} {_number(group.baseline_value)}",
        span,
        _versions([group.oldest_version]),
    )


@sentence.register
def _(step: Step, format_id: FormatId) -> str:
    trajectories = sum(len(group.trajectory_ids) for group in step.groups)
    figures = [f"{name} {_number(value)}" for name, value in list(step.metrics.items())[:5]]
    groups = f"{_count(len(step.groups), 'group')} with {trajectories} trajectories"
    return _joined(f"step {step.step} made v{step.version}", groups, *figures)


@sentence.register
def _(weights: Weights, format_id: FormatId) -> str:
    parent = f" on v{weights.parent}" if weights.parent is not None else ""
    return _joined(f"v{weights.version}{parent}", weights.kind, f"{weights.size:,} bytes", f"step {weights.step}")


@sentence.register
def _(budget: Budget, format_id: FormatId) -> str:
    rule = (
        f"({budget.max_steps_ahead} + 1) · {budget.groups_per_step}"
        if budget.max_groups
        else "the last step is trained"
    )
    return f"{_count(budget.max_groups, 'group')} in flight at v{budget.version}: {rule}"


@sentence.register
def _(applied: Applied, format_id: FormatId) -> str:
    return _joined(
        f"v{applied.version} served by {applied.engine}",
        f"fetched in {_number(applied.download_s)} s",
        f"swapped in {_number(applied.swap_s)} s",
        f"canary error {_number(applied.canary_max_error)}",
    )


@sentence.register
def _(alert: Alert, format_id: FormatId) -> str:
    return f"{alert.severity} {alert.kind}: {alert.message}"


@sentence.register
def _(observation: Observation, format_id: FormatId) -> str:
    values = ", ".join(f"{name} {_number(value)}" for name, value in list(observation.values.items())[:6])
    return _joined(str(observation.of), observation.agent, observation.task_source, values)


@sentence.register
def _(readings: Readings, format_id: FormatId) -> str:
    strongest = sorted(readings.readings.items(), key=lambda each: (-each[1].strength, each[0]))[:3]
    return _joined(
        f"{readings.lane} window {readings.window}",
        readings.agent,
        readings.task_source,
        readings.spec,
        _count(readings.trajectories, "observation"),
        *(f"{name} {_number(reading.value)} ({_number(reading.strength)})" for name, reading in strongest),
    )


@sentence.register
def _(letter: DeadLetter, format_id: FormatId) -> str:
    return f"{letter.topic}[{letter.partition}]@{letter.offset} {letter.error}: {_cut(letter.message, 200)}"


@sentence.register
def _(repair: Repaired, format_id: FormatId) -> str:
    return f"{repair.topic}[{repair.partition}]@{repair.offset} repaired"


@sentence.register
def _(redriven: Redriven, format_id: FormatId) -> str:
    where = f"{redriven.topic}[{redriven.partition}]@{redriven.offset} sent again"
    if redriven.redrive_of is None:
        return where
    return f"{where} with all of {format_id(redriven.redrive_of)} as {format_id(redriven.trajectory_id or '')}"


def _joined(*parts: str | int | bool | list[Any] | None) -> str:
    return ", ".join(str(part) for part in parts if part)


def _message(message: dict[str, Any]) -> str | None:
    """Returns the answer or the tool calls of a message, whatever their JSON form."""
    content = message.get("content")
    if content:
        return _cut(content) if isinstance(content, str) else _json(content)
    calls = message.get("tool_calls")
    return f"calls {_json(calls)}" if calls else None


def _json(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str, most: int = MAX_JSON_CHARACTERS) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "") + _number(value)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{_number(value)} s"


def _outcome(value: float | None) -> str | None:
    return None if value is None else f"outcome {_number(value)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _versions(versions: Iterable[int | None]) -> str | None:
    """Returns ``v3`` or ``v3–4``; ``v?`` if the engine did not report a version."""
    found = list(versions)
    known = [version for version in found if version is not None]
    if not known:
        return "v?" if found else None
    return f"v{known[0]}" if min(known) == max(known) else f"v{min(known)}–{max(known)}"
