"""``drive``: the whole topology in memory, with which users try their rewards."""

import json
from dataclasses import replace

import pytest

from headrace.schemas.envelope import Envelope, from_headers
from headrace.schemas.events import EndStatus, FeedbackGiven, TrajectoryEnded
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import TOPICS
from headrace.schemas.wire import Message, decode, encode
from headrace.streams.drive import drive
from headrace.streams.raw import StoredRecord
from headrace.streams.rewards.judge_question import Question
from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.spec import RewardSpec, judged
from headrace.streams.scoring.score import score
from headrace.streams.topology import TOPOLOGY, with_run
from tests.streams.builders import T0, session
from tests.streams.judged_rewards import HELPFUL, JUDGED, LIKED, WINDOW_MS

HOUR = 3_600_000
ENDED = TrajectoryEnded.TYPE.encode()
FREE = Rewards({}, RewardSpec("free", 1, (outcome,)))
"""A reward without bounds."""


def messages(*histories: list[StoredRecord]) -> list[Message]:
    records = [record for history in histories for record in history]
    return [Message(r.key or b"", r.value or b"", [(k, v or b"") for k, v in r.headers]) for r in records]


def group_of(first: float | None, second: float | None, group_id: str = "g") -> list[Message]:
    start = {"group_id": group_id}
    return messages(
        session(f"{group_id}-1", "ask", "tool", "answer", outcome=first, start=start),
        session(f"{group_id}-2", "ask", outcome=second, start=start),
    )


def of_type(records: list[Record], kind: type) -> list[Record]:
    return [record for record in records if isinstance(record, kind)]


def test_two_outcomes_that_differ_become_a_training_group() -> None:
    records = drive(TOPOLOGY, group_of(1.0, 0.0))
    assert set(records) == {topic.name for topic in TOPICS}
    assert [len(records[name]) for name in ("events", "trajectories", "rewards", "training")] == [9, 2, 2, 1]
    (group,) = records["training"]
    assert isinstance(group, TrainingGroup)
    assert [(member.trajectory_id, member.advantage) for member in group.members] == [("g-1", 0.5), ("g-2", -0.5)]
    for member in group.members:
        pointed_at = records["trajectories"][member.trajectory.offset]
        assert isinstance(pointed_at, Trajectory)
        assert pointed_at.trajectory_id == member.trajectory_id
    assert not records["rejected"]


def test_equal_outcomes_are_rejected_with_their_reason() -> None:
    rejected = drive(TOPOLOGY, group_of(1.0, 1.0))["rejected"]
    assert [entry.reason for entry in rejected if isinstance(entry, Rejection)] == [Reason.ALL_SUCCESS] * 2


def test_drive_accepts_envelope_and_fact_pairs() -> None:
    as_messages = group_of(1.0, 0.0)
    pairs = [decode(message.headers, message.value) for message in as_messages]
    assert drive(TOPOLOGY, pairs) == drive(TOPOLOGY, as_messages)


def test_a_users_reward_replaces_the_shipped_one() -> None:
    def brevity(trajectory: Trajectory, reference: Reference) -> Reward:
        usual = score(trajectory, reference)
        return usual.model_copy(update={"spec": "brevity@1", "total": 1.0 / len(trajectory.turns), "maximum": 1.0})

    records = drive(with_run(TOPOLOGY, "score", brevity), group_of(1.0, 1.0))
    assert [reward.total for reward in records["rewards"] if isinstance(reward, Reward)] == [0.5, 1.0]
    assert len(records["training"]) == 1


def test_advancing_time_closes_incomplete_trajectories() -> None:
    alone = messages(session("g-1", "ask", "tool")[:-1])
    assert not drive(TOPOLOGY, alone)["trajectories"]
    records = drive(TOPOLOGY, alone, until_ms=T0 + HOUR)
    (trajectory,) = records["trajectories"]
    assert isinstance(trajectory, Trajectory)
    assert trajectory.defects == [Defect.NO_END]

    half = drive(TOPOLOGY, group_of(1.0, 0.0)[:6], until_ms=T0 + HOUR)["rejected"]
    assert [entry.reason for entry in half if isinstance(entry, Rejection)] == [Reason.INCOMPLETE_GROUP]


def test_broken_events_are_dead_letters_and_the_rest_continues() -> None:
    events = group_of(1.0, 0.0)
    events.insert(1, Message(b"k", b"?", []))
    events[3] = Message(events[3].key, b"{", events[3].headers)
    records = drive(TOPOLOGY, events)
    dead_letters = [letter for letter in records["dead-letters"] if isinstance(letter, DeadLetter)]
    assert [(letter.offset, letter.error.value) for letter in dead_letters] == [(1, "bad_headers"), (3, "bad_json")]
    rejected = {entry.trajectory_id: entry.reason for entry in records["rejected"] if isinstance(entry, Rejection)}
    assert rejected["g-1"] == Reason.BAD_EVENT


def test_the_same_events_give_the_same_records() -> None:
    assert drive(TOPOLOGY, group_of(1.0, 0.25)) == drive(TOPOLOGY, group_of(1.0, 0.25))


def test_state_keeping_processors_run_as_they_are() -> None:
    with pytest.raises(ValueError, match="only score's function can be replaced"):
        drive(with_run(TOPOLOGY, "group", score), [])


def test_a_reward_function_that_returns_something_else_is_named() -> None:
    with pytest.raises(TypeError, match="must return a Reward, not float"):
        drive(with_run(TOPOLOGY, "score", lambda trajectory, reference: 1.0), group_of(1.0, 0.0))


def test_stream_time_is_the_events_time() -> None:
    (first, *_) = group_of(1.0, 0.0)
    assert from_headers(first.headers).time_ms == T0


def feedback(trajectory_id: str, value: float, time_ms: int) -> Message:
    given = FeedbackGiven(signal="accepted", value=value)
    envelope = Envelope(f"f-{trajectory_id}-{time_ms}", given.TYPE, "/test", time_ms, trajectory_id)
    return encode(given, key=trajectory_id, envelope=envelope)


def totals(records: dict[str, list[Record]]) -> list[tuple[str, int, float | None, str | None]]:
    return [
        (reward.trajectory_id, reward.revision, reward.total, reward.unscored)
        for reward in records["rewards"]
        if isinstance(reward, Reward)
    ]


def test_feedback_counts_within_its_window_and_makes_a_revision_after_it() -> None:
    events = [*group_of(1.0, 0.0), feedback("g-1", 1.0, T0 + 500), feedback("g-1", 2.0, T0 + WINDOW_MS + 5_000)]
    records = drive(TOPOLOGY, events, rewards=Rewards({}, LIKED), until_ms=T0 + HOUR)
    assert totals(records) == [("g-1", 0, 1.0, None), ("g-2", 0, 0.0, None), ("g-1", 1, 3.0, None)]
    assert len(records["feedback"]) == 2
    (group,) = records["training"]
    assert isinstance(group, TrainingGroup)
    assert {member.trajectory_id: member.reward for member in group.members} == {"g-1": 1.0, "g-2": 0.0}


def test_a_judge_is_a_function_of_the_question() -> None:
    asked = []

    def judge(question: Question) -> str:
        asked.append(question.rubric.name)
        return "5" if "task" in question.rubric.name else "nonsense"

    events = group_of(1.0, 0.0)[:6]
    readable = replace(JUDGED, terms=(judged("helpful", replace(HELPFUL, rubrics=HELPFUL.rubrics[:1]), weight=1.0),))
    assert totals(drive(TOPOLOGY, events, rewards=Rewards({}, readable), judge=judge)) == [("g-1", 0, 1.0, None)]
    assert asked == ["task"]
    assert totals(drive(TOPOLOGY, events, rewards=Rewards({}, JUDGED), judge=judge)) == [
        ("g-1", 0, None, "judge_unreadable")
    ]
    assert totals(drive(TOPOLOGY, events, rewards=Rewards({}, JUDGED))) == [("g-1", 0, None, "not_judged")]


def test_a_function_that_replaces_score_gets_no_feedback() -> None:
    def usual(trajectory: Trajectory, reference: Reference) -> Reward:
        return score(trajectory, reference)

    records = drive(with_run(TOPOLOGY, "score", usual), [*group_of(1.0, 0.0), feedback("g-1", 1.0, T0 + 500)])
    assert len(records["rewards"]) == 2


def test_feedback_that_cannot_be_read_is_a_dead_letter() -> None:
    broken = replace(feedback("g-1", 1.0, T0), value=b"{")
    dead_letters = drive(TOPOLOGY, [broken], rewards=Rewards({}, LIKED))["dead-letters"]
    assert [(letter.topic, letter.error.value) for letter in dead_letters if isinstance(letter, DeadLetter)] == [
        ("feedback", "bad_json")
    ]


def test_an_outcome_beyond_the_maximum_changes_no_advantage() -> None:
    start = {"group_id": "g", "group_size": 3}
    outcomes = {"a": 1.0, "b": 0.0, "c": 1e6}
    records = drive(TOPOLOGY, messages(*(session(name, "ask", outcome=o, start=start) for name, o in outcomes.items())))
    (group,) = of_type(records["training"], TrainingGroup)
    assert {each.trajectory_id: each.advantage for each in group.members} == {"a": 0.5, "b": -0.5}
    assert [each.reason for each in of_type(records["rejected"], Rejection)] == [Reason.UNSCORED]
    assert [each.unscored for each in of_type(records["rewards"], Reward)] == [None, None, "out_of_range"]


def test_members_of_other_tenants_and_runs_are_foreign() -> None:
    start = {"group_id": "g", "group_size": 2}
    histories = [
        session("own", "ask", outcome=1.0, start={**start, "tenant": "x"}),
        session("foreign", "ask", outcome=0.0, start={**start, "tenant": "y"}),
        session("other", "ask", outcome=0.0, start={**start, "tenant": "x", "run": "other"}),
        session("own-2", "ask", outcome=0.0, start={**start, "tenant": "x"}),
    ]
    records = drive(TOPOLOGY, messages(*histories))
    (group,) = of_type(records["training"], TrainingGroup)
    assert [each.trajectory_id for each in group.members] == ["own", "own-2"]
    reasons = {each.trajectory_id: each.reason for each in of_type(records["rejected"], Rejection)}
    assert reasons == dict.fromkeys(("foreign", "other"), Reason.FOREIGN_GROUP)


def test_an_attempt_that_a_restarted_sampler_replaced_is_rejected_and_its_group_complete() -> None:
    start = {"group_id": "g", "group_size": 2}
    outcomes = {"left": 0.0, "a": 0.0, "b": 1.0}
    made = messages(*(session(name, "ask", outcome=each, start=start) for name, each in outcomes.items()))
    cut_off = TrajectoryEnded(status=EndStatus.RESTARTED)
    pairs = [
        (envelope, cut_off if envelope.subject == "left" and isinstance(fact, TrajectoryEnded) else fact)
        for envelope, fact in (decode(each.headers, each.value) for each in made)
    ]
    records = drive(TOPOLOGY, pairs)
    (group,) = of_type(records["training"], TrainingGroup)
    assert [each.trajectory_id for each in group.members] == ["a", "b"]
    rejected = of_type(records["rejected"], Rejection)
    assert [(each.trajectory_id, each.reason) for each in rejected] == [("left", Reason.RESTARTED)]


@pytest.mark.parametrize("outcomes", [(1e308, 1e308), (1e12, -1e12), (1e12, 1e12 - 1)])
def test_every_trajectory_has_a_fate_for_any_outcomes(outcomes: tuple[float, float]) -> None:
    first, second = ({"outcome": outcome, "answer": "done"} for outcome in outcomes)
    made = group_of(0.25, 0.5)
    wrong = [json.dumps(fields).encode() for fields in (first, second)]
    ends = [number for number, message in enumerate(made) if dict(message.headers)["ce_type"] == ENDED]
    for number, value in zip(ends, wrong, strict=True):
        made[number] = replace(made[number], value=value)
    records = drive(TOPOLOGY, made, until_ms=T0 + HOUR, rewards=FREE)
    fates = [each.trajectory_id for each in of_type(records["rejected"], Rejection)]
    fates += [each.trajectory_id for group in of_type(records["training"], TrainingGroup) for each in group.members]
    assert sorted(fates) == ["g-1", "g-2"]
