"""A trajectory from rows of `events` is the one that the assembler wrote."""

import pytest

from headrace.deploy.transcript.refolded import NoteKind, StoredEvent, refolded
from headrace.schemas.events import ContextPruned, ContextSummarized, SubagentStarted
from headrace.schemas.model import Record
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY
from tests.deploy.dashboard.hacked_run import Attempt, attempts
from tests.streams.builders import called, facts, started


def stored(records: list[Record]) -> list[StoredEvent]:
    return [
        StoredEvent(each.TYPE, number, 1000 + number, (0, number), each.model_dump_json().encode())
        for number, each in enumerate(records)
    ]


ATTEMPTS = {one.name: one for one in attempts()}


@pytest.mark.parametrize("name", ["v1-tickets-1-0", "v0-shoes-0-1", "parent"])
def test_rows_fold_to_the_trajectory_that_was_assembled(name: str) -> None:
    one: Attempt = ATTEMPTS[name]
    (assembled,) = drive(TOPOLOGY, one.messages())["trajectories"]
    assert isinstance(assembled, Trajectory)
    events = [
        StoredEvent(fact.TYPE, number, one.at_ms + number, (0, number), fact.model_dump_json().encode())
        for number, fact in enumerate([one.start, *one.facts])
    ]
    found = refolded(name, events)
    assert found is not None
    only_log = {"closed_offset", "start_id"}
    assert found.trajectory.model_dump(exclude=only_log) == assembled.model_dump(exclude=only_log)
    assert not found.is_open


def test_an_attempt_that_runs_is_shown_as_far_as_it_is_known() -> None:
    found = refolded("t", stored(facts("ask", "tool", "answer")[:-1]))
    assert found is not None
    assert found.is_open
    assert [turn.sampled_tokens for turn in found.trajectory.turns] == [3, 3]
    assert refolded("t", []) is None


def test_an_event_that_cannot_be_read_is_a_label() -> None:
    events = stored(facts("ask"))
    broken = [events[0], StoredEvent(events[1].type, 1, 1, (0, 1), b'{"model": 7}'), *events[2:]]
    found = refolded("t", broken)
    assert found is not None
    assert Defect.BAD_EVENT in found.trajectory.defects
    assert found.trajectory.unreadable == [1]


def test_notes_stand_in_the_turn_in_which_they_happened() -> None:
    records: list[Record] = [
        started(),
        ContextPruned(pruned_ids=["a", "b"], tokens_before=9, tokens_after=3),
        called([1], [2]),
        SubagentStarted(name="helper", sub_trajectory_id="t-2"),
        called([1], [2]),
        ContextSummarized(summary="So far so good.", tokens_before=9, tokens_after=3),
    ]
    found = refolded("t", stored(records))
    assert found is not None
    assert [(note.turn, note.kind) for note in found.notes] == [
        (0, NoteKind.PRUNE),
        (1, NoteKind.SUBAGENT),
        (2, NoteKind.SUMMARY),
    ]
    assert len(found.trajectory.turns) == 3
    assert found.trajectory.turns[0].pruned_ids == ["a", "b"]
    assert found.notes[1].trajectory_id == "t-2"
    assert found.notes[2].text == "9 → 3 tokens\nSo far so good."
