"""The log of a small shop agent, whose figures can be worked out by hand: two versions of eight attempts in all.

| attempt | version | group, task    | reward        | tokens | fate                                     |
|---------|---------|----------------|---------------|--------|------------------------------------------|
| a1, a2  | 3       | gA, easy, wide | 0.2, 0.8      | 100    | trained at step 4                        |
| a3, a4  | 3       | gB, hard, deep | 0, 0          | 100    | rejected: zero_variance_all_fail         |
| b1      | 17      | gC, easy, wide | 1.0           | 400    | trained at step 19                       |
| b2      | 17      | gC, easy, wide | 0.3, then 0.6 | 200    | trained at step 19; feedback changed it  |
| b3, b4  | 17      | gD, hard, deep | 0.5, 0.1      | 100    | rejected: stale                          |

Attempts of version 3 ended 30 hours ago, those of version 17 an hour ago. Each calls search twice; of version 17 the
second call times out. b1 pruned three pieces in its first turn and summarised its context in the second.

Of version 17 there are also e1, an evaluation, and f1, a trajectory of a frozen sub-agent: neither calls a tool, and
both have the reward 0.9 and 900 tokens. No figure about what is trained may count them.
"""

from dataclasses import dataclass

from headrace.schemas import events
from headrace.schemas.ids import derived_id
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.trajectory import Segment, ToolStatistics, ToolUse, Trajectory, Turn
from tests.streams.clickhouse.stored_log import NOW_MS, StoredLog

HOUR_MS = 3600 * 1000
AT = Reference(partition=0, offset=0)
PRICES = {"small": [1.0, 2.0]}


@dataclass(frozen=True, slots=True)
class Attempt:
    name: str
    version: int
    group: str
    reward: float
    tokens: int
    format: float = 1.0
    purpose: events.Purpose = events.Purpose.TRAIN
    role: events.Role = events.Role.TRAINABLE

    @property
    def is_aside(self) -> bool:
        return not self.group

    @property
    def is_easy(self) -> bool:
        return self.group in ("gA", "gC")

    @property
    def ended_ms(self) -> int:
        return NOW_MS - (30 if self.version == 3 else 1) * HOUR_MS

    @property
    def start(self) -> events.TrajectoryStarted:
        task = {"source": "wide", "hops": 1} if self.is_easy else {"source": "deep", "hops": 3}
        return events.TrajectoryStarted(
            task_id="easy" if self.is_easy else "hard", agent="shop", run="r1", group_id=self.group or None,
            group_size=None if self.is_aside else 2, harness_version="h1", tenant="acme", task=task,
            purpose=self.purpose, role=self.role,
        )  # fmt: skip


ATTEMPTS = (
    Attempt("a1", 3, "gA", 0.2, 100),
    Attempt("a2", 3, "gA", 0.8, 100),
    Attempt("a3", 3, "gB", 0.0, 100),
    Attempt("a4", 3, "gB", 0.0, 100),
    Attempt("b1", 17, "gC", 1.0, 400, format=0.5),
    Attempt("b2", 17, "gC", 0.6, 200, format=0.5),
    Attempt("b3", 17, "gD", 0.5, 100),
    Attempt("b4", 17, "gD", 0.1, 100),
)
ASIDE = (
    Attempt("e1", 17, "", 0.9, 900, purpose=events.Purpose.EVALUATE),
    Attempt("f1", 17, "", 0.9, 900, role=events.Role.FROZEN),
)
"""Trajectories that are never trained."""


def shop_log() -> StoredLog:
    log = StoredLog()
    for one in (*ATTEMPTS, *ASIDE):
        _add_events(log, one)
        _add_trajectory(log, one)
        if one.name == "b2":
            _add_reward(log, one, 0.3, 0)
        _add_reward(log, one, one.reward, int(one.name == "b2"))
    for group, members in (("gA", "a1 a2"), ("gC", "b1 b2"), ("gD", "b3 b4")):
        _add_group(log, group, [one for one in ATTEMPTS if one.name in members.split()])
    for step, version, group, names in ((4, 4, "gA", ["a1", "a2"]), (19, 19, "gC", ["b1", "b2"])):
        trained = TrainedGroup(group_id=group, group=AT, trajectory_ids=names, trajectories=[AT, AT])
        record = Step(
            run="r1", step=step, version=version, groups=[trained], config_sha256="c", data_sha256="d", metrics={}
        )
        log.add("steps", "r1", record, id=derived_id("step", step))
    for name, stage, reason in (
        ("a3", Stage.GROUP, Reason.ALL_FAIL),
        ("a4", Stage.GROUP, Reason.ALL_FAIL),
        ("b3", Stage.ADMISSION, Reason.STALE),
        ("b4", Stage.ADMISSION, Reason.STALE),
    ):
        (one,) = (one for one in ATTEMPTS if one.name == name)
        rejection = Rejection(
            trajectory_id=name, trajectory=AT, stage=stage, reason=reason, run="r1", task_id=one.start.task_id,
            group_id=one.group, policy_version=one.version, reward=one.reward,
        )  # fmt: skip
        log.add("rejected", name, rejection, id=derived_id("rejected", name))
    for name, value, delay_s in (("a2", 1.0, 30.0), ("b1", 1.0, 60.0), ("b2", 1.0, 600.0)):
        (one,) = (one for one in ATTEMPTS if one.name == name)
        given = events.FeedbackGiven(signal="accepted", value=value, delay_s=delay_s)
        log.add("feedback", name, given, id=f"feedback on {name}", time_ms=one.ended_ms + int(delay_s) * 1000)
    return log


def _add_events(log: StoredLog, one: Attempt) -> None:
    said = [{"role": "user", "content": f"Which shoes, {one.name}?"}, {"role": "assistant", "content": "The red ones."}]
    usage = events.Usage(prompt_tokens=1000, completion_tokens=one.tokens)
    facts = (
        one.start,
        events.ModelCalled(model="small", messages=said, usage=usage, latency_s=0.5),
        events.TrajectoryEnded(),
    )
    for sequence, fact in enumerate(facts):
        log.add("events", one.name, fact, id=derived_id(one.name, sequence), sequence=sequence, time_ms=one.ended_ms)


def _add_trajectory(log: StoredLog, one: Attempt) -> None:
    late = events.ToolErrorClass.TIMEOUT if one.version == 17 else None
    calls = [
        ToolUse(call_id="c0", tool="search", status=events.ToolStatus.OK, latency_s=0.1),
        ToolUse(
            call_id="c1", tool="search", status=events.ToolStatus.ERROR if late else events.ToolStatus.OK,
            error_class=late, latency_s=5.0 if late else 0.1,
        ),
    ]  # fmt: skip
    calls = [] if one.is_aside else calls
    tools = (
        {} if one.is_aside else {"search": ToolStatistics(calls=2, errors={"timeout": 1} if late else {}, seconds=0.2)}
    )
    pruned = ["p1", "p2", "p3"] if one.name == "b1" else []
    tokens = list(range(one.tokens))
    record = Trajectory(
        trajectory_id=one.name,
        started=one.start,
        segments=[
            Segment(
                token_ids=tokens, loss_mask=[1] * len(tokens), logprobs=[-0.5] * len(tokens),
                version_spans=[events.VersionSpan(version=one.version, start=0, end=len(tokens))],
            )
        ],
        turns=[
            Turn(sampled_tokens=one.tokens - 10, finish_reason="tool_calls", tools=calls, pruned_ids=pruned),
            Turn(sampled_tokens=10, finish_reason="stop", summarized=one.name == "b1"),
        ],
        tools=tools,
        sampled_tokens=one.tokens,
        status=events.EndStatus.COMPLETED,
        first=AT,
        last=AT,
        started_ms=one.ended_ms - 60_000,
        ended_ms=one.ended_ms,
    )  # fmt: skip
    log.add("trajectories", one.name, record, id=derived_id("trajectory", one.name), time_ms=one.ended_ms)


def _add_reward(log: StoredLog, one: Attempt, total: float, revision: int) -> None:
    record = Reward(
        trajectory_id=one.name, trajectory=AT, agent="shop", run="r1", task_id=one.start.task_id,
        group_id=one.start.group_id, group_size=one.start.group_size, tenant="acme", spec="shop@1",
        purpose=one.purpose, role=one.role,
        components={
            "recall": Component(value=total, weight=1.0),
            "format": Component(value=one.format, weight=0.0, details={"brackets": one.format}),
        },
        total=total, maximum=1.0, revision=revision, oldest_version=one.version, newest_version=one.version,
        sampled_tokens=one.tokens, turns=2, status=events.EndStatus.COMPLETED, ended_ms=one.ended_ms,
    )  # fmt: skip
    log.add("rewards", one.group or one.name, record, id=derived_id("reward", one.name, revision))


def _add_group(log: StoredLog, group: str, members: list[Attempt]) -> None:
    mean = sum(one.reward for one in members) / len(members)
    record = TrainingGroup(
        group_id=group, run="r1", task_id=members[0].start.task_id, spec="shop@1", baseline="mean", baseline_value=mean,
        scored=2, oldest_version=members[0].version,
        members=[
            Member(
                trajectory_id=one.name, trajectory=AT, reward=one.reward, advantage=round(one.reward - mean, 6),
                oldest_version=one.version, sampled_tokens=one.tokens,
            )
            for one in members
        ],
    )  # fmt: skip
    log.add("training", group, record, id=derived_id("group", group))
