"""Small builders of the records the ledger reads: ``through("t", rejected("t"))`` are all records about ``t``."""

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ClockTicked, ToolCalled, TrajectoryStarted
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.topics import EVENTS, REWARDS, STEPS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, encode, record_message
from headrace.streams.grouping.group import output_message
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import attempt, rewarded, trajectory_message

WHERE = Reference(partition=0, offset=0)
Sent = tuple[Topic, Message]


def event(trajectory_id: str, started: bool = True) -> Sent:
    """The start of a trajectory, or another of its events."""
    fact = TrajectoryStarted(task_id="q", agent="a") if started else ToolCalled(call_id="c", tool="t")
    envelope = Envelope(id="e", type=fact.TYPE, source="/a", time_ms=0, subject=trajectory_id, sequence=0)
    return EVENTS, encode(fact, key=trajectory_id, envelope=envelope)


def tick() -> Sent:
    """A tick, which belongs to no trajectory."""
    fact = ClockTicked(unix_ms=1)
    envelope = Envelope(id="e", type=fact.TYPE, source="/a", time_ms=0, subject="clock")
    return EVENTS, encode(fact, key="clock", envelope=envelope)


def assembled(trajectory_id: str, version: int | None = 3) -> Sent:
    """Its record in ``trajectories``."""
    return TRAJECTORIES, trajectory_message(attempt(trajectory_id, version=version))


def scored(trajectory_id: str, revision: int = 0) -> Sent:
    """Its reward, or a later revision of it."""
    return REWARDS, reward_message(rewarded(trajectory_id).model_copy(update={"revision": revision}))


def grouped(*trajectory_ids: str) -> Sent:
    """A training group of them."""
    members = [
        Member(trajectory_id=each, trajectory=WHERE, reward=1, advantage=1, oldest_version=3, sampled_tokens=1)
        for each in trajectory_ids
    ]
    group = TrainingGroup(
        group_id="g",
        run="r",
        task_id="q",
        spec="s@1",
        baseline="mean",
        baseline_value=0,
        scored=1,
        members=members,
        oldest_version=3,
    )
    return output_message(group, 0)


def rejected(trajectory_id: str, reason: Reason = Reason.ALL_FAIL, stage: Stage = Stage.GROUP) -> Sent:
    """Its rejection."""
    return output_message(Rejection(trajectory_id=trajectory_id, trajectory=WHERE, stage=stage, reason=reason), 0)


def trained(number: int, *trajectory_ids: str) -> Sent:
    """A step that trained them."""
    group = TrainedGroup(
        group_id="g", group=WHERE, trajectory_ids=list(trajectory_ids), trajectories=[WHERE] * len(trajectory_ids)
    )
    step = Step(run="r", step=number, version=number, groups=[group], config_sha256="", data_sha256="", metrics={})
    return STEPS, record_message(step, id="s", key="r", source="/trainer", time_ms=0, subject="r")


def through(trajectory_id: str, *further: Sent) -> tuple[Sent, ...]:
    """Every record up to the reward, and those that follow."""
    return event(trajectory_id), assembled(trajectory_id), scored(trajectory_id), *further


CIRCLE: tuple[Sent, ...] = (
    event("open"),
    event("headless", started=False),
    *(event("unscored"), assembled("unscored")),
    *through("ungrouped"),
    *through("untrained", grouped("untrained")),
    *through("trained", grouped("trained"), trained(2, "trained")),
    *through("stale", grouped("stale"), rejected("stale", Reason.STALE, Stage.ADMISSION)),
    *through("flat", rejected("flat")),
)
"""One trajectory of each fate."""
