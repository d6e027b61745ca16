"""A repair changes only what it names, and is kept only if the result is readable."""

import json

import pytest

from headrace.schemas.envelope import SEQUENCE
from headrace.schemas.events import ToolCalled
from headrace.schemas.records.dead_letter import DeadLetterError, Repaired
from headrace.schemas.wire import Message, UnreadableRecord, decode
from headrace.streams.dead_letters.build import dead_letter_of, to_message
from headrace.streams.dead_letters.queue import DeadLetterQueue
from headrace.streams.dead_letters.repair import (
    CannotRepair,
    Content,
    content_of,
    edited,
    json_error,
    readable,
    repair_message,
)
from headrace.streams.raw import StoredRecord
from tests.streams.builders import event, with_header, without

CALL = event("t", 3, ToolCalled(call_id="c", tool="search", arguments={"query": "ada"}), offset=9)
BROKEN = UnreadableRecord(DeadLetterError.BAD_JSON, "broken")
CONTENT = content_of(dead_letter_of(CALL, BROKEN, "t"))


def test_a_letter_holds_the_record_as_it_was() -> None:
    assert Content(CALL.key, CALL.value, tuple(CALL.headers)) == CONTENT
    assert (CONTENT.sequence, CONTENT.subject) == (3, "t")


def test_without_edits_nothing_changes() -> None:
    assert edited(CONTENT) == CONTENT


def test_fields_are_set_by_path_as_json_or_as_text() -> None:
    new = edited(CONTENT, fields=[("tool", "read"), ("arguments.query", "[1, 2]"), ("note", "null")])
    assert json.loads(new.value or b"") == {
        "call_id": "c",
        "tool": "read",
        "arguments": {"query": [1, 2]},
        "note": None,
        "masked": {},
        "thinking_tokens": None,
    }
    assert json.loads(edited(new, fields=[("arguments.query.1", "5")]).value or b"")["arguments"] == {"query": [1, 5]}


def test_a_field_is_set_in_the_value_given_with_it() -> None:
    new = edited(CONTENT, value=b'{"call_id": "d"}', fields=[("tool", "search")])
    assert json.loads(new.value or b"") == {"call_id": "d", "tool": "search"}


@pytest.mark.parametrize("path", ["tool.name", "arguments.nothing.there", "arguments.query.0"])
def test_a_field_below_a_value_that_has_no_fields_is_refused(path: str) -> None:
    with pytest.raises(CannotRepair, match="has no parent object or list"):
        edited(CONTENT, fields=[(path, "1")])


def test_no_field_can_be_set_in_a_value_that_is_not_json() -> None:
    with pytest.raises(CannotRepair, match="--value FILE"):
        edited(Content(b"t", b'{"call_id', ()), fields=[("tool", "x")])


def test_a_header_replaces_all_headers_of_its_name() -> None:
    twice = Content(b"t", b"{}", ((SEQUENCE, b"x"), ("a", None), (SEQUENCE, b"y")))
    assert edited(twice, headers=[(SEQUENCE, "7")]).headers == (("a", None), (SEQUENCE, b"7"))


def test_a_record_the_current_code_reads_is_readable() -> None:
    envelope, payload = readable("events", CONTENT)
    assert (envelope.sequence, payload) == (3, ToolCalled(call_id="c", tool="search", arguments={"query": "ada"}))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (edited(CONTENT, value=b"{"), DeadLetterError.BAD_JSON),
        (edited(CONTENT, value=b"{}"), DeadLetterError.INVALID),
        (edited(CONTENT, headers=[("ce_type", "headrace.weights.applied.v1")]), DeadLetterError.UNKNOWN_TYPE),
        (edited(CONTENT, headers=[("ce_subject", "")]), DeadLetterError.BAD_HEADERS),
        (Content(CALL.key, CALL.value, tuple(without(CALL, SEQUENCE).headers)), DeadLetterError.BAD_HEADERS),
        (Content(CALL.key, None, tuple(CALL.headers)), DeadLetterError.NULL_VALUE),
    ],
)
def test_an_unreadable_record_is_reported_with_its_error(content: Content, error: DeadLetterError) -> None:
    with pytest.raises(UnreadableRecord) as raised:
        readable("events", content)
    assert raised.value.error is error


def test_the_repair_record_names_the_original_and_is_idempotent() -> None:
    dead_letter = dead_letter_of(with_header(CALL, "n", None), BROKEN, "t")
    new = edited(content_of(dead_letter), fields=[("tool", "read")])
    message = repair_message(dead_letter, new, 5)
    envelope, repaired = decode(message.headers, message.value)
    assert isinstance(repaired, Repaired)
    assert (repaired.topic, repaired.partition, repaired.offset) == ("events", 0, 9)
    assert content_of(repaired) == new
    assert envelope.id == decode(repair_message(dead_letter, new, 6).headers, message.value)[0].id
    assert message.key == b"events:0"


def test_the_hash_distinguishes_all_contents() -> None:
    contents = [
        Content(None, b"ab", (("a", b"b"),)),
        Content(None, b"", (("a", b"b"), ("ab", b""))),
        Content(None, None, (("a", b"b"),)),
        Content(None, b"b", (("a", b"b"), ("a", None))),
        Content(None, b"ab", (("a", None),)),
    ]
    assert len({content.sha256 for content in contents}) == len(contents)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, None),
        (b'{"a": 1}', None),
        (b'{"a": ', 6),
        ('{"é": x}'.encode(), 7),
        (b'{"a": "\xff"}', 7),
        (b'{"a": 1} x', 9),
    ],
)
def test_the_position_of_a_json_error_is_in_bytes(value: bytes | None, place: int | None) -> None:
    found = json_error(value)
    assert (found and found[0]) == place


@pytest.mark.parametrize(("name", "text"), [("tool", r'"\ud800"'), ("arguments.query", r'["\udcff"]')])
def test_half_of_a_surrogate_pair_is_refused_as_a_repair(name: str, text: str) -> None:
    with pytest.raises(CannotRepair, match="an unpaired surrogate is not valid text"):
        edited(CONTENT, fields=[(name, text)])


def test_odd_edits_are_refused_or_taken_as_text_and_never_fail() -> None:
    with pytest.raises(CannotRepair, match="an unpaired surrogate is not valid text"):
        edited(CONTENT, headers=[("ce_type", "\udcff")])
    with pytest.raises(CannotRepair, match="has no parent object or list"):
        edited(CONTENT, fields=[("arguments.query.²", "1")])
    deep = "[" * 200_000
    assert json.loads(edited(CONTENT, fields=[("tool", deep)]).value or b"")["tool"] == deep


def test_a_letter_whose_bytes_are_no_base64_is_counted_and_stops_nobody() -> None:
    dead_letter = dead_letter_of(CALL, BROKEN, "t")
    queue = DeadLetterQueue()
    for offset, odd in enumerate(("é", "abc", "\x1b[31m!")):
        broken = dead_letter.model_copy(update={"value": odd, "offset": offset})
        queue.add(stored(to_message(broken), offset))
    queue.add(stored(to_message(dead_letter), 7))
    assert (queue.unreadable, [each.dead_letter for each in queue.entries]) == (3, [dead_letter])


def stored(message: Message, offset: int) -> StoredRecord:
    return StoredRecord("dead-letters", 0, offset, 0, message.key, message.value, message.headers)
