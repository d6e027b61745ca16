"""Every trajectory gets one reward record: a total, or the reason for none."""

import math
from collections.abc import Sequence

import pytest

from headrace.schemas.envelope import from_headers
from headrace.schemas.ids import derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.wire import decode
from headrace.streams.rewards.incomplete import INCOMPLETE_FACTS
from headrace.streams.rewards.registry import Rewards, parse_rewards
from headrace.streams.rewards.spec import Feedback, RewardSpec, Term, reward
from headrace.streams.scoring.score import reward_message, score, score_or_label, unscored
from tests.streams.attempts import attempt

WHERE = Reference(partition=2, offset=77)


@pytest.mark.parametrize(("agent", "label"), [("search", "search@1"), ("anybody", "outcome@1")])
def test_the_agent_chooses_the_spec(agent: str, label: str) -> None:
    made = score(attempt("t", agent=agent), WHERE)
    assert (made.agent, made.spec) == (agent, label)


def test_a_setting_chooses_the_spec_of_an_agent_and_of_any_other() -> None:
    rewards = parse_rewards({"helper": "search@2", "*": "search@1"})
    assert score(attempt("t", agent="helper"), WHERE, rewards=rewards).spec == "search@2"
    assert score(attempt("t", agent="other"), WHERE, rewards=rewards).spec == "search@1"
    assert score(attempt("t", started=False), WHERE, rewards=rewards).spec == "search@1"


def given(offset: int, value: float, signal: str = "kept") -> Feedback:
    return Feedback(f"f{offset}", signal, value, 1000 + offset, Reference(partition=0, offset=offset))


@reward(weight=1.0)
def last_given(trajectory: Trajectory, feedback: Sequence[Feedback]) -> float:
    """The latest feedback's value; 0 without feedback."""
    return feedback[-1].value if feedback else 0.0


def test_the_reward_uses_the_feedback_it_names_in_log_order() -> None:
    rewards = Rewards({}, RewardSpec("kept", 1, (last_given,)))
    arrived = [given(7, 0.25), given(3, 1.0)]
    made = score(attempt("t"), WHERE, rewards=rewards, feedback=arrived, revision=2)
    assert (made.total, made.revision) == (0.25, 2)
    assert [each.offset for each in made.feedback] == [3, 7]


def test_the_first_reward_is_revision_0_scored_or_not() -> None:
    assert score(attempt("t"), WHERE).revision == 0
    assert score_or_label(attempt("t"), WHERE)[0].revision == 0
    missing = unscored(attempt("t"), WHERE, "gone")
    assert (missing.revision, missing.total, missing.unscored) == (0, None, "gone")


def test_a_revision_is_another_record_of_the_same_trajectory() -> None:
    ids = [
        from_headers(reward_message(score(attempt("t"), WHERE, revision=revision)).headers).id
        for revision in (0, 0, 1, 2)
    ]
    assert len(set(ids)) == 3
    assert ids[0] == ids[1] == derived_id(Reward.TYPE, "t", "outcome@1")


def test_a_reward_continues_the_trace_of_its_trajectory() -> None:
    origin = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    made = score(attempt("t"), WHERE)
    continued = from_headers(reward_message(made, origin=origin).headers).traceparent
    assert continued is not None
    assert continued.split("-")[1] == origin.split("-")[1]
    assert continued != origin
    assert from_headers(reward_message(made).headers).traceparent is None


def test_the_reward_references_and_describes_its_trajectory() -> None:
    made = score(attempt("t", outcome=0.25, group="g", size=8, run="r", ended_ms=5000), WHERE)
    assert made.trajectory == WHERE
    assert (made.run, made.task_id, made.group_id, made.group_size) == ("r", "task-of-g", "g", 8)
    assert (made.spec, made.total, made.maximum, made.unscored) == ("outcome@1", 0.25, 1.0, None)
    assert (made.oldest_version, made.newest_version, made.sampled_tokens, made.turns) == (3, 3, 2, 1)
    assert made.ended_ms == 5000


@pytest.mark.parametrize("defect", list(Defect))
def test_defects_are_copied_and_those_that_hide_facts_leave_no_total(defect: Defect) -> None:
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
def test_an_outcome_that_is_not_a_number_leaves_no_total(outcome: float) -> None:
    unchecked = attempt("t").model_copy(update={"outcome": outcome})
    assert score(unchecked, WHERE).unscored == "outcome_not_finite"


@pytest.mark.parametrize("outcome", [1.01, 1e6, -1e6, 1e12])
def test_an_outcome_out_of_range_leaves_no_total(outcome: float) -> None:
    made = score(attempt("t", outcome=outcome), WHERE)
    assert (made.total, made.unscored) == (None, "out_of_range")
    assert made.components["outcome"].value == outcome


def test_a_trajectory_without_start_is_scored_as_missing_it() -> None:
    made = score(attempt("t", started=False, defects=[Defect.NO_START]), WHERE)
    assert (made.run, made.task_id, made.group_id, made.unscored) == ("", None, None, "no_start")


def test_the_record_id_does_not_depend_on_the_trajectorys_offset() -> None:
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


def test_scoring_that_ends_as_a_program_does_is_labelled_and_an_interruption_is_not() -> None:
    class Odd:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        @property
        def turn(self) -> int:
            raise self.error

    def scored(error: BaseException) -> tuple[Reward, BaseException | None]:
        spec = RewardSpec("odd", 1, (Term("one", lambda trajectory: 1.0, 1.0),), hints=lambda _: [Odd(error)])  # type: ignore[list-item]
        return score_or_label(attempt("t"), WHERE, rewards=Rewards({}, spec))

    leaves = SystemExit(0)
    made, error = scored(leaves)
    assert (made.total, made.unscored, error) == (None, "raised", leaves)
    with pytest.raises(KeyboardInterrupt):
        scored(KeyboardInterrupt())
