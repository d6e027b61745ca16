"""The trace of a trajectory gives its fate, and every version that it influenced."""

import random

import pytest

from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.trainer.provenance.evidence import Found
from headrace.trainer.provenance.trace import EventFound, EventsLeft, Trace, TrajectoryFate, trained_in
from headrace.trainer.provenance.versions import version_graph
from tests.trainer.provenance.history import History

AT = (0, 1)


@pytest.fixture
def history():
    made, rng = History(), random.Random(4)
    for _ in range(3):
        made.train(rng)
    return made


def found(trace, history, name):
    """Returns ``trace`` with all records of a history about ``name``."""
    graph = version_graph(history.weights, history.run)
    places = enumerate(history.steps)
    steps = [trained_in(Found((0, number), step), name, graph) for number, step in places]
    trace.steps = [each for each in steps if each is not None]
    trace.groups = [
        Found(place, group)
        for place, group in history.groups.items()
        if any(member.trajectory_id == name for member in group.members)
    ]
    return trace


def test_it_touches_the_version_of_its_step_and_its_descendants(history):
    for step in history.steps:
        for name in (name for group in step.groups for name in group.trajectory_ids):
            trace = found(Trace(name), history, name)
            assert trace.fate is TrajectoryFate.TRAINED
            assert trace.touched == list(range(step.version, 4))
            assert trace.member is not None
            assert trace.member.trajectory_id == name


def test_its_fate_depends_on_its_last_record(history):
    name = "t"
    reward = Reward(
        trajectory_id=name, trajectory=Reference(partition=0, offset=1), spec="search@1", total=1.0, ended_ms=0
    )
    rejection = Rejection(
        trajectory_id=name, trajectory=reward.trajectory, stage=Stage.GROUP, reason=Reason.ALL_FAIL, run="run"
    )
    trace = Trace(name)
    assert trace.fate is TrajectoryFate.UNKNOWN
    trace.event = EventFound("e", "headrace.tool.called.v1", name, 3, 0, AT)
    assert trace.fate is TrajectoryFate.OPEN
    trace.trajectory = Found(AT, next(iter(history.trajectories.values())))
    assert trace.fate is TrajectoryFate.UNSCORED
    trace.rewards = [Found(AT, reward)]
    assert trace.fate is TrajectoryFate.UNGROUPED
    trace.groups = [Found(AT, next(iter(history.groups.values())))]
    assert trace.fate is TrajectoryFate.UNTRAINED
    trace.rejections = [Found(AT, rejection)]
    assert trace.fate is TrajectoryFate.REJECTED
    assert trace.touched == []


def test_a_step_without_it_did_not_train_it(history):
    graph = version_graph(history.weights, history.run)
    assert trained_in(Found(AT, history.steps[0]), "stranger", graph) is None


def test_the_state_of_its_events_depends_on_the_partitions_first_offset():
    assert EventsLeft(0, 10, 20, begin=10).state == "there"
    assert EventsLeft(0, 10, 20, begin=11).state == "partly expired"
    assert EventsLeft(0, 10, 20, begin=20).state == "partly expired"
    assert EventsLeft(0, 10, 20, begin=21).state == "expired"
