"""Score's handling of an incoming record."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven, ToolErrorClass, ToolStatus
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import ToolUse, Trajectory, Turn
from headrace.schemas.topics import FEEDBACK, REWARDS, TRAJECTORIES
from headrace.schemas.wire import Message, UnreadableRecord, encode
from headrace.streams.raw import StoredRecord
from headrace.streams.rewards.registry import OF_OUTCOME, OURS, Rewards
from headrace.streams.rewards.spec import Feedback, RewardSpec, Term
from headrace.streams.scoring.feedback_join import TRAJECTORY_GONE, Join, JoinChanges, JoinLimits, TrajectoryArrival
from headrace.streams.scoring.score import REWARDS_OF_AGENTS, reward_message, score_or_label, unscored
from headrace.streams.scoring.score_intake import (
    Scored,
    needs_join,
    read_trajectory,
    take_feedback,
    take_trajectory,
    uses_feedback,
)
from headrace.streams.scoring.trajectory_summary import TrajectorySummary
from headrace.streams.typed_record import typed
from tests.streams.attempts import START_MS, attempt, trajectory_message
from tests.streams.judged_rewards import JUDGED, LIKED, WINDOW_MS
from tests.streams.native.built import needs_speedups
from tests.streams.test_structs import anything, paths, put

ATTEMPT = attempt(
    "t",
    agent="search",
    task={"target_ids": ["d1", "d2"], "question": "?"},
    answer="42 [d1]",
    turns=[
        Turn(
            sampled_tokens=2,
            tools=[
                ToolUse(
                    call_id="c1",
                    tool="search",
                    arguments={"query": "q"},
                    status=ToolStatus.OK,
                    result={"ids": ["d1", "d3"], "documents": [{"id": "d1"}]},
                    latency_s=0.5,
                ),
                ToolUse(call_id="c2", tool="read", status=ToolStatus.ERROR, error_class=ToolErrorClass.TIMEOUT),
            ],
            pruned_ids=["d3"],
        )
    ],
)
MESSAGE = trajectory_message(ATTEMPT)
PAYLOAD = json.loads(MESSAGE.value)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record(message: Message, topic: str = TRAJECTORIES.name, **fields: Any) -> StoredRecord:
    headers = [*message.headers, ("traceparent", TRACE.encode())]
    known = {"value": message.value, "timestamp": START_MS + 5, "partition": 1, "offset": 42} | fields
    return StoredRecord(topic=topic, key=message.key, headers=headers, **known)


def feedback_message(trajectory_id: str, value: float = 1.0, **fields: Any) -> Message:
    given = FeedbackGiven(signal="accepted", value=value, **fields)
    return encode(given, key=trajectory_id, envelope=Envelope("f1", given.TYPE, "/test", START_MS, trajectory_id))


def test_a_trajectory_without_a_window_is_scored_immediately_and_continues_its_trace() -> None:
    taken = take_trajectory(record(trajectory_message(attempt("t"))), REWARDS_OF_AGENTS)
    assert isinstance(taken, Scored)
    (outgoing,) = taken.outgoing
    assert (outgoing.topic, outgoing.timestamp_ms) == (REWARDS, START_MS + 5)
    trace = dict(outgoing.message.headers)["traceparent"].decode()
    assert trace.split("-")[1] == TRACE.split("-")[1]
    assert trace != TRACE


def test_a_trajectory_whose_reward_takes_feedback_goes_to_the_join() -> None:
    taken = take_trajectory(record(trajectory_message(attempt("t"))), Rewards({}, LIKED))
    assert not isinstance(taken, Scored)
    arrival, trajectory = taken
    blank = unscored(attempt("t"), Reference(partition=1, offset=42), TRAJECTORY_GONE, rewards=Rewards({}, LIKED))
    assert arrival == TrajectoryArrival("t", 42, START_MS + 5, WINDOW_MS, True, TRACE, blank)
    assert (blank.spec, blank.total, blank.group_id) == ("liked@1", None, "g")
    assert trajectory.trajectory_id == "t"


def test_feedback_is_about_the_events_subject_at_the_time_of_its_record() -> None:
    subject, feedback = take_feedback(record(feedback_message("t", 0.5), FEEDBACK.name))
    assert subject == "t"
    assert feedback == Feedback("f1", "accepted", 0.5, START_MS + 5, Reference(partition=1, offset=42))


@pytest.mark.parametrize(("value", "error"), [(b"{", DeadLetterError.BAD_JSON), (None, DeadLetterError.NULL_VALUE)])
def test_an_unreadable_record_is_named(value: bytes | None, error: DeadLetterError) -> None:
    with pytest.raises(UnreadableRecord) as raised:
        take_trajectory(record(trajectory_message(attempt("t")), value=value), REWARDS_OF_AGENTS)
    assert raised.value.error is error


def test_a_record_of_another_topics_type_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord, match="does not belong in trajectories"):
        take_trajectory(record(feedback_message("t")), REWARDS_OF_AGENTS)
    with pytest.raises(UnreadableRecord, match="does not belong in feedback"):
        take_feedback(record(trajectory_message(attempt("t")), FEEDBACK.name))


def test_the_shipped_rewards_of_agents_need_no_join_and_no_feedback() -> None:
    assert not any(needs_join(spec) for spec in REWARDS_OF_AGENTS.specs)
    assert not uses_feedback(REWARDS_OF_AGENTS)
    assert needs_join(JUDGED)
    assert uses_feedback(Rewards({"a": LIKED}, REWARDS_OF_AGENTS.default))


@pytest.mark.parametrize("agents_ms", [1000, START_MS - 86_400_000, START_MS + 86_400_000])
def test_a_window_starts_by_the_brokers_clock(agents_ms: int) -> None:
    rewards = Rewards({}, LIKED)
    taken = take_trajectory(record(trajectory_message(attempt("t", ended_ms=agents_ms))), rewards)
    assert not isinstance(taken, Scored)
    join, changes = Join(JoinLimits()), JoinChanges()
    join.add_trajectory(taken[0], changes)
    in_time, late = START_MS + 5 + WINDOW_MS, START_MS + 6 + WINDOW_MS
    for offset, time_ms in enumerate((in_time, late)):
        message = feedback_message("t")
        named, given = take_feedback(record(message, FEEDBACK.name, timestamp=time_ms, offset=offset))
        join.add_feedback(named, replace(given, id=str(offset)), changes)
    join.pass_time(late + 1, changes)
    assert [len(due.feedback) for due in changes.due] == [1, 2]


@pytest.mark.parametrize("label", OURS)
@given(path=st.sampled_from(sorted(paths(PAYLOAD), key=str)), value=anything | st.none())
def test_a_struct_is_scored_as_the_model_is(label: str, path: Any, value: object) -> None:
    rewards = Rewards({}, OURS[label])
    arrived = record(MESSAGE, value=json.dumps(put(PAYLOAD, path, value)).encode())

    def by_model() -> tuple[Trajectory, str | None]:
        envelope, trajectory = typed(arrived, Trajectory)
        return trajectory, envelope.traceparent

    expected = scored(by_model, rewards)
    assert scored(lambda: read_trajectory(arrived, rewards), rewards) == expected
    if isinstance(expected[0], Reward) and not needs_join(OURS[label]):
        taken = take_trajectory(arrived, rewards)
        assert isinstance(taken, Scored)
        assert taken.outgoing[0].message == reward_message(expected[0], origin=expected[1])


@needs_speedups
@pytest.mark.parametrize("label", sorted(OF_OUTCOME))
@given(path=st.sampled_from(sorted(paths(PAYLOAD), key=str)), value=anything | st.none())
def test_a_reward_of_the_outcome_is_the_same_without_turns_and_tokens(label: str, path: Any, value: object) -> None:
    text = json.dumps(put(PAYLOAD, path, value), separators=(",", ":"), ensure_ascii=False)
    arrived = record(MESSAGE, value=text.encode(errors="surrogatepass"))
    rewards = Rewards({}, OURS[label])

    def by_model() -> tuple[Trajectory, str | None]:
        envelope, trajectory = typed(arrived, Trajectory)
        return trajectory, envelope.traceparent

    expected = scored(by_model, rewards)
    assert scored(lambda: read_trajectory(arrived, rewards), rewards) == expected
    if isinstance(expected[0], Reward):
        taken = take_trajectory(arrived, rewards)
        assert isinstance(taken, Scored)
        assert taken.outgoing[0].message == reward_message(expected[0], origin=expected[1])


@needs_speedups
def test_only_rewards_of_the_outcome_are_given_a_summary() -> None:
    message = trajectory_message(attempt("t", agent="shop"))
    for spec in OURS.values():
        read = read_trajectory(record(message), Rewards({"shop": spec}, OURS["search@1"])).payload
        assert isinstance(read, TrajectorySummary) == (spec.label in OF_OUTCOME)


@needs_speedups
def test_an_agent_that_seems_to_be_another_gets_its_own_reward() -> None:
    one = attempt("t", agent="shop", task={})
    masked = trajectory_message(one).value.replace(b'"masked":{}', b'"masked":{"agent":1}')
    misleading = [masked, b'{"x":{"agent":"other"},' + trajectory_message(one).value[1:]]
    for ours, theirs in ((OURS["outcome@1"], OURS["search@1"]), (OURS["search@1"], OURS["outcome@1"])):
        rewards = Rewards({"shop": ours, "other": theirs}, theirs)
        for value in misleading:
            taken = take_trajectory(record(trajectory_message(one), value=value), rewards)
            assert isinstance(taken, Scored)
            assert taken.reward.spec == ours.label


def test_another_spec_with_the_label_of_ours_is_given_the_model() -> None:
    theirs = RewardSpec("outcome", 1, (Term("turns", lambda trajectory: float(len(trajectory.turns)), 1.0),))
    message = trajectory_message(attempt("t"))
    assert isinstance(read_trajectory(record(message), Rewards({}, theirs)).payload, Trajectory)


def scored(read: Callable[[], tuple[Trajectory, str | None]], rewards: Rewards) -> tuple[object, str | None]:
    """Reward and trace of the trajectory that is read; error and message where it is unreadable."""
    try:
        trajectory, traceparent = read()
    except UnreadableRecord as error:
        return error.error, str(error)
    return score_or_label(trajectory, Reference(partition=1, offset=42), rewards=rewards)[0], traceparent


def test_what_is_plainly_right_is_given_to_our_components_as_a_struct_and_to_others_as_the_model() -> None:
    theirs = Rewards({}, RewardSpec("mine", 1, (Term("always", lambda trajectory: 1.0, 1.0),)))
    ours = Rewards({}, OURS["outcome@1"])
    assert not isinstance(read_trajectory(record(MESSAGE), ours).payload, Trajectory)
    assert isinstance(read_trajectory(record(MESSAGE), theirs).payload, Trajectory)


def test_json_that_is_nested_too_deeply_for_the_model_is_unreadable_for_the_struct_too() -> None:
    deep = put(PAYLOAD, ("answer",), None)
    text = json.dumps(deep).replace('"answer": null', '"answer": ' + "[" * 400 + "]" * 400)
    with pytest.raises(UnreadableRecord):
        take_trajectory(record(MESSAGE, value=text.encode()), REWARDS_OF_AGENTS)
