"""One small, realistic record of every type, shown by `headrace topics NAME` and the AsyncAPI document.

The records belong to one story: an agent searches, prunes, gets help from a sub-agent and answers; its trajectory is
scored, grouped with another attempt and trained, and the new weights are served.
"""

from array import array
from base64 import b64encode
from dataclasses import dataclass

from headrace.schemas import events
from headrace.schemas.envelope import Envelope, to_headers
from headrace.schemas.ids import derived_id, uuid7
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError, Redriven, Repaired
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.step import BatchRecipe, Budget, Step, TrainedGroup
from headrace.schemas.records.trajectory import Segment, ToolStatistics, ToolUse, Trajectory, Turn
from headrace.schemas.records.watch import Lane, LevelAccepted, Observation, Reading, Readings
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import TOPICS, Topic
from headrace.schemas.wire import Message, encode


@dataclass(frozen=True, slots=True)
class Example:
    """A record of a topic."""

    topic: Topic
    """Topic."""
    key: str
    """Key."""
    envelope: Envelope
    """Its headers, decoded."""
    payload: Record
    """Its value, decoded."""

    @property
    def message(self) -> Message:
        """The encoded Kafka record."""
        return encode(self.payload, key=self.key, envelope=self.envelope)


START_MS = 1_795_260_264_512
"""2026-11-21T11:24:24.512Z, the time of the first event."""

RUN = "search-7"
TRAJECTORY = uuid7(START_MS, b"\x11" * 10)
OTHER = uuid7(START_MS + 40, b"\x22" * 10)
HELPER = uuid7(START_MS + 900, b"\x33" * 10)
GROUP = "search-7/ada-works/0"
TASK = "ada-works"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

_AT = Reference(partition=2, offset=331)
_OTHER_AT = Reference(partition=0, offset=318)
_PROMPT = array("i", [151, 872, 12, 9])
_FIRST_ANSWER = array("i", [40, 41, 42])
_SHOWN = array("i", [77, 78])
_SECOND_ANSWER = array("i", [43, 44])
_STARTED = events.TrajectoryStarted(
    task_id=TASK,
    group_id=GROUP,
    group_size=2,
    agent="search",
    harness_version="1.4.0",
    run=RUN,
    task={"question": "Where does Ada work?", "targets": ["c17"], "answer_chunks": ["c17"]},
)
_SECOND_CALL = events.ModelCalled(
    model="policy",
    prefix_length=len(_PROMPT) + len(_FIRST_ANSWER),
    prefix_sha256=prefix_hash(_PROMPT + _FIRST_ANSWER),
    context_ids=_SHOWN,
    sampled_ids=_SECOND_ANSWER,
    logprobs=[-0.25, -0.0625],
    version_spans=[
        events.VersionSpan(version=3, start=0, end=1, run=RUN),
        events.VersionSpan(version=4, start=1, end=2, run=RUN),
    ],
    sampling=events.Sampling(temperature=1.0, max_tokens=64, seed=7, logprobs=events.LogprobsOf.PROCESSED),
    finish_reason="stop",
    messages=[
        {"role": "tool", "tool_call_id": "call-1", "content": "[c17] Ada works at the mill."},
        {"role": "assistant", "content": "At the mill."},
    ],
    latency_s=0.41,
    usage=events.Usage(prompt_tokens=9, completion_tokens=2),
    call_id="request-2",
    choice=0,
    delivered=True,
)
_FACTS: tuple[Record, ...] = (
    _STARTED,
    events.SubagentStarted(name="reader", sub_trajectory_id=HELPER),
    events.SubagentFinished(name="reader", sub_trajectory_id=HELPER, steps=4),
    events.ToolCalled(
        call_id="call-1", tool="search_corpus", arguments={"query": "where does ada work"}, thinking_tokens=12
    ),
    events.ToolReturned(
        call_id="call-1",
        tool="search_corpus",
        result={"chunk_ids": ["c17", "c3"], "text": "[c17] Ada works at the mill. …"},
        latency_s=0.03,
    ),
    _SECOND_CALL,
    events.ContextPruned(pruned_ids=["c3"], tokens_before=9, tokens_after=8),
    events.ContextSummarized(
        summary="Ada works at the mill (c17).", tokens_before=8, tokens_after=5, chain_index=1, summary_tokens=6
    ),
    events.EnvironmentSnapshotted(
        snapshot_id="9f86d081", parent_id="2c26b46b", sha256="9f86d081", provider="overlay", ms=4.7
    ),
    events.EnvironmentForked(
        snapshot_id="9f86d081", parent_id="2c26b46b", sha256="9f86d081", provider="overlay", forks=4, ms=2.1
    ),
    events.EnvironmentRestored(
        snapshot_id="9f86d081",
        parent_id="2c26b46b",
        sha256="9f86d081",
        provider="overlay",
        source_trajectory_id=HELPER,
        ms=0.6,
    ),
    events.TrajectoryEnded(answer={"chunk_ids": ["c17"], "text": "At the mill."}, outcome=1.0),
)
_SCORED_TRAJECTORY = Trajectory(
    trajectory_id=TRAJECTORY,
    started=_STARTED,
    segments=[
        Segment(
            token_ids=_PROMPT + _FIRST_ANSWER + _SHOWN + _SECOND_ANSWER,
            loss_mask=[0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1],
            logprobs=[-0.5, -0.125, -1.5, -0.25, -0.0625],
            version_spans=[
                events.VersionSpan(version=3, start=0, end=4, run=RUN),
                events.VersionSpan(version=4, start=4, end=5, run=RUN),
            ],
            sampling_spans=[events.SamplingSpan(temperature=1.0, start=0, end=5)],
        )
    ],
    turns=[
        Turn(
            sampled_tokens=3,
            finish_reason="tool_calls",
            tools=[
                ToolUse(
                    call_id="call-1",
                    tool="search_corpus",
                    arguments={"query": "where does ada work"},
                    status=events.ToolStatus.OK,
                    result={"chunk_ids": ["c17", "c3"], "text": "[c17] Ada works at the mill. …"},
                    latency_s=0.03,
                )
            ],
        ),
        Turn(sampled_tokens=2, finish_reason="stop", pruned_ids=["c3"]),
    ],
    tools={"search_corpus": ToolStatistics(calls=1, seconds=0.03)},
    critical_steps=2,
    total_steps=2,
    sampled_tokens=5,
    status=events.EndStatus.COMPLETED,
    answer={"chunk_ids": ["c17"], "text": "At the mill."},
    outcome=1.0,
    events=7,
    first=Reference(partition=2, offset=7104),
    last=Reference(partition=2, offset=7131),
    started_ms=START_MS,
    ended_ms=START_MS + 2400,
)
_REWARD = Reward(
    trajectory_id=TRAJECTORY,
    trajectory=_AT,
    agent="search",
    run=RUN,
    task_id=TASK,
    group_id=GROUP,
    group_size=2,
    spec="search@1",
    components={
        "f_beta": Component(value=0.9, weight=0.7),
        "trajectory_recall": Component(value=1.0, weight=0.3),
        "answer_found": Component(value=1.0, weight=1.0),
        "prune_penalty": Component(value=0.1, weight=-1.0),
    },
    total=1.83,
    maximum=2.0,
    oldest_version=3,
    newest_version=4,
    sampled_tokens=5,
    turns=2,
    status=events.EndStatus.COMPLETED,
    ended_ms=START_MS + 2400,
)
_MEMBERS = [
    Member(trajectory_id=TRAJECTORY, trajectory=_AT, reward=1.83, advantage=0.5, oldest_version=3, sampled_tokens=5),
    Member(trajectory_id=OTHER, trajectory=_OTHER_AT, reward=0.83, advantage=-0.5, oldest_version=3, sampled_tokens=9),
]
_GROUP = TrainingGroup(
    group_id=GROUP,
    run=RUN,
    task_id=TASK,
    spec="search@1",
    baseline="mean",
    baseline_value=1.33,
    expected=2,
    scored=2,
    reward_std=0.7071067811865476,
    members=_MEMBERS,
    oldest_version=3,
)
_STEP = Step(
    run=RUN,
    step=5,
    version=5,
    groups=[
        TrainedGroup(
            group_id=GROUP,
            group=Reference(partition=1, offset=57),
            trajectory_ids=[TRAJECTORY, OTHER],
            trajectories=[_AT, _OTHER_AT],
        )
    ],
    config_sha256="5b3c1d07a5c2f8e9d4a6b7c8e9f00112233445566778899aabbccddeeff00112",
    data_sha256="9f00112233445566778899aabbccddeeff001125b3c1d07a5c2f8e9d4a6b7c8e",
    recipe=BatchRecipe(advantage_scale="group_std"),
    array_sha256={"token_ids": "00112233445566778899aabbccddeeff001121c07a5c2f8e9d4a6b7c8e9f0011"},
    metrics={"loss": -0.014, "k3": 0.002, "grad_norm": 0.37, "tokens": 14.0, "seconds": 1.9},
)
_BROKEN_PLACE = {"topic": "events", "partition": 2, "offset": 7104}
_BROKEN = b'{"call_id": "call-2", "tool": "search_corpus", "arguments": {"query": "ada'
_MENDED = b'{"call_id": "call-2", "tool": "search_corpus", "arguments": {"query": "ada"}}'


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


def _encoded_headers() -> list[tuple[str, str | None]]:
    envelope = Envelope(uuid7(START_MS, b"\x44" * 10), events.ToolCalled.TYPE, "/agents/search", START_MS, OTHER, 3)
    return [(name, _base64(content)) for name, content in to_headers(envelope)]


_OTHERS: tuple[tuple[Record, str, str, str], ...] = (
    # payload, key, source, subject
    (
        events.FeedbackGiven(signal="accepted", value=1.0, delay_s=12.5, comment="Just what I needed."),
        TRAJECTORY,
        "/agents/search",
        TRAJECTORY,
    ),
    (events.SdkStatsReported(emitted=1204, sent=1200, dropped={"queue_full": 4}), "search", "/agents/search", "search"),
    (
        events.GatewayStatsReported(
            calls=904, errors={"engine_unavailable": 2}, sessions=17, engines={"http://gpu1:8000": 6}, unacknowledged=3
        ),
        "/agents/gateway/0190f2c0",
        "/agents/gateway/0190f2c0",
        "/agents/gateway/0190f2c0",
    ),
    (events.ClockTicked(unix_ms=START_MS + 60_000), "clock", "/streams/assemble", "clock"),
    (_SCORED_TRAJECTORY, TRAJECTORY, "/streams/assemble", TRAJECTORY),
    (_REWARD, GROUP, "/streams/score", TRAJECTORY),
    (_GROUP, GROUP, "/streams/group", GROUP),
    (
        Rejection(
            trajectory_id=OTHER,
            trajectory=_OTHER_AT,
            stage=Stage.GROUP,
            reason=Reason.ALL_FAIL,
            run=RUN,
            task_id=TASK,
            group_id=GROUP,
            policy_version=3,
            reward=0.0,
        ),
        OTHER,
        "/streams/group",
        OTHER,
    ),
    (_STEP, RUN, "/trainer", RUN),
    (
        Weights(
            run=RUN,
            version=5,
            parent=4,
            kind="delta",
            manifest_uri="file:///var/lib/headrace/store/search-7/5/manifest.json",
            sha256="d07a5c2f8e9d4a6b7c8e9f00112233445566778899aabbccddeeff001125b3c1",
            size=182_044,
            step=5,
        ),
        RUN,
        "/trainer",
        RUN,
    ),
    (
        Budget(run=RUN, version=5, groups_per_step=16, max_steps_ahead=4, max_groups=80),
        RUN,
        "/trainer",
        RUN,
    ),
    (
        Applied(run=RUN, engine="127.0.0.1:8000", version=5, download_s=0.2, swap_s=0.04, canary_max_error=0.0009),
        RUN,
        "/headrace/follower/127.0.0.1:8000",
        "127.0.0.1:8000",
    ),
    (
        Observation(
            of=Lane.ATTEMPT,
            trajectory_id=TRAJECTORY,
            run=RUN,
            agent="search",
            task_source="wiki",
            version=4,
            values={"turns": 4.0, "tokens": 14.0, "tool_calls": 2.0, "invalid": 0.0, "talks": 0.0, "answered": 1.0},
            labels=["^>search_corpus>search_corpus", "search_corpus>search_corpus>answer"],
        ),
        TRAJECTORY,
        "/streams/observe",
        TRAJECTORY,
    ),
    (
        LevelAccepted(
            episode="0f3ebc7e-54c3-5b5e-9d0d-0d1f5c2a7c11",
            monitor="turns",
            lane=Lane.ATTEMPT,
            run=RUN,
            agent="search",
            task_source="wiki",
            by="ada",
        ),
        RUN,
        "/headrace/watch",
        RUN,
    ),
    (
        Readings(
            lane=Lane.ATTEMPT,
            run=RUN,
            agent="search",
            task_source="wiki",
            spec="",
            window=41,
            trajectories=64,
            first_version=41,
            last_version=41,
            since_ms=START_MS,
            until_ms=START_MS + 52_000,
            readings={
                "talks": Reading(
                    value=0.1875,
                    trajectories=64,
                    pinned=0.05,
                    expected=0.052,
                    sd=0.027,
                    effect=5.1,
                    change=1.7,
                    strength=1.08,
                )
            },
        ),
        RUN,
        "/streams/watch",
        RUN,
    ),
    (
        Alert(
            run=RUN,
            source="follower",
            kind="canary_mismatch",
            severity=Severity.CRITICAL,
            message="Version 6 does not reproduce the trainer's log-probabilities; version 5 is served again.",
            details={"version": 6, "max_error": 1.7, "tolerance": 0.05},
        ),
        RUN,
        "/headrace/follower/127.0.0.1:8000",
        RUN,
    ),
    (
        DeadLetter(
            **_BROKEN_PLACE,
            error=DeadLetterError.BAD_JSON,
            message="headrace.tool.called.v1: Invalid JSON: EOF while parsing a string at line 1 column 74",
            key=_base64(OTHER.encode()),
            value=_base64(_BROKEN),
            headers=_encoded_headers(),
            timestamp_ms=START_MS,
            trajectory_id=OTHER,
        ),
        "events:2",
        "/streams/dead-letters",
        OTHER,
    ),
    (
        Repaired(**_BROKEN_PLACE, key=_base64(OTHER.encode()), value=_base64(_MENDED), headers=_encoded_headers()),
        "events:2",
        "/headrace/dead-letters",
        "events:2:7104",
    ),
    (
        Redriven(
            **_BROKEN_PLACE,
            sha256="e9d4a6b7c8e9f00112233445566778899aabbccddeeff001125b3c1d07a5c2f8",
            trajectory_id=derived_id("redrive", OTHER),
            redrive_of=OTHER,
            records=7,
        ),
        "events:2",
        "/headrace/dead-letters",
        "events:2:7104",
    ),
)


def _examples() -> dict[str, Example]:
    found: dict[str, Example] = {}
    topic_of = {model: topic for topic in TOPICS for model in topic.models}
    for sequence, fact in enumerate(_FACTS):
        time_ms = START_MS + 300 * sequence
        event_id = uuid7(time_ms, bytes([sequence]) * 10)
        envelope = Envelope(event_id, fact.TYPE, "/agents/search", time_ms, TRAJECTORY, sequence, TRACE)
        found[fact.TYPE] = Example(topic_of[type(fact)], TRAJECTORY, envelope, fact)
    for payload, key, source, subject in _OTHERS:
        envelope = Envelope(derived_id(payload.TYPE, subject), payload.TYPE, source, START_MS + 2400, subject)
        found[payload.TYPE] = Example(topic_of[type(payload)], key, envelope, payload)
    for model, topic in topic_of.items():
        if model.TYPE not in found and (example := _from_fields(model, topic)):
            found[model.TYPE] = example
    return found


def _from_fields(model: type[Record], topic: Topic) -> Example | None:
    """A record of a type that the story lacks, from the examples of its fields (``Field(examples=[…])``).

    ``None`` if a required field has no example. The first field names what the record is about.
    """
    fields = model.model_fields
    values = {name: field.examples[0] for name, field in fields.items() if field.examples}
    if any(field.is_required() and name not in values for name, field in fields.items()):
        return None
    payload = model(**values)
    subject = str(next(iter(values.values()), ""))
    envelope = Envelope(derived_id(model.TYPE, subject), model.TYPE, f"/streams/{topic.name}", START_MS + 2400, subject)
    return Example(topic, subject, envelope, payload)


EXAMPLES: dict[str, Example] = _examples()
"""The examples by type name."""
