"""A record of the log as rows of the database. Pure, and total over the registry: every type has rows.

tool.called at events/2@17 → [(EVENTS, {"trajectory_id": "t-1", "seq": 3, "tool": "search_corpus", …})]
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.schemas import events
from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, Redriven, Repaired
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.weights import Applied, Weights
from headrace.streams.clickhouse import tables
from headrace.streams.clickhouse.columns import Row, Table

Rows: TypeAlias = Iterator[tuple[Table, Row]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands in its topic."""

    partition: int
    """Partition."""
    offset: int
    """Offset."""


def to_rows(envelope: Envelope, payload: Record, place: Place, value: bytes) -> list[tuple[Table, Row]]:
    """Rows of one record; ``value`` is its JSON as it stands in the log."""
    common: Row = {
        "id": envelope.id,
        "time": envelope.time_ms,
        "source": envelope.source,
        "partition": place.partition,
        "offset": place.offset,
    }
    derived = _DERIVED.get(type(payload))
    if derived is not None:
        return [(table, common | row) for table, row in derived(payload, envelope)]
    fact: Row = {
        "type": envelope.type,
        "trajectory_id": "" if isinstance(payload, events.ClockTicked) else envelope.subject,
        "seq": envelope.sequence or 0,
        "payload": value.decode(),
    }
    return [(tables.EVENTS, common | fact | _fact_columns(payload))]


def _fact_columns(fact: Record) -> Row:
    """The columns of `events` that the type of ``fact`` fills."""
    match fact:
        case events.TrajectoryStarted():
            return {
                "started_run": fact.run,
                "started_agent": fact.agent,
                "started_task_id": fact.task_id,
                "started_group_id": fact.group_id or "",
            }
        case events.ModelCalled():
            return {
                "sampled_tokens": None if fact.sampled_ids is None else len(fact.sampled_ids),
                "status": fact.finish_reason or "",
                "latency_s": fact.latency_s,
            }
        case events.ToolCalled():
            return {"tool": fact.tool, "call_id": fact.call_id}
        case events.ToolReturned():
            return {
                "tool": fact.tool,
                "call_id": fact.call_id,
                "status": fact.status,
                "error_class": fact.error_class or "",
                "latency_s": fact.latency_s,
            }
        case events.SubagentStarted():
            return {"tool": fact.name, "call_id": fact.sub_trajectory_id}
        case events.SubagentFinished():
            return {"tool": fact.name, "call_id": fact.sub_trajectory_id, "status": fact.status}
        case events.TrajectoryEnded():
            return {"status": fact.status, "outcome": fact.outcome, "answer": _json(fact.answer)}
    return {}


def _trajectory(trajectory: Trajectory, envelope: Envelope) -> Rows:
    started = trajectory.started
    versions = trajectory.versions
    row: Row = {
        "trajectory_id": trajectory.trajectory_id,
        "status": trajectory.status or "",
        "outcome": trajectory.outcome,
        "answer": _json(trajectory.answer),
        "turns": len(trajectory.turns),
        "segments": len(trajectory.segments),
        "tokens": sum(len(segment.token_ids) for segment in trajectory.segments),
        "sampled_tokens": trajectory.sampled_tokens,
        "tools": [(name, use.calls) for name, use in sorted(trajectory.tools.items())],
        "tool_errors": sorted(_sum_by_name(use.errors for use in trajectory.tools.values()).items()),
        "tool_seconds": sum(use.seconds for use in trajectory.tools.values()),
        "pruned": sum(len(turn.pruned_ids) for turn in trajectory.turns),
        "summaries": sum(turn.summarized for turn in trajectory.turns),
        "critical_steps": trajectory.critical_steps,
        "total_steps": trajectory.total_steps,
        "subagents_assigned": trajectory.subagents_assigned,
        "subagents_finished": trajectory.subagents_finished,
        "events": trajectory.events,
        "duplicates": trajectory.duplicates,
        "missing": trajectory.never_came,
        "defects": trajectory.defects,
        "versions": versions,
        "oldest_version": versions[0] if versions else None,
        "newest_version": versions[-1] if versions else None,
        "first_partition": trajectory.first.partition,
        "first_offset": trajectory.first.offset,
        "last_offset": trajectory.last.offset,
        "started_at": trajectory.started_ms,
        "ended_at": trajectory.ended_ms,
    }
    if started is not None:
        row |= {
            "run": started.run,
            "task_id": started.task_id,
            "group_id": started.group_id or "",
            "group_size": started.group_size,
            "agent": started.agent,
            "harness_version": started.harness_version,
            "role": started.role,
            "purpose": started.purpose,
            "evaluation": str(started.task.get("evaluation") or ""),
            "parent_trajectory_id": started.parent_trajectory_id or "",
            "tenant": started.tenant or "",
            "consent": started.consent,
            "task": _json(started.task),
        }
    yield tables.TRAJECTORIES, row


def _reward(reward: Reward, envelope: Envelope) -> Rows:
    known = reward.total is not None and bool(reward.maximum)
    yield (
        tables.REWARDS,
        {
            **_trajectory_place(reward.trajectory_id, reward.trajectory),
            "run": reward.run,
            "task_id": reward.task_id or "",
            "group_id": reward.group_id or "",
            "agent": reward.agent,
            "tenant": reward.tenant or "",
            "purpose": reward.purpose,
            "role": reward.role,
            "spec": reward.spec,
            "revision": reward.revision,
            "total": reward.total,
            "maximum": reward.maximum,
            "normalised": (reward.total or 0.0) / (reward.maximum or 1.0) if known else None,
            "unscored": reward.unscored or "",
            "components": [(name, component.value) for name, component in reward.components.items()],
            "weights": [(name, component.weight) for name, component in reward.components.items()],
            "defects": reward.defects,
            "oldest_version": reward.oldest_version,
            "newest_version": reward.newest_version,
            "sampled_tokens": reward.sampled_tokens,
            "turns": reward.turns,
            "status": reward.status or "",
            "ended_at": reward.ended_ms,
        },
    )


def _training_group(group: TrainingGroup, envelope: Envelope) -> Rows:
    for member in group.members:
        yield (
            tables.TRAINING,
            {
                "run": group.run,
                "task_id": group.task_id,
                "group_id": group.group_id,
                "spec": group.spec,
                "baseline": group.baseline,
                "baseline_value": group.baseline_value,
                "scored": group.scored,
                "reward_std": group.reward_std,
                **_trajectory_place(member.trajectory_id, member.trajectory),
                "reward": member.reward,
                "advantage": member.advantage,
                "oldest_version": member.oldest_version,
                "sampled_tokens": member.sampled_tokens,
            },
        )


def _rejection(rejection: Rejection, envelope: Envelope) -> Rows:
    yield (
        tables.REJECTED,
        {
            **_trajectory_place(rejection.trajectory_id, rejection.trajectory),
            "stage": rejection.stage,
            "reason": rejection.reason,
            "run": rejection.run,
            "task_id": rejection.task_id or "",
            "group_id": rejection.group_id or "",
            "policy_version": rejection.policy_version,
            "reward": rejection.reward,
        },
    )


def _step(step: Step, envelope: Envelope) -> Rows:
    common = {"run": step.run, "step": step.step, "version": step.version}
    yield (
        tables.STEPS,
        {
            **common,
            "groups": len(step.groups),
            "trajectories": sum(len(group.trajectory_ids) for group in step.groups),
            "config_sha256": step.config_sha256,
            "data_sha256": step.data_sha256,
            "metrics": list(step.metrics.items()),
        },
    )
    for group in step.groups:
        for trajectory_id, reference in zip(group.trajectory_ids, group.trajectories, strict=True):
            yield (
                tables.STEP_MEMBERS,
                {
                    **common,
                    "group_id": group.group_id,
                    "group_partition": group.group.partition,
                    "group_offset": group.group.offset,
                    **_trajectory_place(trajectory_id, reference),
                },
            )


def _weights(weights: Weights, envelope: Envelope) -> Rows:
    names = ("run", "version", "parent", "kind", "manifest_uri", "sha256", "size", "step")
    yield tables.WEIGHTS, {name: getattr(weights, name) for name in names}


def _budget(budget: Budget, envelope: Envelope) -> Rows:
    names = ("run", "version", "groups_per_step", "max_steps_ahead", "max_groups")
    yield tables.BUDGET, {name: getattr(budget, name) for name in names}


def _applied(applied: Applied, envelope: Envelope) -> Rows:
    names = ("run", "engine", "version", "download_s", "swap_s", "canary_max_error")
    yield tables.APPLIED, {name: getattr(applied, name) for name in names}


def _alert(alert: Alert, envelope: Envelope) -> Rows:
    row = {name: getattr(alert, name) for name in ("run", "kind", "severity", "message")}
    yield tables.ALERTS, row | {"part": alert.source, "details": _json(alert.details)}


def _dead_letter(letter: DeadLetter, envelope: Envelope) -> Rows:
    yield (
        tables.DEAD_LETTERS,
        {
            **_original_place(letter),
            "error": letter.error,
            "message": letter.message,
            "key_base64": letter.key or "",
            "value_base64": letter.value or "",
            "headers": _json(letter.headers),
            # Kafka's "no timestamp" is −1, which the column cannot hold.
            "written_at": max(letter.timestamp_ms, 0),
            "trajectory_id": letter.trajectory_id or "",
        },
    )


def _repaired(repair: Repaired, envelope: Envelope) -> Rows:
    row = {"key_base64": repair.key or "", "value_base64": repair.value, "headers": _json(repair.headers)}
    yield tables.DEAD_LETTER_ACTIONS, {"action": "repaired"} | _original_place(repair) | row


def _redriven(redriven: Redriven, envelope: Envelope) -> Rows:
    yield (
        tables.DEAD_LETTER_ACTIONS,
        {
            "action": "redriven",
            **_original_place(redriven),
            "sha256": redriven.sha256,
            "trajectory_id": redriven.trajectory_id or "",
            "redrive_of": redriven.redrive_of or "",
            "records": redriven.records,
        },
    )


def _feedback(feedback: events.FeedbackGiven, envelope: Envelope) -> Rows:
    row = {name: getattr(feedback, name) for name in ("signal", "value", "delay_s")}
    yield tables.FEEDBACK, row | {"trajectory_id": envelope.subject, "comment": feedback.comment or ""}


def _sdk_stats(stats: events.SdkStatsReported, envelope: Envelope) -> Rows:
    row: Row = {name: getattr(stats, name) for name in ("emitted", "sent", "queued")}
    yield (
        tables.SDK_STATS,
        row
        | {
            "dropped": sorted(stats.dropped.items()),
            "altered": sorted(stats.altered.items()),
        },
    )


_DERIVED: dict[type[Record], Callable[[Any, Envelope], Rows]] = {
    Trajectory: _trajectory,
    Reward: _reward,
    TrainingGroup: _training_group,
    Rejection: _rejection,
    Step: _step,
    Weights: _weights,
    Budget: _budget,
    Applied: _applied,
    Alert: _alert,
    DeadLetter: _dead_letter,
    Repaired: _repaired,
    Redriven: _redriven,
    events.FeedbackGiven: _feedback,
    events.SdkStatsReported: _sdk_stats,
}
"""Rows of every type that is not an event of a trajectory."""


def _trajectory_place(trajectory_id: str, reference: Reference) -> Row:
    return {
        "trajectory_id": trajectory_id,
        "trajectory_partition": reference.partition,
        "trajectory_offset": reference.offset,
    }


def _original_place(letter: DeadLetter | Repaired | Redriven) -> Row:
    return {"bad_topic": letter.topic, "bad_partition": letter.partition, "bad_offset": letter.offset}


def _sum_by_name(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


def _json(value: Any) -> str:
    """``value`` as JSON; empty for ``None``, which means that there is nothing."""
    return "" if value is None else json.dumps(value, ensure_ascii=False)
