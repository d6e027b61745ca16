"""A dead letter holds the offset of its record, the error and every original byte."""

from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest

from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.topics import DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.dead_letters.build import dead_letter_message, dead_letter_of, original_bytes
from headrace.streams.raw import StoredRecord

BROKEN = StoredRecord("events", 2, 7104, 1_700_000_000_123, b"t-1", b'{"call_id\xff', [("ce_type", b"x"), ("n", None)])
ERROR = UnreadableRecord(DeadLetterError.BAD_JSON, "EOF while parsing")


def test_a_dead_letter_names_offset_and_error_and_keeps_every_byte() -> None:
    dead_letter = dead_letter_of(BROKEN, ERROR, "t-1")
    assert (dead_letter.topic, dead_letter.partition, dead_letter.offset) == ("events", 2, 7104)
    assert (dead_letter.error, dead_letter.message) == (DeadLetterError.BAD_JSON, "EOF while parsing")
    assert original_bytes(dead_letter) == BROKEN.value
    assert b64decode(dead_letter.key or "") == b"t-1"
    assert [(name, value and b64decode(value)) for name, value in dead_letter.headers] == [
        ("ce_type", b"x"),
        ("n", None),
    ]
    assert dead_letter.timestamp_ms == BROKEN.timestamp


def test_it_survives_the_wire_and_is_the_same_letter_when_sent_twice() -> None:
    message = dead_letter_message(BROKEN, ERROR, "t-1")
    envelope, dead_letter = decode(message.headers, message.value)
    assert isinstance(dead_letter, DeadLetter)
    assert dead_letter == dead_letter_of(BROKEN, ERROR, "t-1")
    assert envelope.subject == "t-1"
    assert message.key == b"events:2"
    assert message == dead_letter_message(BROKEN, ERROR, "t-1")


def test_a_null_value_differs_from_an_empty_value() -> None:
    null = StoredRecord("events", 0, 1, 5, None, None, [])
    empty = StoredRecord("events", 0, 2, 5, None, b"", [])
    assert original_bytes(dead_letter_of(null, ERROR)) is None
    assert original_bytes(dead_letter_of(empty, ERROR)) == b""


def test_the_largest_event_the_broker_accepts_fits() -> None:
    largest = StoredRecord("events", 0, 1, 5, b"k", b"\xff" * (4 * 1024 * 1024), [("h", b"v" * 1000)])
    message = dead_letter_message(largest, ERROR)
    assert len(message.value) < DEAD_LETTERS.max_bytes
    assert original_bytes(DeadLetter.model_validate_json(message.value)) == largest.value


def test_a_value_too_large_for_the_topic_is_replaced_by_its_offset() -> None:
    huge = StoredRecord("trajectories", 3, 9, 5, None, b"\x00" * (30 * 1024 * 1024), [])
    dead_letter = dead_letter_of(huge, UnreadableRecord(DeadLetterError.INVALID, "no"))
    assert dead_letter.value is None
    assert "only in trajectories[3]@9: value of 31457280 bytes" in dead_letter.message


MB = 1_000_000
BEYOND: dict[str, dict[str, Any]] = {
    "key": {"key": bytes(60 * MB)},
    "header": {"headers": [("x", bytes(60 * MB))]},
    "control characters": {"headers": [("\0" * (4 * MB), b"")]},
    "quotes": {"headers": [('"' * (5 * MB), b"")]},
    "empty headers": {"headers": [("", None)] * (2 * MB)},
    "everything": {"key": bytes(9 * MB), "value": bytes(9 * MB), "headers": [("x", bytes(9 * MB))]},
}
"""Each record fits a topic of 4 MiB, whose limit applies to compressed batches."""


@pytest.mark.parametrize("beyond", BEYOND.values(), ids=BEYOND)
def test_whatever_is_large_about_a_record_its_letter_fits(beyond: dict[str, Any]) -> None:
    """A dead letter that does not fit would fail every commit of its partition forever."""
    record = replace(BROKEN, **beyond)
    message = dead_letter_message(record, ERROR)
    assert len(message.value) < DEAD_LETTERS.max_bytes - 1024
    dead_letter = DeadLetter.model_validate_json(message.value)
    assert "only in events[2]@7104" in dead_letter.message
    if "value" not in beyond:
        assert original_bytes(dead_letter) == record.value
    if "key" not in beyond:
        assert b64decode(dead_letter.key or "") == record.key
    if "headers" not in beyond:
        assert len(dead_letter.headers) == len(record.headers)


def test_a_long_error_is_truncated() -> None:
    dead_letter = dead_letter_of(BROKEN, UnreadableRecord(DeadLetterError.INVALID, "x" * 100_000))
    assert len(dead_letter.message) == 1000
