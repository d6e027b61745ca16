"""Every trajectory gets one reward record: a total, or the reason for none."""

import math

import pytest

from headrace.schemas.envelope import from_headers
from headrace.schemas.events import VersionSpan
from headrace.schemas.records import Defect, Reference, Reward, Trajectory
from headrace.schemas.wire import decode
from headrace.streams.rewards.schedule import linear
from headrace.streams.rewards.spec import RewardSpec, Unscorable, reward
from headrace.streams.score import INCOMPLETE_FACTS, reward_message, score, spec_for
from tests.streams.attempts import attempt

WHERE = Reference(partition=2, offset=77)


def test_the_agent_chooses_the_spec() -> None:
    assert spec_for(attempt("t", agent="search")).label == "search@1"
    assert spec_for(attempt("t", agent="anybody")).label == "outcome@1"
    assert spec_for(attempt("t", started=False)).label == "outcome@1"


def test_the_reward_says_where_its_trajectory_stands_and_what_it_was() -> None:
    made = score(attempt("t", outcome=0.25, group="g", size=8, run="r", ended_ms=5000), WHERE)
    assert made.trajectory == WHERE
    assert (made.run, made.task_id, made.group_id, made.group_size) == ("r", "task-of-g", "g", 8)
    assert (made.spec, made.total, made.maximum, made.unscored) == ("outcome@1", 0.25, 1.0, None)
    assert (made.oldest_version, made.newest_version, made.sampled_tokens, made.turns) == (3, 3, 2, 1)
    assert made.ended_ms == 5000


@pytest.mark.parametrize("defect", list(Defect))
def test_every_defect_is_copied_and_those_that_hide_facts_leave_no_total(defect: Defect) -> None:
    made = score(attempt("t", outcome=1.0, defects=[defect]), WHERE)
    assert made.defects == [defect]
    if defect in INCOMPLETE_FACTS:
        assert (made.total, made.unscored) == (None, defect.value)
    else:
        assert (made.total, made.unscored) == (1.0, None)


def test_without_an_outcome_there_is_no_total() -> None:
    made = score(attempt("t", outcome=None), WHERE)
    assert (made.total, made.unscored, made.components) == (None, "no_outcome", {})


@pytest.mark.parametrize("outcome", [math.nan, math.inf])
def test_an_outcome_that_is_no_number_leaves_no_total(outcome: float) -> None:
    assert score(attempt("t", outcome=outcome), WHERE).unscored == "outcome_not_finite"


def test_a_trajectory_without_start_is_scored_as_missing_it() -> None:
    made = score(attempt("t", started=False, defects=[Defect.NO_START]), WHERE)
    assert (made.run, made.task_id, made.group_id, made.unscored) == ("", None, None, "no_start")


def test_the_record_id_does_not_depend_on_where_the_trajectory_stands() -> None:
    trajectory = attempt("t")
    first, again = (reward_message(score(trajectory, Reference(partition=0, offset=at))) for at in (1, 9))
    assert from_headers(first.headers).id == from_headers(again.headers).id


@pytest.mark.parametrize(("group", "key"), [("g", b"g"), (None, b"t")])
def test_rewards_are_keyed_by_group_or_else_by_trajectory(group: str | None, key: bytes) -> None:
    message = reward_message(score(attempt("t", group=group), WHERE))
    envelope, record = decode(message.headers, message.value)
    assert message.key == key
    assert envelope.subject == "t"
    assert isinstance(record, Reward)


def test_a_weight_may_follow_a_schedule_of_the_newest_version() -> None:
    @reward(weight=linear(1.0, 0.0, until=10))
    def shaping(trajectory: Trajectory) -> float:
        return 4.0

    spec = RewardSpec("annealed", 2, (shaping,))
    assert spec.label == "annealed@2"
    assert spec.score(attempt("t", version=5)).total == 2.0
    assert spec.score(attempt("t", version=20)).total == 0.0
    mixed = attempt("t", version=0)
    spans = [VersionSpan(version=0, start=0, end=1), VersionSpan(version=5, start=1, end=2)]
    mixed = mixed.model_copy(update={"segments": [mixed.segments[0].model_copy(update={"version_spans": spans})]})
    assert spec.score(mixed).components["shaping"].weight == 0.5


def test_one_component_that_cannot_be_computed_leaves_the_others_on_record() -> None:
    @reward(weight=1.0)
    def known(trajectory: Trajectory) -> float:
        return 1.0

    @reward(weight=1.0)
    def judged(trajectory: Trajectory) -> float:
        raise Unscorable("judge_timeout")

    scored = RewardSpec("mixed", 1, (judged, known)).score(attempt("t"))
    assert (scored.total, scored.unscored) == (None, "judge_timeout")
    assert set(scored.components) == {"known"}
