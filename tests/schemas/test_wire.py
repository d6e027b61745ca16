"""Records to Kafka's form and back: every kind of damage has its own error."""

from typing import Any, ClassVar

import pytest

from headrace.schemas.envelope import Envelope, to_headers
from headrace.schemas.events import ToolCalled, TrajectoryEnded
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.wire import Message, UnreadableRecord, decode, decode_payload, encode


def message(payload: Record, type_name: str | None = None) -> Message:
    envelope = Envelope("id-1", type_name or payload.TYPE, "/tests", 1_700_000_000_000, "t-1", 0)
    return encode(payload, key="t-1", envelope=envelope)


CALL = ToolCalled(call_id="c1", tool="search", arguments={"query": "ada", "limit": None})


def test_a_record_round_trips() -> None:
    sent = message(CALL)
    envelope, payload = decode(sent.headers, sent.value)
    assert payload == CALL
    assert (envelope.subject, envelope.sequence) == ("t-1", 0)


def test_unknown_fields_are_kept() -> None:
    payload = decode_payload(ToolCalled.TYPE, b'{"call_id": "c", "tool": "t", "colour": "blue"}')
    assert b'"colour":"blue"' in message(payload).value


def test_an_envelope_of_another_type_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="the type of the envelope is"):
        message(CALL, TrajectoryEnded.TYPE)


@pytest.mark.parametrize(
    ("type_name", "value", "error"),
    [
        (ToolCalled.TYPE, None, DeadLetterError.NULL_VALUE),
        (ToolCalled.TYPE, b"{", DeadLetterError.BAD_JSON),
        (ToolCalled.TYPE, b"[]", DeadLetterError.INVALID),
        (ToolCalled.TYPE, b'{"tool": "t"}', DeadLetterError.INVALID),
        ("headrace.tool.called.v9", b"{}", DeadLetterError.UNKNOWN_TYPE),
        ("somebody.elses.v1", b"{}", DeadLetterError.UNKNOWN_TYPE),
    ],
)
def test_an_unreadable_record_names_its_error(type_name: str, value: bytes | None, error: DeadLetterError) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        decode_payload(type_name, value)
    assert caught.value.error is error


def test_the_field_at_fault_is_named() -> None:
    with pytest.raises(UnreadableRecord, match="call_id"):
        decode_payload(ToolCalled.TYPE, b'{"tool": "t"}')


def test_without_headers_there_is_no_envelope() -> None:
    with pytest.raises(UnreadableRecord) as caught:
        decode([], b"{}")
    assert caught.value.error is DeadLetterError.BAD_HEADERS


class Pair(Record):
    TYPE: ClassVar[str] = "pair.v3"
    left: int
    right: int


def from_v1(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "pair.v2", {"values": [fields["l"], fields["r"]]}


def from_v2(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    left, right = fields["values"]
    return "pair.v3", {"left": left, "right": right}


def test_an_old_version_is_upcast_step_by_step() -> None:
    upcasters = {"pair.v1": from_v1, "pair.v2": from_v2}
    headers = to_headers(Envelope("i", "pair.v1", "s", 0, "x"))
    _, payload = decode(headers, b'{"l": 1, "r": 2}', {"pair.v3": Pair}, upcasters)
    assert payload == Pair(left=1, right=2)


def test_an_old_version_with_broken_json_is_bad_json() -> None:
    with pytest.raises(UnreadableRecord) as caught:
        decode_payload("pair.v1", b"{", {"pair.v3": Pair}, {"pair.v1": from_v1})
    assert caught.value.error is DeadLetterError.BAD_JSON
