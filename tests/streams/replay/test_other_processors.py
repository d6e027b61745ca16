"""Further processors of the topology run in a replay as they run live, and change nothing that it writes otherwise."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest

from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.reward import Reward
from headrace.schemas.side_topics import ReplayStage
from headrace.schemas.topics import (
    ALERTS,
    DEAD_LETTERS,
    FEEDBACK,
    OBSERVATIONS,
    REJECTED,
    REWARDS,
    STEPS,
    TRAINING,
    TRAJECTORIES,
    Topic,
)
from headrace.schemas.wire import decode, record_message
from headrace.streams.drive import drive
from headrace.streams.processors.score import ScoreOperator
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.replay.groups import RangeGroupOperator
from headrace.streams.replay.other_processors import CORE, further_processors
from headrace.streams.replay.placed import Placed
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Effects, Operator, Processor, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.topology import TOPOLOGY
from tests.streams.builders import T0, session
from tests.streams.replay.test_pipeline import HOUR, as_messages, groups, in_time, payloads, replayed, stored
from tests.streams.runtime.test_runtime import HISTOGRAM


class Noting(Operator):
    """Notes what it reads, and each hour of stream time that has passed since the first record."""

    def __init__(self, name: str, writes: Topic) -> None:
        self._name = name
        self._writes = writes
        self._effects = Effects()
        self._next_ms = 0

    def process(self, record: LogRecord) -> None:
        envelope, _ = decode(record.headers, record.value)
        self._next_ms = self._next_ms or record.timestamp + HOUR
        self._note(f"{record.topic}[{record.partition}]@{record.offset} {envelope.subject}", record.timestamp)
        self._effects.counts["noted"] += 1

    @property
    def waits(self) -> bool:
        return self._next_ms > 0

    def advance(self, now_ms: int, at_most: int) -> None:
        while self.waits and self._next_ms <= now_ms:
            self._note(f"hour {self._next_ms - T0}", self._next_ms)
            self._next_ms += HOUR

    def flush(self) -> Effects:
        effects, self._effects = self._effects, Effects()
        return effects

    def _note(self, text: str, time_ms: int) -> None:
        alert = Alert(run="", source=self._name, kind="note", message=text)
        message = record_message(
            alert, id=derived_id(self._name, text), key="", source="/t", time_ms=time_ms, subject=text
        )
        self._effects.outgoing.append(Outgoing(self._writes, message, time_ms))


def noting(name: str, reads: tuple[Topic, ...], writes: Topic) -> Processor[Rules]:
    def restore(rules: Rules, start: Start) -> tuple[Noting, list[object]]:
        return Noting(name, writes), []

    return Processor(name, reads, partial(restore), (writes,), "Notes.", restore)  # type: ignore[arg-type]


NOTES = replace(ALERTS, name="notes")
NOTES_OF_NOTES = replace(ALERTS, name="notes-of-notes")
NOTE = noting("note", (REWARDS, TRAINING, REJECTED), NOTES)
NOTE_AGAIN = noting("note-again", (NOTES,), NOTES_OF_NOTES)


def histories() -> list[StoredRecord]:
    """Groups within seconds of each other, and one group three hours later."""
    start = {"group_id": "late", "group_size": 2, "task_id": "t"}
    late = [
        session(f"late-{member}", "ask", outcome=float(member), time_ms=T0 + 3 * HOUR, start=start) for member in (0, 1)
    ]
    return in_time([*groups(9), *late])


def without(placed: Sequence[Placed], *topics: Topic) -> list[Placed]:
    return [each for each in placed if each.outgoing.topic not in topics]


def messages(records: Sequence[Record]) -> list[str]:
    return [each.message for each in records if isinstance(each, Alert)]


@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_they_write_what_they_write_in_drive_and_leave_the_rest_as_it_is(portion: int) -> None:
    records, further = histories(), (NOTE, NOTE_AGAIN)
    live = drive((*TOPOLOGY, *further), as_messages(records))
    placed, counts = replayed(ReplayStage.EVENTS, {0: records}, further=further, portion=portion, width=1)
    alone, alone_counts = replayed(ReplayStage.EVENTS, {0: records}, portion=portion, width=1)
    assert without(placed, NOTES, NOTES_OF_NOTES) == alone
    notes, again = messages(payloads(placed, NOTES)), messages(payloads(placed, NOTES_OF_NOTES))
    read = [text.partition(" ")[2] for text in notes if not text.startswith("hour")]
    assert sorted(read) == sorted(
        text.partition(" ")[2] for text in messages(live[NOTES.name]) if not text.startswith("hour")
    )
    hours = {text for text in notes if text.startswith("hour")}
    assert hours == {text for text in messages(live[NOTES.name]) if text.startswith("hour")} != set()
    assert [text.partition(" ")[2] for text in again if not text.startswith("hour")] == notes
    extra = {name: count for name, count in counts.items() if name not in alone_counts}
    assert extra == {
        "note_noted": len(read), "notes": len(notes), "note-again_noted": len(notes), "notes-of-notes": len(again),
    }  # fmt: skip
    assert {name: counts[name] for name in alone_counts} == alone_counts


def test_each_record_has_the_place_that_it_gets_in_its_side_topic() -> None:
    placed, _ = replayed(ReplayStage.EVENTS, {0: histories()}, further=(NOTE,))
    noted = {text.partition(" ")[0] for text in messages(payloads(placed, NOTES)) if not text.startswith("hour")}
    places = {
        f"{topic.name}[{number}]@{record.offset}"
        for topic in (REWARDS, TRAINING, REJECTED)
        for number, records in stored(placed, topic).items()
        for record in records
    }
    assert noted == places


def test_a_topic_that_the_replay_reads_is_processed_before_what_it_makes() -> None:
    first, _ = replayed(ReplayStage.EVENTS, {0: histories()})
    both = noting("both", (TRAJECTORIES, REWARDS), NOTES)
    placed, _ = replayed(ReplayStage.TRAJECTORIES, stored(first, TRAJECTORIES), further=(both,))
    read = [text.split() for text in messages(payloads(placed, NOTES)) if not text.startswith("hour")]
    assert [(topic.partition("[")[0], name) for topic, name in read] == [
        (topic, name)
        for (_, name) in [each for each in read if each[0].startswith("trajectories")]
        for topic in ("trajectories", "rewards")
    ]


def test_the_processor_of_the_runtimes_tests_writes_its_alerts() -> None:
    records = histories()
    live = messages(drive((*TOPOLOGY, HISTOGRAM), as_messages(records))[ALERTS.name])
    placed, counts = replayed(ReplayStage.EVENTS, {0: records}, further=(HISTOGRAM,))
    assert messages(payloads(placed, ALERTS))[-1] == live[-1]
    assert counts["histogram_counted"] == len([each for each in payloads(placed, REWARDS) if isinstance(each, Reward)])


def test_an_unreadable_record_becomes_a_dead_letter() -> None:
    bad = StoredRecord(REWARDS.name, 0, 0, T0, b"k", b"{", ())
    placed, counts = replayed(ReplayStage.REWARDS, {0: [bad]}, further=(HISTOGRAM,))
    alone, _ = replayed(ReplayStage.REWARDS, {0: [bad]})
    assert [each.outgoing.topic for each in placed] == [DEAD_LETTERS] * 2
    assert placed[1:] == alone
    assert counts["unreadable"] == 2


def test_what_runs_follows_from_the_topics_that_the_replay_has() -> None:
    hooked = replace(NOTE, name="hooked", hook=lambda rules, outside: None)  # type: ignore[arg-type, return-value]
    steps = noting("steps", (STEPS,), NOTES)
    feeding = noting("feeding", (TRAINING,), REWARDS)
    learnt = noting("learnt", (FEEDBACK,), NOTES)
    core = [processor for processor in TOPOLOGY if processor.name in CORE]
    topology = (*core, NOTE, NOTE_AGAIN, hooked, steps, feeding, learnt)
    found = further_processors(topology, ReplayStage.TRAJECTORIES.makes, Rules())
    assert [each.name for each in found.run] == ["note", "note-again"]
    assert found.makes == (NOTES, NOTES_OF_NOTES)
    assert found.left_out == {
        "hooked": "its hook needs services that a replay does not have",
        "steps": "the replay has no records of steps",
        "feeding": "it writes rewards, which the replay itself processes",
        "learnt": "the replay has no records of feedback",
    }
    with_feedback = further_processors(topology, (*ReplayStage.TRAJECTORIES.makes, FEEDBACK), Rules())
    assert "learnt" in {each.name for each in with_feedback.run}
    assert further_processors(topology, ReplayStage.REWARDS.makes, Rules()).left_out.keys() >= {"note", "note-again"}


@pytest.mark.parametrize("error", [ZeroDivisionError("an odd record"), SystemExit(0)])
def test_a_record_that_an_operator_raises_on_is_the_dead_letter_that_it_is_live(error: BaseException) -> None:
    class Failing(Noting):
        def process(self, record: LogRecord) -> None:
            if record.offset == 1:
                raise error
            super().process(record)

    failing = replace(NOTE, name="failing", reads=(REWARDS,), restore=lambda rules, start: (Failing("n", NOTES), []))
    first, _ = replayed(ReplayStage.EVENTS, {0: histories()})
    records = stored(first, REWARDS)[0][:3]
    runtime, partition = Runtime(failing.source), MemoryPartition()
    runtime.assign(0, Failing("n", NOTES), partition)
    run_to_end(runtime.process(records))
    live = partition.written()

    placed, counts = replayed(ReplayStage.REWARDS, {0: records}, further=(failing,))
    for topic, count in ((NOTES, 2), (DEAD_LETTERS, 1)):
        made = [each.outgoing for each in placed if each.outgoing.topic is topic]
        assert len(made) == count
        assert made == [each for each in live if each.topic is topic]
    assert counts["unreadable"] == 1


@pytest.mark.parametrize("operator", [RangeGroupOperator, ScoreOperator])
def test_a_fault_of_score_or_group_in_a_replay_is_a_dead_letter(operator: type[Operator]) -> None:
    first, _ = replayed(ReplayStage.EVENTS, {0: histories()})
    given = stored(first, TRAJECTORIES if operator is ScoreOperator else REWARDS)
    stage = ReplayStage.TRAJECTORIES if operator is ScoreOperator else ReplayStage.REWARDS
    process = operator.process

    def raises(self: Operator, record: LogRecord) -> None:
        if record is given[0][1]:
            raise ZeroDivisionError("an odd record")
        process(self, record)

    with patch.object(operator, "process", raises):
        placed, counts = replayed(stage, given)
    (letter,) = [each for each in payloads(placed, DEAD_LETTERS) if isinstance(each, DeadLetter)]
    assert (letter.error, letter.offset, counts["unreadable"]) == (DeadLetterError.RAISED, given[0][1].offset, 1)


def test_the_monitors_run_without_what_a_replay_has_not() -> None:
    """A replay has no steps, and feedback only if a reward uses it."""
    found = further_processors(TOPOLOGY, (TRAJECTORIES, *ReplayStage.TRAJECTORIES.makes), Rules())
    assert {"observe", "watch"} <= {processor.name for processor in found.run}
    monitors = tuple(processor for processor in TOPOLOGY if processor.name in ("observe", "watch"))
    records = in_time(groups(3))
    placed, _ = replayed(ReplayStage.EVENTS, {0: records}, further=monitors, width=1)
    assert payloads(placed, OBSERVATIONS) == drive(TOPOLOGY, as_messages(records))[OBSERVATIONS.name] != []
