"""One edit of many dead letters: what it repairs, and what it leaves alone."""

import json
from dataclasses import replace

import pytest

from headrace.schemas.envelope import ID, SEQUENCE, TYPE
from headrace.schemas.events import ToolCalled
from headrace.schemas.records.dead_letter import DeadLetterError, Repaired
from headrace.schemas.records.reference import Reference
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.dead_letters.build import dead_letter_of
from headrace.streams.dead_letters.queue import DeadLetterEntry
from headrace.streams.dead_letters.repair_plan import Edit, NoRepair, Repair, plan_repair, repair_messages
from headrace.streams.raw import StoredRecord
from tests.streams.builders import event

CALL = event("t", 3, ToolCalled(call_id="c", tool="search", arguments={"query": "ada"}), offset=9)
WITHOUT_TOOL = replace(CALL, value=b'{"call_id": "c"}')
SET_TOOL = Edit(fields=(("tool", "read"),))


def entry(record: StoredRecord, offset: int = 1) -> DeadLetterEntry:
    dead = dead_letter_of(record, UnreadableRecord(DeadLetterError.INVALID, "no tool"), "t")
    return DeadLetterEntry((Reference(partition=0, offset=offset),), dead)


def test_an_edit_that_makes_a_record_readable_is_a_repair() -> None:
    plan = plan_repair(entry(WITHOUT_TOOL), SET_TOOL, only_unreadable=True)
    assert isinstance(plan, Repair)
    assert json.loads(plan.content.value or b"") == {"call_id": "c", "tool": "read"}
    assert (plan.envelope.subject, plan.envelope.sequence) == ("t", 3)


def test_each_value_is_made_of_the_old_one() -> None:
    edit = Edit(through=lambda value: value.replace(b"{", b'{"tool": "read", '), fields=(("call_id", "d"),))
    plan = plan_repair(entry(WITHOUT_TOOL), edit)
    assert isinstance(plan, Repair)
    assert json.loads(plan.content.value or b"") == {"call_id": "d", "tool": "read"}


def test_of_many_records_those_that_can_be_read_keep_their_own_fields() -> None:
    assert plan_repair(entry(CALL), SET_TOOL, only_unreadable=True) == NoRepair(
        entry(CALL), "it can be read already", needs_none=True
    )
    assert isinstance(plan_repair(entry(CALL), SET_TOOL), Repair)  # by name it is meant


def test_an_edit_that_changes_nothing_is_no_repair() -> None:
    plan = plan_repair(entry(CALL), Edit(value=CALL.value))
    assert plan == NoRepair(entry(CALL), "it would not change", needs_none=True)


@pytest.mark.parametrize(
    ("record", "edit", "why"),
    [
        (WITHOUT_TOOL, Edit(fields=(("thinking_tokens", "1"),)), "it would still be unreadable, invalid: "),
        (replace(CALL, value=b"{"), SET_TOOL, "its value is not JSON"),
        (replace(WITHOUT_TOOL, topic="elsewhere"), SET_TOOL, "elsewhere"),
    ],
)
def test_what_an_edit_does_not_repair_has_a_reason(record: StoredRecord, edit: Edit, why: str) -> None:
    plan = plan_repair(entry(record), edit, only_unreadable=True)
    assert isinstance(plan, NoRepair)
    assert why in plan.why
    assert not plan.needs_none


def test_only_repairs_are_saved_and_their_ids_do_not_depend_on_the_time() -> None:
    plans = [plan_repair(entry(record), SET_TOOL, only_unreadable=True) for record in (CALL, WITHOUT_TOOL)]
    (first,), (again,) = repair_messages(plans, 5), repair_messages(plans, 6)
    assert dict(first.headers)[ID] == dict(again.headers)[ID]
    _, saved = decode(first.headers, first.value)
    assert isinstance(saved, Repaired)
    assert (saved.topic, saved.partition, saved.offset) == (CALL.topic, CALL.partition, 9)


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (Edit(value=b"{}"), "the whole value"),
        (Edit(headers=((TYPE, "t"), (SEQUENCE, "3"))), "the header ce_sequence"),
        (Edit(headers=((ID, "x"),)), "the header ce_id"),
        (Edit(headers=((TYPE, "t"),), fields=(("tool", "read"),)), None),
    ],
)
def test_what_tells_records_apart_is_of_one_record(edit: Edit, what: str | None) -> None:
    assert edit.of_one_record == what
