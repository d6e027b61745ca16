"""Every record of the log has rows, and each row matches its record."""

from typing import Any

import pytest

from headrace.schemas import events
from headrace.schemas.envelope import Envelope
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError, Redriven, Repaired
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.step import Budget, Step, TrainedGroup
from headrace.schemas.records.trajectory import Defect, Segment, ToolStatistics, Trajectory, Turn
from headrace.schemas.records.watch import Lane, Reading, Readings
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.topics import TOPICS
from headrace.streams.clickhouse.columns import RECORD_COLUMNS, Row, arrow_table
from headrace.streams.clickhouse.rows import STORED_TYPES, RowOrigin, to_rows
from headrace.streams.clickhouse.tables import STORED_TOPICS, TABLES_OF_TOPIC

AT = Reference(partition=2, offset=17)
STARTED = events.TrajectoryStarted(task_id="task", agent="search", run="r", group_id="g", group_size=8)
EVALUATION = STARTED.model_copy(update={"purpose": events.Purpose.EVALUATE, "task": {"evaluation": "greedy"}})
SEGMENT = Segment(
    token_ids=[1, 2, 3, 4],
    loss_mask=[0, 0, 1, 1],
    logprobs=[-0.5, -0.25],
    version_spans=[
        events.VersionSpan(version=3, start=0, end=1),
        events.VersionSpan(version=5, start=1, end=2),
    ],
)
TRAJECTORY = Trajectory(
    trajectory_id="t",
    started=STARTED,
    segments=[SEGMENT],
    turns=[
        Turn(sampled_tokens=2, pruned_ids=["a", "b"]),
        Turn(summarized=True),
    ],
    tools={
        "search": ToolStatistics(calls=3, errors={"timeout": 1}, seconds=0.5),
        "read": ToolStatistics(calls=1, errors={"timeout": 1, "refused": 2}, seconds=0.25),
    },
    sampled_tokens=2,
    status=events.EndStatus.COMPLETED,
    answer={"chunk_ids": ["c1"]},
    missing=[4, 5],
    defects=[Defect.MISSING_EVENTS],
    first=AT,
    last=Reference(partition=2, offset=30),
    started_ms=1000,
    ended_ms=3000,
)
REWARD = Reward(
    trajectory_id="t",
    trajectory=AT,
    run="r",
    spec="search@1",
    components={
        "f_beta": Component(value=0.8, weight=0.7),
        "turn_penalty": Component(value=0.1, weight=-1.0),
    },
    total=0.5,
    maximum=2.0,
    oldest_version=3,
    ended_ms=3000,
)
MEMBER = Member(trajectory_id="t", trajectory=AT, reward=0.5, advantage=0.25, oldest_version=3, sampled_tokens=2)
GROUP = TrainingGroup(
    group_id="g",
    run="r",
    task_id="task",
    spec="search@1",
    baseline="mean",
    baseline_value=0.25,
    scored=2,
    members=[MEMBER, MEMBER.model_copy(update={"trajectory_id": "u", "advantage": -0.25})],
    oldest_version=3,
)
STEP = Step(
    run="r",
    step=4,
    version=4,
    groups=[TrainedGroup(group_id="g", group=AT, trajectory_ids=["t", "u"], trajectories=[AT, AT])],
    config_sha256="c",
    data_sha256="d",
    metrics={"loss": -0.5},
)
DEAD_LETTER = DeadLetter(
    topic="events",
    partition=1,
    offset=2,
    error=DeadLetterError.BAD_JSON,
    message="m",
    key=None,
    value="e30=",
    headers=[("ce_type", None)],
    timestamp_ms=-1,
)
SAMPLES: tuple[Record, ...] = (
    STARTED,
    events.ModelCalled(model="m", sampled_ids=[1, 2], finish_reason="stop", latency_s=0.5, call_id="request-1"),
    events.ToolCalled(call_id="c", tool="search"),
    events.ToolReturned(
        call_id="c", tool="search", status=events.ToolStatus.ERROR, error_class=events.ToolErrorClass.TIMEOUT
    ),
    events.ContextSummarized(tokens_before=9, tokens_after=3),
    events.ContextPruned(pruned_ids=["a"], tokens_before=9, tokens_after=3),
    events.SubagentStarted(name="helper", sub_trajectory_id="s"),
    events.SubagentFinished(name="helper", sub_trajectory_id="s"),
    events.EnvironmentSnapshotted(snapshot_id="s1", sha256="9f86", ms=1.5),
    events.EnvironmentForked(snapshot_id="s1", forks=4),
    events.EnvironmentRestored(snapshot_id="s1", source_trajectory_id="t0"),
    events.TrajectoryEnded(answer="Paris", outcome=1.0),
    events.ClockTicked(unix_ms=5),
    events.FeedbackGiven(signal="accepted", value=1),
    events.SdkStatsReported(emitted=3, sent=2, queued=1, spooled=4, replayed=5, adopted=6, dropped={"full": 1}),
    events.GatewayStatsReported(
        calls=9,
        errors={"busy": 1},
        left=1,
        open_calls=2,
        waiting=3,
        sessions=4,
        engines={"http://gpu1:8000": 2},
        unacknowledged=5,
        spooled=6,
        holes=7,
    ),
    TRAJECTORY,
    REWARD,
    GROUP,
    Rejection(trajectory_id="t", trajectory=AT, stage=Stage.GROUP, reason=Reason.ALL_FAIL, policy_version=3),
    STEP,
    Weights(run="r", version=4, parent=3, kind="anchor", manifest_uri="file:///m", sha256="s", size=10, step=4),
    Budget(run="r", version=4, groups_per_step=2, max_steps_ahead=1, max_groups=4),
    Applied(run="r", engine="e", version=4, download_s=0.1, swap_s=0.2, canary_max_error=1e-6),
    Alert(run="r", source="follower", kind="canary_mismatch", message="m", details={"error": 0.9}),
    DEAD_LETTER,
    Repaired(topic="events", partition=1, offset=2, key=None, value="e30=", headers=[("ce_type", "eA==")]),
    Redriven(topic="events", partition=1, offset=2, sha256="s", trajectory_id="t2", redrive_of="t", records=7),
    *(example.payload for example in EXAMPLES.values() if example.payload.TYPE in STORED_TYPES),
)


def rows_of(payload: Record, sequence: int | None = None) -> list[tuple[str, Row]]:
    envelope = Envelope("id", payload.TYPE, "/source", 1234, "t", sequence)
    made = to_rows(envelope, payload, RowOrigin(1, 99, 5678), payload.model_dump_json().encode())
    return [(table.name, row) for table, row in made]


def only_row(payload: Record) -> dict[str, Any]:
    ((_, row),) = rows_of(payload)
    return row


def test_there_is_a_sample_of_every_type_that_has_rows() -> None:
    assert {sample.TYPE for sample in SAMPLES} == STORED_TYPES


def test_every_type_of_a_topic_with_tables_has_rows_and_no_other() -> None:
    assert {model.TYPE for topic in STORED_TOPICS for model in topic.models} == STORED_TYPES


def test_a_record_that_no_table_takes_is_not_taken_for_an_event() -> None:
    class Other(Record):
        TYPE = "headrace.other.v1"

    with pytest.raises(LookupError, match=r"no table stores headrace\.other\.v1"):
        rows_of(Other())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.TYPE)
def test_every_type_fills_tables_of_its_topic_and_nothing_else(sample: Record) -> None:
    (topic,) = (topic for topic in TOPICS if type(sample) in topic.models)
    tables = {table.name: table for table in TABLES_OF_TOPIC[topic.name]}
    made = rows_of(sample, sequence=7)
    assert made
    assert {name for name, _ in made} <= set(tables)
    for name, row in made:
        assert arrow_table(tables[name], [row]).num_rows == 1
        assert [row[name] for name in RECORD_COLUMNS] == ["id", 1234, "/source", 1, 99, 5678]


def test_every_table_but_the_lag_is_filled_by_some_type() -> None:
    filled = {name for sample in SAMPLES for name, _ in rows_of(sample, sequence=7)}
    assert filled == {table.name for tables in TABLES_OF_TOPIC.values() for table in tables}


def test_an_event_keeps_its_whole_payload() -> None:
    sample = events.ModelCalled(model="m", sampled_ids=[1, 2], logprobs=[-1, -2])
    row = only_row(sample)
    assert events.ModelCalled.model_validate_json(row["payload"]) == sample
    assert row["sampled_tokens"] == 2
    assert only_row(events.ModelCalled(model="closed"))["sampled_tokens"] is None


def test_a_tick_of_the_clock_belongs_to_no_trajectory() -> None:
    assert only_row(events.ClockTicked(unix_ms=5))["trajectory_id"] == ""


def test_a_trajectory_is_counted_and_not_copied() -> None:
    row = only_row(TRAJECTORY)
    assert (row["turns"], row["segments"], row["tokens"], row["sampled_tokens"]) == (2, 1, 4, 2)
    assert row["tools"] == [("read", 1), ("search", 3)]
    assert row["tool_errors"] == [("refused", 2), ("timeout", 2)]
    assert (row["tool_seconds"], row["pruned"], row["summaries"], row["missing"]) == (0.75, 2, 1, 2)
    assert (row["versions"], row["oldest_version"], row["newest_version"]) == ([3, 5], 3, 5)
    assert row["answer"] == '{"chunk_ids": ["c1"]}'


def test_a_trajectory_without_a_start_has_a_row() -> None:
    row = only_row(TRAJECTORY.model_copy(update={"started": None, "segments": []}))
    assert "run" not in row
    assert row["oldest_version"] is None


def test_an_evaluation_is_labelled() -> None:
    row = only_row(TRAJECTORY.model_copy(update={"started": EVALUATION}))
    assert (row["purpose"], row["evaluation"]) == ("evaluate", "greedy")


def test_a_reward_is_normalised_by_its_maximum_only() -> None:
    row = only_row(REWARD)
    assert row["normalised"] == 0.25
    assert row["components"] == [("f_beta", 0.8), ("turn_penalty", 0.1)]
    assert row["weights"] == [("f_beta", 0.7), ("turn_penalty", -1.0)]
    assert only_row(REWARD.model_copy(update={"maximum": None}))["normalised"] is None
    unscored = only_row(REWARD.model_copy(update={"total": None, "unscored": "no_outcome"}))
    assert (unscored["normalised"], unscored["unscored"]) == (None, "no_outcome")


def test_a_group_has_one_row_per_member() -> None:
    assert [(row["trajectory_id"], row["advantage"]) for _, row in rows_of(GROUP)] == [("t", 0.25), ("u", -0.25)]


def test_a_step_has_its_own_row_and_one_per_trajectory() -> None:
    (name, step), *members = rows_of(STEP)
    assert (name, step["groups"], step["trajectories"], step["metrics"]) == ("steps", 1, 2, [("loss", -0.5)])
    assert [(name, row["trajectory_id"], row["trajectory_offset"]) for name, row in members] == [
        ("step_members", "t", 17),
        ("step_members", "u", 17),
    ]


def test_an_alert_of_a_monitor_has_its_episode() -> None:
    episode = Episode(
        id="0f3e", monitor="talks", state=EpisodeState.ACKNOWLEDGED, agent="search", task_source="wiki",
        since_version=64, since_ms=1000, strength=1.5, examples=["t-1", "t-2"], by="ada",
    )  # fmt: skip
    row = only_row(Alert(run="r", source="watch", kind="monitor_talks", message="m", episode=episode))
    assert (row["episode"], row["monitor"], row["state"], row["since_version"]) == ("0f3e", "talks", "acknowledged", 64)
    assert (row["since"], row["strength"], row["examples"], row["acknowledged_by"]) == (
        1000,
        1.5,
        ["t-1", "t-2"],
        "ada",
    )
    other = only_row(Alert(run="r", source="follower", kind="canary_mismatch", message="m"))
    assert "episode" not in other


def test_the_readings_of_a_window_have_a_row_per_monitor() -> None:
    readings = Readings(
        lane=Lane.ATTEMPT, run="r", agent="search", task_source="wiki", spec="", window=7, trajectories=64,
        first_version=41, last_version=41, since_ms=1000, until_ms=2000,
        readings={
            "talks": Reading(value=0.3, trajectories=64, expected=0.06, sd=0.02, effect=12.5, strength=1.2),
            "turns": Reading(value=5.5, trajectories=60),
        },
    )  # fmt: skip
    talks, turns = (row for _, row in rows_of(readings))
    assert (talks["monitor"], talks["value"], talks["expected"], talks["strength"]) == ("talks", 0.3, 0.06, 1.2)
    assert (talks["lane"], talks["window"], talks["last_version"], talks["until"]) == ("attempt", 7, 41, 2000)
    assert (turns["monitor"], turns["trajectories"], turns["expected"]) == ("turns", 60, None)


def test_a_dead_letter_without_a_timestamp_has_a_time_that_fits() -> None:
    assert only_row(DEAD_LETTER)["written_at"] == 0
