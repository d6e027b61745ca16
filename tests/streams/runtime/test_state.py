"""Unreadable state stops no partition: it is quarantined and reported once, and the rest continues."""

from headrace.schemas.envelope import from_headers
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.topics import ALERTS, DEAD_LETTERS
from headrace.schemas.wire import decode
from headrace.streams.grouping.group_state import CLOCK, StoredMember, candidate_of, group_key, member_key, to_record
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from headrace.streams.processors.group import read_entries
from headrace.streams.processors.score import stored_attempt
from headrace.streams.raw import StoredRecord
from headrace.streams.runtime.state import KIND, read_state, set_aside_records
from tests.streams.attempts import START_MS, rewarded

_PLACE = b'{"partition":0,"offset":2}'
GOOD = b'{"since_ms":7,"heard":[{"id":"f","signal":"s","value":1.5,"time_ms":3,"reference":' + _PLACE + b"}]}"
BROKEN = {
    b"cut": GOOD[:-9],
    b"null": GOOD.replace(b"1.5", b"null"),
    b"nan": GOOD.replace(b"1.5", b"NaN"),
    b"huge": GOOD.replace(b"1.5", b"1e400"),
    b"other": b'{"kind":"group"}',
    b"deep": b"[" * 100_000,
    b"\xff": GOOD,
    b"empty": b"",
}


def stored(entries: dict[bytes, bytes]) -> dict[bytes, StoredRecord]:
    return {
        key: StoredRecord("headrace-score-state", 2, number, START_MS, key, value, ())
        for number, (key, value) in enumerate(entries.items())
    }


def test_readable_state_is_read_and_the_rest_quarantined() -> None:
    entries, aside = read_state(stored({b"a": GOOD, **BROKEN, b"b": GOOD}), stored_attempt)
    assert [name for name, _ in entries.values()] == ["a", "b"]
    assert [each.record.key for each in aside] == list(BROKEN)


def test_quarantined_state_becomes_the_same_records_at_each_start() -> None:
    _, aside = read_state(stored({b"a": GOOD, **BROKEN}), stored_attempt)
    first, again = set_aside_records(aside, "/streams/score"), set_aside_records(aside, "/streams/score")
    assert [each.topic for each in first] == [DEAD_LETTERS] * len(BROKEN) + [ALERTS]
    assert [from_headers(each.message.headers).id for each in first] == [
        from_headers(each.message.headers).id for each in again
    ]
    dead_letters = [decode(each.message.headers, each.message.value)[1] for each in first]
    alert = dead_letters.pop()
    assert isinstance(alert, Alert)
    assert (alert.kind, alert.details["entries"], alert.details["offset"]) == (KIND, len(BROKEN), 1)
    assert {
        (letter.topic, letter.partition, letter.error) for letter in dead_letters if isinstance(letter, DeadLetter)
    } == {("headrace-score-state", 2, DeadLetterError.INVALID)}


def test_without_unreadable_state_there_are_no_records() -> None:
    assert set_aside_records([], "/streams/score") == []


def test_members_are_quarantined_with_their_unreadable_group() -> None:
    groups, changes = Groups(GroupLimits()), GroupChanges()
    for name in "abc":
        groups.add(rewarded(name, 1.0, size=4), START_MS, changes)
    groups.add(rewarded("d", 1.0, size=4, group="other"), START_MS, changes)
    state = stored(dict(to_record(key, entry) for key, entry in changes.stored.items()))  # type: ignore[arg-type]
    broken = to_record(group_key("g"), None)[0]
    state[broken] = StoredRecord("headrace-group-state", 0, 99, START_MS, broken, b'{"kind":"group"', ())
    entries, aside = read_entries(state)
    lost = {broken, *(to_record(member_key("g", name), None)[0] for name in "abc")}
    assert {each.record.key for each in aside} == lost
    again = Groups(GroupLimits(), entries)
    assert again.open == 1
    assert to_record(CLOCK, None)[0] in state
    assert StoredMember("other", candidate_of(rewarded("d", 1.0, size=4, group="other"))) in entries
