"""A record for which our own code raises becomes a dead letter or a label, with an alert; the partition continues."""

from typing import Any

import pytest

from headrace.schemas.bounds import MAX_TIME_MS
from headrace.schemas.envelope import TIME
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES
from headrace.schemas.wire import Message, decode
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.dead_letters.raised import raised
from headrace.streams.grouping import group_decision
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from headrace.streams.processors.group import raised_in
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rewards.outcome import OUTCOME
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring import score as scoring
from headrace.streams.scoring.feedback_join import Join
from tests.streams.attempts import attempt, rewarded, trajectory_message
from tests.streams.builders import T0, event, log, session, started, with_header
from tests.streams.judged_rewards import LIKED
from tests.streams.processors.at_work import AtWork

FAULT = RuntimeError("a fault of ours")


def payloads(outgoing: list[Outgoing]) -> list[Any]:
    return [decode(each.message.headers, each.message.value)[1] for each in outgoing]


def broken(*_: Any, **__: Any) -> Any:
    raise FAULT


def stored(message: Message, topic: str = TRAJECTORIES.name, **fields: Any) -> StoredRecord:
    known = {"partition": 1, "offset": 42, "timestamp": T0} | fields
    return StoredRecord(topic=topic, key=message.key, value=message.value, headers=message.headers, **known)


def test_a_record_that_is_set_aside_is_whole_in_the_letter_and_told_once() -> None:
    record = stored(trajectory_message(attempt("t")))
    dead_letter, alert = payloads(raised(record, FAULT, "/streams/score", "t"))
    assert isinstance(dead_letter, DeadLetter)
    assert isinstance(alert, Alert)
    assert (dead_letter.error, dead_letter.trajectory_id) == (DeadLetterError.RAISED, "t")
    assert "a fault of ours" in dead_letter.message
    assert (alert.kind, alert.details["offset"]) == ("record_raised", 42)
    assert "trajectories[1]@42" in alert.message
    again = raised(record, ValueError("another"), "/streams/score", "t")
    ids = [dict(each.message.headers)["ce_id"] for each in raised(record, FAULT, "/streams/score", "t")]
    assert ids == [dict(each.message.headers)["ce_id"] for each in again]


@pytest.mark.parametrize("timestamp", [-1, MAX_TIME_MS, 2**63 - 1])
def test_a_raised_record_with_any_timestamp_can_be_written(timestamp: int) -> None:
    for outgoing in raised(stored(trajectory_message(attempt("t")), timestamp=timestamp), FAULT, "/streams/score"):
        assert outgoing.timestamp_ms == 0


def test_a_trajectory_that_cannot_be_assembled_is_labelled_and_its_events_are_dead_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.streams.assembly.assemble.plainly_written", broken)
    assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
    for record in log(session("s1", "ask")):
        assembly.take(record)
    trajectory, *dead_letters, alert = payloads(assembly.pending)
    assert isinstance(trajectory, Trajectory)
    assert trajectory.unreadable == [0, 1, 2]
    assert Defect.BAD_EVENT in trajectory.defects
    assert [dead_letter.error for dead_letter in dead_letters] == [DeadLetterError.RAISED] * 3
    assert isinstance(alert, Alert)
    monkeypatch.undo()
    for record in log(session("s2", "ask"), first=3):
        assembly.take(record)
    assert payloads(assembly.pending)[-1].defects == []


@pytest.mark.parametrize("spec", [OUTCOME, LIKED], ids=["at once", "with feedback"])
def test_a_trajectory_whose_scoring_raises_is_labelled(monkeypatch: pytest.MonkeyPatch, spec: Any) -> None:
    monkeypatch.setattr(scoring, "score", broken)
    score = AtWork(Rewards({}, spec), partition=1)
    made = score.take(stored(trajectory_message(attempt("t"))))
    reward, alert = payloads(made + score.advance(T0 + 10**12))
    assert isinstance(reward, Reward)
    assert (reward.total, reward.unscored) == (None, "raised")
    assert isinstance(alert, Alert)


def test_a_record_that_raises_in_scores_intake_is_quarantined_and_the_next_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    score = AtWork(Rewards({}, LIKED), partition=1)
    score.take(stored(trajectory_message(attempt("before"))))
    with monkeypatch.context() as patch:
        patch.setattr(Join, "_keep", broken)
        made = score.take(stored(trajectory_message(attempt("t")), offset=43), feedback("before", offset=7))
    dead_letters = [each for each in payloads(made) if isinstance(each, DeadLetter)]
    assert [(dead_letter.topic, dead_letter.offset, dead_letter.error) for dead_letter in dead_letters] == [
        ("trajectories", 43, DeadLetterError.RAISED),
        ("feedback", 7, DeadLetterError.RAISED),
    ]
    assert score.partition.offsets == {"trajectories": 44, "feedback": 8}
    assert (len(score.join), score.join.open) == (1, 1)
    score.take(stored(trajectory_message(attempt("t")), offset=44))
    assert score.join.open == 2


@pytest.mark.parametrize("time", [b"9999-12-31T23:59:59.000-23:59", b"2200-01-01T00:00:00.000Z"])
def test_a_year_outside_the_date_range_does_not_end_score(time: bytes) -> None:
    score = AtWork(Rewards({}, OUTCOME), partition=1)
    message = trajectory_message(attempt("t"))
    made = score.take(
        with_header(stored(message), TIME, time),
        stored(message, offset=43, timestamp=2**63 - 1),
        feedback("t", timestamp=-1),
    )
    assert [dead_letter.error for dead_letter in payloads(made)] == [DeadLetterError.BAD_TIME] * 3


def test_an_event_of_the_year_9999_is_a_dead_letter_and_labels_its_trajectory() -> None:
    assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
    records = [event("s1", 0, started()), *session("s1", "ask")[1:]]
    records[1] = with_header(records[1], TIME, b"9999-12-31T23:59:59.000-23:59")
    for record in log(records):
        assembly.take(record)
    dead_letter, trajectory = payloads(assembly.pending)
    assert (dead_letter.error, trajectory.unreadable) == (DeadLetterError.BAD_TIME, [1])


def test_a_group_whose_decision_raises_is_rejected_with_an_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, changes = Groups(GroupLimits()), GroupChanges()
    with monkeypatch.context() as patch:
        patch.setattr(group_decision, "decide", broken)
        for name in ("a", "b"):
            groups.add(rewarded(name, group="g"), T0, changes)
    rejections = [decided.record for decided in changes.outputs]
    assert [each.reason for each in rejections if isinstance(each, Rejection)] == [Reason.RAISED] * 2
    (alert,) = payloads(raised_in(changes))
    assert isinstance(alert, Alert)
    for name in ("c", "d"):
        groups.add(rewarded(name, group="h"), T0, changes)
    assert groups.open == 0


def feedback(name: str, **fields: Any) -> StoredRecord:
    message = event(name, 0, FeedbackGiven(signal="accepted", value=1.0))
    return stored(Message(b"k", message.value or b"", list(message.headers)), FEEDBACK.name, **fields)
