"""Rows of ordinary records, which bypass the models, equal the models' rows for any record."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.arrays import encode_array
from headrace.schemas.envelope import ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT, TYPE
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.topics import TYPES
from headrace.streams.clickhouse.batches import RowBatch, convert, convert_validated
from headrace.streams.clickhouse.direct_columns import READERS, add_ordinary
from headrace.streams.clickhouse.rows import STORED_TYPES
from headrace.streams.clickhouse.rows_by_table import RowsByTable
from headrace.streams.clickhouse.tables import BY_NAME
from headrace.streams.raw import LogRecord, StoredRecord
from tests.streams.clickhouse.test_any_record import record_of
from tests.streams.clickhouse.test_rows import SAMPLES, TRAJECTORY

Choose = Callable[[list[Any]], Any]

VALUES = [
    b"NaN", b"-Infinity", b"1e400", b"1e10", b"1e-7", b"9" * 400, b"0." + b"1" * 400, b"-0", b"-0.0", b"007", b"1.50",
    b"18446744073709551616", b"[[[[]]]]", b"[" * 149 + b"]" * 149, b"[" * 180 + b"]" * 180, b"[" * 400 + b"]" * 400,
    b'{"a":1,"a":2}', b'"\\ud800"', b'"\\u0041"', b'"\xff"', b'"NaN"', b"true", b"null", b" 1 ", b'"5"', b'"AAAA"',
    b'"zstd:AAAA"', b'"BQAAAAYAAAA="', b'"AADAfw=="',
]  # fmt: skip
"""JSON and near-JSON on which parsers differ."""

HEADERS = {
    ID: [None, b"", b"\xff", "naïve".encode(), b"x" * 2048, b"x" * 2049],
    SOURCE: [None, b"", b"\xed\xa0\x80", b"x" * 1900],
    SUBJECT: [None, b"", b"\x00", "naïve".encode(), b"x" * 3000],
    TYPE: [None, b"", b"headrace.tool.called.v1", b"headrace.feedback.given.v1", b"headrace.clock.ticked.v1"],
    TIME: [
        None, b"", b"2026-11-21T11:24:24Z", b"2026-11-21T11:24:24.512+02:00", b"1969-12-31T23:59:59.999Z",
        b"2199-12-31T23:59:59.999Z", b"2200-01-01T00:00:00.000Z", b"2026-02-30T00:00:00.000Z",
    ],
    SEQUENCE: [None, b"", b"-1", b" 7", b"007", b"1_0", b"4294967295", b"4294967296", b"9" * 18, b"9" * 19],
    TRACEPARENT: [None, b"", b"\xff", b"x" * 3000],
}  # fmt: skip


def same(found: RowBatch, expected: RowBatch) -> None:
    assert [table.name for table, _ in found.tables] == [table.name for table, _ in expected.tables]
    for (table, rows), (_, by_models) in zip(found.tables, expected.tables, strict=True):
        assert rows.equals(by_models), table.name
        assert [repr(row) for row in rows.to_pylist()] == [repr(row) for row in by_models.to_pylist()]
    for aside, by_models in ((found.unreadable, expected.unreadable), (found.unstorable, expected.unstorable)):
        assert [(record.offset, error.error, str(error)) for record, error in aside] == [
            (record.offset, error.error, str(error)) for record, error in by_models
        ]


def odd_text(value: bytes, choose: Choose) -> bytes:
    """``value`` with a piece of JSON in place of one of its values, or next to them."""
    fields = json.loads(value)
    name = choose([*sorted(fields), "unknown"])
    other = dict(fields) | {name: "@"}
    return json.dumps(other, separators=choose([(",", ":"), (", ", ": ")])).encode().replace(b'"@"', choose(VALUES))


def odd_record(name: str, choose: Choose, offset: int) -> StoredRecord:
    """An example, unchanged or with values, JSON or headers that differ from what we write."""
    record = record_of(name, choose, offset)
    example = EXAMPLES[name].message
    value = choose([example.value, record.value, odd_text(example.value, choose), b"", None, example.value[:-1]])
    headers = [(header, content) for header, content in record.headers if choose([True] * 9 + [False])]
    if choose([True, False]):
        odd = choose(sorted(HEADERS))
        content = choose(HEADERS[odd])
        headers = choose([[*headers, (odd, content)], [(odd, content), *headers]])
    return StoredRecord(record.topic, 0, offset, 1, record.key, value, headers)


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_rows_and_dead_letters_match_those_of_the_models(data: st.DataObject) -> None:
    def choose(values: list[Any]) -> Any:
        return data.draw(st.sampled_from(values))

    names = sorted(EXAMPLES)
    records = [odd_record(choose(names), choose, offset) for offset in range(choose([1, 2, 3]))]
    same(convert(records), convert_validated(records))


@pytest.mark.parametrize("kind", sorted(name for name in STORED_TYPES if name.encode() in READERS))
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_sample_of_every_type_with_odd_json(kind: str, data: st.DataObject) -> None:
    def choose(values: list[Any]) -> Any:
        return data.draw(st.sampled_from(values))

    sample = next(sample for sample in SAMPLES if kind == sample.TYPE)
    value = odd_text(sample.model_dump_json().encode(), choose)
    records = [with_value(kind, value, 0), with_value(kind, sample.model_dump_json().encode(), 1)]
    same(convert(records), convert_validated(records))


def with_value(kind: str, value: bytes, offset: int) -> StoredRecord:
    headers = [
        (ID, b"id"), (TYPE, kind.encode()), (SOURCE, b"/source"), (TIME, b"2026-11-21T11:24:24.512Z"),
        (SUBJECT, b"t"), (SEQUENCE, b"7"),
    ]  # fmt: skip
    topic = next((name for name, types in TYPES.items() if kind in types), "events")
    return StoredRecord(topic, 0, offset, 1, b"t", value, headers)


@given(st.data())
def test_a_record_of_a_type_that_its_topic_does_not_hold_is_unreadable(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(EXAMPLES)))
    topic = data.draw(st.sampled_from(sorted(TYPES)))
    example = EXAMPLES[name].message
    record = StoredRecord(topic, 0, 7, 1, example.key, example.value, example.headers)
    kind = dict(example.headers)[TYPE].decode()
    for batch in (convert([record]), convert_validated([record])):
        if kind in TYPES[topic]:
            assert not batch.unreadable
        else:
            assert not batch.tables
            ((_, error),) = batch.unreadable
            assert str(error) == f"{kind} does not belong in the topic {topic}"


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:20].decode(errors="replace"))
def test_json_that_parsers_read_differently_is_read_like_the_model(value: bytes) -> None:
    returned = b'{"call_id":"c","tool":"t","result":%b}'
    records: list[LogRecord] = [
        with_value("headrace.tool.returned.v1", returned % value, 0),
        with_value("headrace.trajectory.ended.v1", b'{"answer":%b}' % value, 1),
        with_value("headrace.trajectory.ended.v1", b'{"unknown":%b}' % value, 2),
        with_value("headrace.tool.returned.v1", returned % b"1", 3),
    ]
    same(convert(records), convert_validated(records))


@pytest.mark.parametrize("before", range(21))
def test_a_number_that_is_not_finite_is_found_anywhere(before: int) -> None:
    value = b'{"answer":"%b","unknown":%b}' % (b"x" * before, b"9" * 309)
    records: list[LogRecord] = [with_value("headrace.trajectory.ended.v1", value, 0)]
    same(convert(records), convert_validated(records))
    assert [record.offset for record, _ in convert(records).unreadable] == [0]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.TYPE)
def test_our_own_records_are_ordinary_if_their_model_has_a_struct(sample: Any) -> None:
    into = RowsByTable()
    assert add_ordinary(with_value(sample.TYPE, sample.model_dump_json().encode(), 0), into) == (
        sample.TYPE.encode() in READERS
    )


def test_nearly_every_type_is_read_without_its_model() -> None:
    assert STORED_TYPES - {name.decode() for name in READERS} == {
        "headrace.alert.raised.v1",
        "headrace.record.dead.v1",
        "headrace.record.repaired.v1",
    }


def test_a_trajectory_of_many_tokens_is_counted_alike() -> None:
    tokens = encode_array(TRAJECTORY.segments[0].token_ids * 1000)
    fields = json.loads(TRAJECTORY.model_dump_json())
    fields["segments"][0] |= {"token_ids": tokens, "loss_mask": encode_array(TRAJECTORY.segments[0].loss_mask)}
    records = [with_value(TRAJECTORY.TYPE, json.dumps(fields).encode(), 0)]
    same(convert(records), convert_validated(records))


def test_a_value_that_fits_no_column_is_unstorable_alone_among_ordinary_ones() -> None:
    fields = json.loads(TRAJECTORY.model_dump_json())
    records: list[LogRecord] = [
        with_value(TRAJECTORY.TYPE, json.dumps(fields | {"sampled_tokens": count}).encode(), offset)
        for offset, count in enumerate((7, 2**40, 8))
    ]
    found = convert(records * 3)
    same(found, convert_validated(records * 3))
    found = convert(records)
    ((table, rows),) = found.tables
    assert (table, rows.column("offset").to_pylist()) == (BY_NAME["trajectories"], [0, 2])
    assert [record.offset for record, _ in found.unstorable] == [1]
