"""Redriven records: folded again, broken events are repaired and everything else is unchanged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from headrace.schemas.envelope import ID, SEQUENCE, SUBJECT, TYPE
from headrace.schemas.events import ToolCalled
from headrace.schemas.headers import REDRIVE, REDRIVE_OF
from headrace.schemas.records.dead_letter import DeadLetterError, Redriven
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.schemas.wire import Message, UnreadableRecord, decode
from headrace.streams.assembly.assemble import outputs_of
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.dead_letters.build import dead_letter_message
from headrace.streams.dead_letters.queue import DeadLetterEntry, DeadLetterQueue
from headrace.streams.dead_letters.redrive import (
    Closed,
    Plan,
    Redrive,
    Refusal,
    done_message,
    redrive_alone,
    redrive_trajectory,
    taken_already,
)
from headrace.streams.dead_letters.repair import content_of, edited, repair_message
from headrace.streams.raw import StoredRecord
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import rewarded
from tests.streams.builders import T0, event, session, ticks, with_header, without

HOUR = 3_600_000


GOOD = session("t", "ask", "tool", "answer")
CUT = replace(GOOD[2], value=(GOOD[2].value or b"")[:-9])


def entries_of(records: Iterable[StoredRecord]) -> list[DeadLetterEntry]:
    queue = DeadLetterQueue()
    for record in records:
        queue.add(record)
    return queue.entries


@dataclass
class Stream:
    """`events` of one partition, and the assembler's output for them."""

    events: list[StoredRecord] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    dead_letters: list[StoredRecord] = field(default_factory=list)
    fold: PartitionFold = field(default_factory=lambda: PartitionFold(FoldLimits()))

    def put(self, *records: StoredRecord) -> "Stream":
        for record in records:
            placed = replace(record, offset=len(self.events))
            self.events.append(placed)
            for outcome in self.fold.arrive(placed):
                for outgoing in outputs_of(outcome):
                    self.take(outgoing.topic.name, outgoing.message)
        return self

    def take(self, topic: str, message: Message) -> None:
        if topic == TRAJECTORIES.name:
            _, trajectory = decode(message.headers, message.value)
            assert isinstance(trajectory, Trajectory)
            self.trajectories.append(trajectory)
        else:
            offset = len(self.dead_letters)
            self.dead_letters.append(
                StoredRecord(DEAD_LETTERS.name, 0, offset, T0, message.key, message.value, message.headers)
            )

    @property
    def entries(self) -> list[DeadLetterEntry]:
        return entries_of(self.dead_letters)

    def repair(self, number: int, *, value: bytes | None = None, headers: Sequence[tuple[str, str]] = ()) -> None:
        entry = self.entries[number]
        content = edited(entry.content, value=value, headers=headers)
        self.take(DEAD_LETTERS.name, repair_message(entry.dead_letter, content, T0))

    def plan(self, *numbers: int, trajectory_id: str = "t") -> list[Plan]:
        """As the shell does, for entries of a closed trajectory."""
        (closed,) = [each for each in self.trajectories if each.trajectory_id == trajectory_id]
        siblings = [entry for entry in self.entries if entry.content.subject == trajectory_id]
        records = [
            each
            for each in self.events[closed.first.offset : closed.last.offset + 1]
            if dict(each.headers).get(SUBJECT) == trajectory_id.encode()
        ]
        selected = [self.entries[number] for number in numbers]
        return redrive_trajectory(trajectory_id, selected, siblings, Closed.of(closed), records)

    def send(self, redrive: Redrive, time_ms: int = T0 + HOUR) -> None:
        for record in redrive.records:
            content = record.content
            self.put(StoredRecord(record.topic.name, 0, 0, time_ms, content.key, content.value, content.headers))
        for done in redrive.done:
            self.take(DEAD_LETTERS.name, done_message(done, T0))


def only(plans: Sequence[Plan]) -> Redrive:
    (plan,) = plans
    assert isinstance(plan, Redrive), plan
    return plan


def refused(plans: Sequence[Plan]) -> str:
    (plan,) = plans
    assert isinstance(plan, Refusal)
    return plan.why


def essence(trajectory: Trajectory) -> dict[str, object]:
    """All fields except offsets and IDs."""
    return trajectory.model_dump(exclude={"trajectory_id", "first", "last", "closed_offset", "start_id"})


class TestOfAClosedTrajectory:
    def test_all_events_are_sent_under_a_new_id_with_the_repaired_one_in_its_place(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        assert stream.trajectories[0].defects == [Defect.BAD_EVENT]
        stream.repair(0, value=GOOD[2].value)
        redrive = only(stream.plan(0))
        stream.send(redrive)
        old, new = stream.trajectories
        assert new.trajectory_id == redrive.done[0].trajectory_id != old.trajectory_id
        assert essence(new) == essence(Stream().put(*GOOD).trajectories[0])
        assert len(stream.entries) == 1

    def test_redriven_events_name_their_originals(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        stream.repair(0, value=GOOD[2].value)
        records = [record.content for record in only(stream.plan(0)).records]
        assert [content.header(REDRIVE_OF) for content in records] == [b"t"] * len(GOOD)
        assert [content.header(REDRIVE) for content in records] == [None, None, b"dead-letters:0:0", None, None, None]
        assert [content.header(SEQUENCE) for content in records] == [b"%d" % number for number in range(len(GOOD))]
        assert len({content.header(ID) for content in records} | {dict(r.headers)[ID] for r in GOOD}) == 2 * len(GOOD)
        assert {content.key for content in records} == {content.header(SUBJECT) for content in records}

    def test_the_same_repair_gives_the_same_records_and_another_gives_others(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        stream.repair(0, value=GOOD[2].value)
        first = only(stream.plan(0))
        assert only(stream.plan(0)) == first
        stream.send(first)
        assert refused(stream.plan(0)) == "the same content was sent before"
        stream.put(*stream.events[-len(first.records) :])
        assert len(stream.trajectories) == 2
        stream.repair(0, value=b'{"call_id": "c1", "tool": "other"}')
        assert only(stream.plan(0)).done[0].trajectory_id != first.done[0].trajectory_id

    def test_an_unrepaired_letter_is_refused(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        assert refused(stream.plan(0)).startswith("bad_json: headrace.tool.called.v1")

    def test_two_broken_events_must_both_be_repaired_and_go_together(self) -> None:
        other = replace(GOOD[4], value=b"[]")
        stream = Stream().put(*GOOD[:2], CUT, GOOD[3], other, GOOD[5])
        stream.repair(0, value=GOOD[2].value)
        assert refused(stream.plan(0)) == "0:1 of its trajectory cannot be read either: repair that first"
        stream.repair(1, value=GOOD[4].value)
        redrive = only(stream.plan(0))
        assert [entry.name for entry in redrive.entries] == ["0:0", "0:1"]
        stream.send(redrive)
        assert stream.trajectories[1].defects == []
        assert [len(entry.redriven) for entry in stream.entries] == [1, 1]

    def test_a_late_event_comes_in_its_place_without_a_repair(self) -> None:
        stream = Stream().put(*GOOD[:2], *GOOD[3:], *ticks(T0, T0 + HOUR), GOOD[2])
        assert stream.trajectories[0].missing == [2]
        assert stream.entries[0].dead_letter.error is DeadLetterError.LATE
        stream.send(only(stream.plan(0)))
        assert stream.trajectories[1].defects == []

    def test_an_end_that_was_late_ends_it(self) -> None:
        stream = Stream().put(*GOOD[:-1], *ticks(T0, T0 + HOUR), GOOD[-1])
        assert stream.trajectories[0].status is None
        stream.send(only(stream.plan(0)))
        assert essence(stream.trajectories[1]) == essence(Stream().put(*GOOD).trajectories[0])

    def test_events_that_never_came_are_still_missing(self) -> None:
        stream = Stream().put(GOOD[0], CUT, *GOOD[3:], *ticks(T0, T0 + HOUR))
        stream.repair(0, value=GOOD[2].value)
        redrive = only(stream.plan(0))
        assert redrive.still_missing == (1,)
        stream.send(redrive)
        stream.put(*ticks(T0 + HOUR, T0 + 3 * HOUR))
        assert stream.trajectories[1].missing == [1]
        assert Defect.BAD_EVENT not in stream.trajectories[1].defects

    def test_an_event_beyond_the_end_is_not_sent(self) -> None:
        stream = Stream().put(*GOOD, event("t", 9, ToolCalled(call_id="x", tool="late")))
        assert refused(stream.plan(0)) == "it is event 9, and its trajectory ends with event 5"

    def test_an_event_whose_sequence_number_is_filled_by_a_readable_one_is_refused(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], replace(GOOD[2], value=None), *GOOD[2:])
        assert stream.trajectories[0].defects == []
        stream.repair(0, value=GOOD[2].value)
        assert refused(stream.plan(0)) == "its trajectory already has a readable event 2"

    def test_events_expired_from_the_log_are_named(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        stream.repair(0, value=GOOD[2].value)
        closed = Closed.of(stream.trajectories[0])
        plans = redrive_trajectory("t", stream.entries, stream.entries, closed, stream.events[2:])
        assert refused(plans) == "events 0, 1 of its trajectory are no longer in the log"

    def test_a_letter_without_a_number_finds_its_place_by_a_repaired_header(self) -> None:
        stream = Stream().put(*GOOD[:2], without(GOOD[2], SEQUENCE), *GOOD[3:], *ticks(T0, T0 + HOUR))
        stream.repair(0, headers=[(SEQUENCE, "2")])
        stream.send(only(stream.plan(0)))
        assert stream.trajectories[1].defects == []

    def test_of_two_letters_for_one_place_the_repaired_one_takes_it(self) -> None:
        unknown = with_header(GOOD[2], TYPE, b"headrace.tool.dreamt.v1")
        stream = Stream().put(*GOOD[:2], unknown, replace(GOOD[2], value=None), *GOOD[3:])
        assert len(stream.entries) == 1  # the second is a duplicate of an event that is a dead letter already
        stream.repair(0, headers=[(TYPE, ToolCalled.TYPE)])
        stream.send(only(stream.plan(0)))
        assert stream.trajectories[1].defects == []


class TestAlone:
    def test_an_event_of_an_open_trajectory_keeps_its_sequence_number(self) -> None:
        stream = Stream().put(*GOOD[:2], replace(GOOD[2], value=None), *GOOD[3:5])
        stream.repair(0, value=GOOD[2].value)
        redrive = only([redrive_alone(stream.entries[0])])
        (record,) = redrive.records
        assert (record.topic, record.partition, record.timestamp_ms) == (EVENTS, 0, None)
        assert record.content.header(REDRIVE) == b"dead-letters:0:0"
        stream.send(redrive, T0 + 45)
        stream.put(GOOD[5])
        (trajectory,) = stream.trajectories
        assert trajectory.defects == []
        assert refused([redrive_alone(stream.entries[0])]) == "the same content was sent before"
        assert refused(stream.plan(0)) == "its trajectory already has a readable event 2"

    def test_an_event_without_a_trajectory_is_sent_to_its_repaired_trajectory(self) -> None:
        stream = Stream().put(without(GOOD[0], SUBJECT))
        assert stream.entries[0].dead_letter.trajectory_id is None
        stream.repair(0, headers=[(SUBJECT, "t")])
        (record,) = only([redrive_alone(stream.entries[0])]).records
        assert (record.partition, record.content.key) == (None, b"t")

    def test_a_derived_record_is_sent_unchanged_with_its_timestamp(self) -> None:
        message = reward_message(rewarded("t"))
        original = StoredRecord("rewards", 3, 7, T0, message.key, message.value, message.headers)
        entry = entry_for(original, DeadLetterError.INVALID)
        (record,) = only([redrive_alone(entry)]).records
        assert (record.topic.name, record.partition, record.timestamp_ms) == ("rewards", 3, T0)
        assert (record.content.key, record.content.value) == (message.key, message.value)
        assert record.content.headers == (*message.headers, (REDRIVE, b"dead-letters:0:0"))

    def test_a_record_that_the_current_code_cannot_read_is_refused(self) -> None:
        original = StoredRecord("rewards", 3, 7, T0, b"g", b"{", GOOD[0].headers)
        assert refused([redrive_alone(entry_for(original, DeadLetterError.BAD_JSON))]).endswith("repair it first")

    def test_a_record_of_a_topic_that_is_not_ours_is_refused(self) -> None:
        original = StoredRecord("elsewhere", 3, 7, T0, b"g", b"{}", GOOD[0].headers)
        assert "no topic 'elsewhere'" in refused([redrive_alone(entry_for(original, DeadLetterError.INVALID))])

    def test_a_record_that_only_clickhouse_could_not_store_was_taken_and_is_not_sent_again(self) -> None:
        original = replace(GOOD[0], topic=EVENTS.name)
        refusal = taken_already(entry_for(original, DeadLetterError.UNSTORABLE))
        assert refusal is not None
        assert "would count twice" in refusal.why
        assert taken_already(entry_for(original, DeadLetterError.INVALID)) is None


class TestTheBox:
    def test_a_letter_written_twice_is_one_letter_with_two_places(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        (entry,) = entries_of([*stream.dead_letters, replace(stream.dead_letters[0], offset=8)])
        assert [(place.partition, place.offset) for place in entry.places] == [(0, 0), (0, 8)]
        assert entry.name == "0:0"

    def test_the_latest_repair_counts(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        stream.repair(0, value=b"{}")
        stream.repair(0, value=GOOD[2].value)
        (entry,) = stream.entries
        assert entry.content.value == GOOD[2].value
        assert content_of(entry.dead_letter).value == CUT.value

    def test_letters_that_nobody_asked_for_are_not_held_nor_what_was_done_about_them(self) -> None:
        stream = Stream().put(GOOD[0], GOOD[1], CUT, *GOOD[3:])
        stream.repair(0, value=GOOD[2].value)
        queue = DeadLetterQueue(lambda dead, place: dead.error is DeadLetterError.LATE)
        for record in stream.dead_letters:
            queue.add(record)
        assert (queue.entries, queue.unreadable) == ([], 0)

    def test_a_damaged_record_of_the_topic_itself_is_counted(self) -> None:
        queue = DeadLetterQueue()
        queue.add(replace(GOOD[0], topic=DEAD_LETTERS.name))
        queue.add(replace(GOOD[0], topic=DEAD_LETTERS.name, value=b"{"))
        assert (queue.entries, queue.unreadable) == ([], 2)


def entry_for(original: StoredRecord, error: DeadLetterError) -> DeadLetterEntry:
    message = dead_letter_message(original, UnreadableRecord(error, "no"))
    (entry,) = entries_of([StoredRecord(DEAD_LETTERS.name, 0, 0, T0, message.key, message.value, message.headers)])
    return entry


@pytest.mark.parametrize("trajectory_id", ["t", None])
def test_the_redrive_record_is_idempotent(trajectory_id: str | None) -> None:
    done = Redriven(topic="events", partition=0, offset=2, sha256="s", trajectory_id=trajectory_id)
    first, second = done_message(done, 5), done_message(done, 9)
    assert decode(first.headers, first.value)[1] == done
    assert dict(first.headers)[ID] == dict(second.headers)[ID]
