"""Converts a record into rows of the database. Pure; every type of ``STORED_TYPES`` has rows.

tool.called at events/2@17 → [(EVENTS, {"trajectory_id": "t-1", "seq": 3, "tool": "search_corpus", …})]
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import reduce
from operator import add, attrgetter
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
from headrace.schemas.records.watch import Readings
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.task_labels import difficulty, label_of
from headrace.streams.clickhouse import tables
from headrace.streams.clickhouse.columns import (
    JSON_TEXT,
    LABEL,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    NAME,
    RECORD_COLUMNS,
    TEXT,
    ColumnType,
    Row,
    Table,
)

Rows: TypeAlias = Iterator[tuple[Table, Row]]


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Position of a row's record in its topic."""

    partition: int
    """Partition."""
    offset: int
    """Offset."""
    logged_ms: int
    """Its timestamp in Kafka, in Unix milliseconds; see :func:`logged_ms`."""


def logged_ms(timestamp: int, time_ms: int) -> int:
    """Returns the column ``logged_at`` of a record: its ``timestamp`` in Kafka, which is negative if the log has none,
    or else its own time.
    """
    return timestamp if timestamp >= 0 else time_ms


EVENT_COLUMNS = (*RECORD_COLUMNS, "type", "trajectory_id", "seq", "payload")
"""Columns that every row of `events` fills."""


def to_rows(envelope: Envelope, payload: Record, place: RowOrigin, value: bytes) -> list[tuple[Table, Row]]:
    """Returns the rows of one record; ``value`` is its original JSON.

    Raises ``LookupError`` if no table stores its type.
    """
    common: Row = {
        "id_sent": envelope.id,
        "time": envelope.time_ms,
        "source": envelope.source,
        "partition": place.partition,
        "offset": place.offset,
        "logged_at": place.logged_ms,
    }
    derived = DERIVED.get(payload.TYPE)
    if derived is not None:
        return [(table, common | row) for table, row in derived(payload, envelope.subject)]
    if payload.TYPE not in STORED_TYPES:
        raise LookupError(f"no table stores {payload.TYPE}")
    fact: Row = {
        "type": envelope.type,
        "trajectory_id": "" if payload.TYPE in WITHOUT_TRAJECTORY else envelope.subject,
        "seq": envelope.sequence or 0,
        "payload": value.decode(),
    }
    return [(tables.EVENTS, common | fact | fact_columns(payload))]


def fact_columns(fact: Record) -> Row:
    """Returns the columns of `events` that ``fact``, or a struct with its fields, fills beyond ``EVENT_COLUMNS``."""
    return {column: convert(read(fact)) for (_, column, convert), read in READS.get(fact.TYPE, ())}


WITHOUT_TRAJECTORY = frozenset({events.ClockTicked.TYPE})
"""Types of `events` whose subject is not a trajectory."""

_OTHER_NAMES: dict[type[Record], dict[str, str]] = {
    events.TrajectoryStarted: {column.was: column.name for column in tables.EVENTS.columns if column.was},
    events.ModelCalled: {
        "finish_reason": "status",
        "sampled_ids": "sampled_tokens",
        "usage.prompt_tokens": "prompt_tokens",
        "usage.completion_tokens": "completion_tokens",
    },
    events.SubagentStarted: {"name": "tool", "sub_trajectory_id": "call_id"},
    events.SubagentFinished: {"name": "tool", "sub_trajectory_id": "call_id"},
}
"""Fields, and fields of parts, whose column has a different name. A field named like a column fills it without an entry
here."""


def _field_columns(model: type[Record]) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Returns fields of ``model``, the columns of `events` that they fill, and the conversions of their values."""
    own = {column.name: column.type for column in tables.EVENTS.inserted if column.name not in EVENT_COLUMNS}
    names = {name: name for name in model.model_fields if name in own} | _OTHER_NAMES.get(model, {})
    return tuple((name, column, _CONVERSIONS[own[column]]) for name, column in names.items())


def _count(counted: Sized | int | None) -> int | None:
    return counted if counted is None or isinstance(counted, int) else len(counted)


def _trajectory(trajectory: Trajectory, subject: str) -> Rows:
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
        "tool_seconds": reduce(add, (use.seconds for use in trajectory.tools.values()), 0.0),
        "pruned": sum(len(turn.pruned_ids) for turn in trajectory.turns),
        "summaries": sum(turn.summarized for turn in trajectory.turns),
        "critical_steps": trajectory.critical_steps,
        "total_steps": trajectory.total_steps,
        "subagents_assigned": trajectory.subagents_assigned,
        "subagents_finished": trajectory.subagents_finished,
        "events": trajectory.events,
        "duplicates": trajectory.duplicates,
        "missing": trajectory.never_arrived,
        "defects": trajectory.defects,
        "versions": versions,
        "oldest_version": versions[0] if versions else None,
        "newest_version": versions[-1] if versions else None,
        "first_partition": trajectory.first.partition,
        "first_offset": trajectory.first.offset,
        "last_offset": trajectory.last.offset,
        "started_at": trajectory.started_ms,
        "ended_at": trajectory.ended_ms,
        "turn_sampled_tokens": [turn.sampled_tokens for turn in trajectory.turns],
        "turn_finish_reasons": [turn.finish_reason or "" for turn in trajectory.turns],
        "turn_pruned": [len(turn.pruned_ids) for turn in trajectory.turns],
        "turn_summarized": [int(turn.summarized) for turn in trajectory.turns],
        "call_turns": [number for number, turn in enumerate(trajectory.turns) for _ in turn.tools],
        "call_ids": [call.call_id for turn in trajectory.turns for call in turn.tools],
        "call_tools": [call.tool for turn in trajectory.turns for call in turn.tools],
        "call_statuses": [call.status or "" for turn in trajectory.turns for call in turn.tools],
        "call_errors": [call.error_class or "" for turn in trajectory.turns for call in turn.tools],
        "call_seconds": [call.latency_s for turn in trajectory.turns for call in turn.tools],
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
            "task_source": label_of(started.task, ("source",)),
            "difficulty": difficulty(started.task),
        }
    yield tables.TRAJECTORIES, row


def _reward(reward: Reward, subject: str) -> Rows:
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
            "details": [
                (f"{name}.{part}", value)
                for name, component in reward.components.items()
                for part, value in component.details.items()
            ],
            "defects": reward.defects,
            "oldest_version": reward.oldest_version,
            "newest_version": reward.newest_version,
            "sampled_tokens": reward.sampled_tokens,
            "turns": reward.turns,
            "status": reward.status or "",
            "ended_at": reward.ended_ms,
        },
    )


def _training_group(group: TrainingGroup, subject: str) -> Rows:
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


def _rejection(rejection: Rejection, subject: str) -> Rows:
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


def _step(step: Step, subject: str) -> Rows:
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


def _weights(weights: Weights, subject: str) -> Rows:
    names = ("run", "version", "parent", "kind", "manifest_uri", "sha256", "size", "step")
    yield tables.WEIGHTS, {name: getattr(weights, name) for name in names}


def _budget(budget: Budget, subject: str) -> Rows:
    names = ("run", "version", "groups_per_step", "max_steps_ahead", "max_groups")
    yield tables.BUDGET, {name: getattr(budget, name) for name in names}


def _applied(applied: Applied, subject: str) -> Rows:
    names = ("run", "engine", "version", "download_s", "swap_s", "canary_max_error")
    yield tables.APPLIED, {name: getattr(applied, name) for name in names}


def _alert(alert: Alert, subject: str) -> Rows:
    row: Row = {name: getattr(alert, name) for name in ("run", "kind", "severity", "message", "runbook")}
    row |= {"part": alert.source, "details": _json(alert.details)}
    if (episode := alert.episode) is not None:
        names = (
            "monitor", "state", "agent", "task_source", "spec", "since_version", "strength", "examples", "admission",
        )  # fmt: skip
        row |= {name: getattr(episode, name) for name in names}
        row |= {"episode": episode.id, "since": episode.since_ms, "acknowledged_by": episode.by}
    yield tables.ALERTS, row


def _readings(readings: Readings, subject: str) -> Rows:
    names = ("run", "lane", "agent", "task_source", "spec", "window", "first_version", "last_version")
    window: Row = {name: getattr(readings, name) for name in names}
    window |= {"since": readings.since_ms, "until": readings.until_ms}
    for monitor, reading in readings.readings.items():
        names = ("value", "trajectories", "pinned", "expected", "sd", "effect", "change", "strength")
        yield tables.MONITORS, window | {"monitor": monitor} | {name: getattr(reading, name) for name in names}


def _dead_letter(letter: DeadLetter, subject: str) -> Rows:
    yield (
        tables.DEAD_LETTERS,
        {
            **_original_place(letter),
            "error": letter.error,
            "message": letter.message,
            "key_base64": letter.key or "",
            "value_base64": letter.value or "",
            "headers": _json(letter.headers),
            # Kafka uses −1 for a missing timestamp, which the column cannot hold.
            "written_at": max(letter.timestamp_ms, 0),
            "trajectory_id": letter.trajectory_id or "",
        },
    )


def _repaired(repair: Repaired, subject: str) -> Rows:
    row = {"key_base64": repair.key or "", "value_base64": repair.value, "headers": _json(repair.headers)}
    yield tables.DEAD_LETTER_ACTIONS, {"action": "repaired"} | _original_place(repair) | row


def _redriven(redriven: Redriven, subject: str) -> Rows:
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


def _feedback(feedback: events.FeedbackGiven, subject: str) -> Rows:
    row = {name: getattr(feedback, name) for name in ("signal", "value", "delay_s")}
    yield tables.FEEDBACK, row | {"trajectory_id": subject, "comment": feedback.comment or ""}


def _sdk_stats(stats: events.SdkStatsReported, subject: str) -> Rows:
    row: Row = {name: getattr(stats, name) for name in ("emitted", "sent", "queued", "spooled", "replayed", "adopted")}
    yield (
        tables.SDK_STATS,
        row
        | {
            "dropped": sorted(stats.dropped.items()),
            "altered": sorted(stats.altered.items()),
        },
    )


def _gateway_stats(stats: events.GatewayStatsReported, subject: str) -> Rows:
    counts = ("calls", "left", "open_calls", "waiting", "sessions", "unacknowledged", "spooled", "holes")
    row: Row = {name: getattr(stats, name) for name in counts}
    maps = {"errors": sorted(stats.errors.items()), "engines": sorted(stats.engines.items())}
    yield tables.GATEWAY_STATS, row | maps


DERIVED: dict[str, Callable[[Any, str], Rows]] = {
    Trajectory.TYPE: _trajectory,
    Reward.TYPE: _reward,
    TrainingGroup.TYPE: _training_group,
    Rejection.TYPE: _rejection,
    Step.TYPE: _step,
    Weights.TYPE: _weights,
    Budget.TYPE: _budget,
    Applied.TYPE: _applied,
    Alert.TYPE: _alert,
    Readings.TYPE: _readings,
    DeadLetter.TYPE: _dead_letter,
    Repaired.TYPE: _repaired,
    Redriven.TYPE: _redriven,
    events.FeedbackGiven.TYPE: _feedback,
    events.SdkStatsReported.TYPE: _sdk_stats,
    events.GatewayStatsReported.TYPE: _gateway_stats,
}
"""By type, for records that are not events of a trajectory: a function from the record, or a struct with its fields,
and its subject to its rows."""


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
    """Returns ``value`` as JSON; empty for ``None``."""
    return "" if value is None else _ENCODE(value)


_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
"""As ``json.dumps(value, ensure_ascii=False)``, which makes an encoder for each value."""


_CONVERSIONS: dict[ColumnType, Callable[[Any], Any]] = {
    TEXT: lambda text: text or "",
    NAME: lambda text: text or "",
    LABEL: lambda text: text or "",
    JSON_TEXT: _json,
    MAYBE_NUMBER: lambda number: number,
    MAYBE_COUNT: _count,
}
FIELDS = {model.TYPE: _field_columns(model) for model in events.FACTS}
"""By type of `events`: its fields that fill columns, derived from the models."""
READS = {name: tuple((field, attrgetter(field[0])) for field in fields) for name, fields in FIELDS.items()}
"""The same, each with the function that reads the field."""

STORED_TYPES = frozenset({*DERIVED, *FIELDS})
"""Types that have rows: those of the topics that have tables."""
