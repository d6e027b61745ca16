"""A dead letter is shown with its error and the position of it, and with a shortened value."""

from dataclasses import replace

from headrace.deploy.dead_letters.page import (
    MAX_CHARACTERS,
    as_json,
    counts,
    outcome,
    page,
    repair_outcome,
    row,
    table_of_counts,
)
from headrace.schemas.envelope import SOURCE
from headrace.schemas.records.dead_letter import DeadLetterError, Redriven, Repaired
from headrace.schemas.records.reference import Reference
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.dead_letters.build import dead_letter_of
from headrace.streams.dead_letters.queue import DeadLetterEntry
from headrace.streams.dead_letters.redrive import Redrive, Refusal
from headrace.streams.dead_letters.repair import content_of, edited, repair_message
from headrace.streams.dead_letters.repair_plan import Edit, NoRepair, plan_repair
from headrace.streams.raw import StoredRecord
from tests.streams.builders import event, facts, with_header

SECRET = "my password is swordfish "
CALL = event("trajectory-with-a-very-long-name", 2, facts("tool")[1], offset=7, partition=1)


def entry(record: StoredRecord = CALL, error: DeadLetterError = DeadLetterError.BAD_JSON) -> DeadLetterEntry:
    dead = dead_letter_of(record, UnreadableRecord(error, "Invalid \x1b[31mJSON"), "trajectory-with-a-very-long-name")
    return DeadLetterEntry((Reference(partition=0, offset=17),), dead)


CUT = replace(CALL, value=b'{"call_id": "c0", "tool": "sea')
REDRIVEN = Redriven(topic="events", partition=1, offset=7, sha256="s", trajectory_id="new", redrive_of="old", records=6)


def repaired(record: StoredRecord = CUT) -> DeadLetterEntry:
    broken = entry(record)
    message = repair_message(broken.dead_letter, edited(content_of(broken.dead_letter), value=CALL.value), 5)
    _, repair = decode(message.headers, message.value)
    assert isinstance(repair, Repaired)
    return replace(broken, repair=repair)


def test_a_row_has_the_position_the_error_and_the_state() -> None:
    assert row(entry()) == (
        "0:17    2023-11-14 22:13:20.000  events[1]@7         bad_json      from /test  trajecto…g-name #2"
    )
    assert "  from ?  " in row(entry(replace(CALL, headers=())))
    assert row(entry(), full=True).endswith("  trajectory-with-a-very-long-name #2")
    assert row(replace(repaired(), redriven=(REDRIVEN,))).endswith("  repaired, sent again")


def test_a_page_marks_the_position_of_a_json_error() -> None:
    lines = page(entry(CUT))
    where = next(
        number for number, line in enumerate(lines) if "not JSON: Unterminated string starting, byte 26" in line
    )
    assert lines[where + 1] == '             {"call_id": "c0", "tool": "sea'
    assert lines[where + 2].index("^") == lines[where + 1].index('"sea')
    assert "now          unreadable: headrace.tool.called.v1: Invalid JSON" in "\n".join(lines)


def test_a_page_shows_a_shortened_value_unless_full() -> None:
    record = replace(CALL, value=b'{"text": "' + b"x" * MAX_CHARACTERS + SECRET.encode() + b'"}')
    assert SECRET not in "\n".join(page(entry(record)))
    assert SECRET in "\n".join(page(entry(record), full=True))
    header = with_header(CALL, "note", b"x" * MAX_CHARACTERS + SECRET.encode())
    assert SECRET not in "\n".join(page(entry(header)))


def test_a_page_shows_the_state_and_whether_the_record_can_be_read_now() -> None:
    lines = page(replace(repaired(), redriven=(REDRIVEN,)))
    assert "as repaired:" in lines
    assert "now          readable, as headrace.tool.called.v1" in lines
    assert lines[-1] == "sent again   with all 6 events of old as new"


def test_null_values_are_shown_and_control_characters_escaped() -> None:
    lines = page(entry(replace(CALL, value=None), DeadLetterError.NULL_VALUE))
    assert any(line.startswith("value        null") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_json_contains_the_dead_letter_and_its_history() -> None:
    shown = as_json(replace(repaired(), redriven=(REDRIVEN,)))
    assert (shown["letter"], shown["offset"], shown["repair"]["offset"]) == ("0:17", 7, 7)
    assert shown["redriven"] == [REDRIVEN.model_dump()]


def test_outcomes_are_one_line() -> None:
    whole = Redrive((repaired(),), (), (REDRIVEN,), (3,))
    assert outcome(whole) == ("0:17  sent with all of old, 6 events, as new, a new trajectory; missing events: 3")
    alone = Redrive((repaired(),), (), (REDRIVEN.model_copy(update={"redrive_of": None, "trajectory_id": "t"}),))
    assert outcome(alone, dry_run=True) == "0:17  would be sent to events, event 2 of t"
    assert outcome(Refusal(repaired(), "no")) == "0:17  not sent: no"


def test_dead_letters_are_counted_by_their_producer_the_commonest_first() -> None:
    odd, old = replace(CALL, headers=()), with_header(CALL, SOURCE, b"/old")
    entries = [
        entry(odd),
        entry(old),
        replace(entry(old), redriven=(REDRIVEN,)),
        replace(repaired(), redriven=(REDRIVEN,)),
    ]
    found = counts(entries, "producer")
    assert found == [
        {"producer": "/old", "dead_letters": 2, "open": 1},
        {"producer": "/test", "dead_letters": 1, "open": 0},
        {"producer": "?", "dead_letters": 1, "open": 1},
    ]
    assert table_of_counts(found, "producer")[:2] == [
        "producer  dead letters    open",
        "/old                 2       1",
    ]
    assert counts(entries, "error") == [{"error": "bad_json", "dead_letters": 4, "open": 2}]
    assert table_of_counts([], "topic") == ["topic  dead letters    open"]


def test_repairs_are_one_line() -> None:
    plan = plan_repair(entry(CUT), Edit(value=CALL.value))
    about = "headrace.tool.called.v1 of trajectory-with-a-very-long-name, event 2"
    assert repair_outcome(plan, saved=True) == f"0:17  repaired: {about}"
    assert repair_outcome(plan, saved=False) == f"0:17  could be repaired: {about}"
    assert repair_outcome(NoRepair(entry(), "no"), saved=True) == "0:17  not repaired: no"
    assert repair_outcome(NoRepair(entry(), "fine", needs_none=True), saved=True) == "0:17  needs no repair: fine"
