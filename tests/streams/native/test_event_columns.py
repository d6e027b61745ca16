"""Rows that the extension module appends equal those of the models, for any records in any order."""

import dataclasses
import json
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.schemas.arrays import TokenIds, encode_array
from headrace.schemas.envelope import ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT
from headrace.schemas.events import ClockTicked, ModelCalled, ToolReturned, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.model import Part, Record
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.tick import tick
from headrace.streams.clickhouse import event_rows, tables
from headrace.streams.clickhouse.batches import RowBatch, convert, convert_validated, joined
from headrace.streams.clickhouse.columns import COUNTS, Column
from headrace.streams.clickhouse.cuts import InsertRange, PlannedInsert
from headrace.streams.clickhouse.event_rows import EventRows, make_columns
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag
from headrace.streams.raw import LogRecord, StoredRecord
from tests.streams.builders import T0, called, event, log, session, started, with_header
from tests.streams.clickhouse.test_direct_columns import HEADERS, VALUES, odd_record, same, with_value
from tests.streams.native.built import needs_speedups
from tests.streams.native.test_lag import OLDER_MODULES, beside_a_current_module, lag_without, without
from tests.streams.native.test_trajectories import anything, histories, words
from tests.streams.test_structs import FACTS

pytestmark = needs_speedups

NAMES = sorted(EXAMPLES)
FACT_NAMES = [name for name in NAMES if EXAMPLES[name].topic.name == "events"]


def arrivals(records: Sequence[StoredRecord]) -> list[LogRecord]:
    return [arrival_of(record) for record in records]


def taken(*records: StoredRecord) -> int:
    """How many of the first of ``records`` are not left to Python; asserts that all rows are right."""
    converted = convert(arrivals(records))
    same(converted, convert_validated(records))
    for _, rows in converted.tables:
        rows.validate(full=True)
    return EventRows().take(arrivals(records), 0)


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_any_records_have_the_rows_and_errors_of_the_models(data: st.DataObject) -> None:
    def choose(values: list[Any]) -> Any:
        return data.draw(st.sampled_from(values))

    names = choose([FACT_NAMES, FACT_NAMES, NAMES])
    taken(*(odd_record(choose(names), choose, offset) for offset in range(choose([1, 2, 3, 12]))))


@given(histories(), st.lists(st.integers(0, 9), max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_facts_have_the_rows_of_the_models(history: Any, left_to_python: list[int]) -> None:
    records = [
        StoredRecord("events", 0, offset, T0, each.key, each.value, each.headers)
        for offset, each in enumerate(history.records.values())
    ]
    for at in left_to_python:
        records.insert(at, with_value("headrace.tool.called.v1", b'{"tool": "\\u0041", "call_id": "c"}', 100 + at))
    taken(*records)


@pytest.mark.parametrize("name", sorted(set(FACTS) - {"failed", "returned"}))
@beside_a_current_module
def test_events_of_our_own_sdk_are_never_left_to_python(name: str) -> None:
    assert taken(event("s1", 0, FACTS[name])) == 1


def test_a_tick_without_a_sequence_number_is_taken() -> None:
    message = tick(T0).message
    assert taken(StoredRecord("events", 0, 7, T0, message.key, message.value, message.headers)) == 1


def test_rows_keep_the_order_of_the_records_whoever_converts_them() -> None:
    plain = log(session("s1", "ask", "tool", "prune", "ask"))
    odd = [
        dataclasses.replace(record, value=b" " + (record.value or b"")[:-1] + b',"x":"\\u0041"}') for record in plain
    ]
    unreadable = dataclasses.replace(plain[0], value=b"{")
    records = [plain[0], odd[1], plain[2], odd[3], odd[4], unreadable, plain[5], plain[6], odd[0], plain[1]]
    assert taken(*records) == 1
    ((_, rows),) = convert(arrivals(records)).tables
    assert rows.column("offset").to_pylist() == [r.offset for r in records if r is not unreadable]
    assert taken(*odd) == 0
    assert taken(*plain) == len(plain)


def test_a_value_that_fits_no_column_is_unstorable_alone() -> None:
    plain = log(session("s1", "ask", "tool", "ask"))
    records = [*plain[:3], with_header(plain[3], SEQUENCE, b"4294967296"), *plain[4:]]
    assert taken(*records) == 3
    batch = convert(arrivals(records))
    assert [record.offset for record, _ in batch.unstorable] == [3]


def test_converted_batches_are_joined_split_and_counted() -> None:
    records = log(session("s1", "ask", "tool", "ask", "tool", "ask"))
    parts = [convert(arrivals(records[:4])), RowBatch(), convert(arrivals(records[4:]))]
    same(joined(parts), convert_validated(records))
    ((_, rows),) = joined(parts).tables
    assert [column.num_chunks for column in rows.columns] == [1] * len(rows.columns)
    whole = PlannedInsert("events", "", (InsertRange(0, records[0].offset, records[-1].offset + 1),))
    assert whole.rows_of(rows).equals(rows)
    halves = [half.rows_of(rows) for half in whole.halves() or pytest.fail("one record")]
    assert [half.num_rows for half in halves] == [len(records) // 2, len(records) - len(records) // 2]
    assert pa.concat_tables(halves).equals(rows)
    by_models = convert_validated(records)
    assert 0 <= joined(parts).nbytes - by_models.nbytes < 100  # validity bits of columns without a null


@pytest.mark.parametrize(
    "value", [*VALUES, b'"a\\n\\u0001"', b'"\\/"', b'{"a":[1,{"b":"x,\\":y"}],"c":{}}', b"[]", b"{}"]
)
def test_an_answer_of_any_json(value: bytes) -> None:
    taken(with_value("headrace.trajectory.ended.v1", b'{"answer":%b}' % value, 0))


@pytest.mark.parametrize("number", [b"0.0004", b"1e-5", b"1.50", b"2.5E+3", b"3"])
def test_a_number_that_is_only_read_may_have_any_form(number: bytes) -> None:
    returned = b'{"call_id":"c","tool":"t","latency_s":%b,"result":[{"score":%b}]}' % (number, number)
    assert taken(with_value("headrace.tool.returned.v1", returned, 0)) == 1
    assert taken(with_value("headrace.trajectory.ended.v1", b'{"answer":%b}' % number, 0)) == (number == b"3")


@pytest.mark.parametrize("number", [b"1e10", b"1e400", b"1e-400", b"9" * 19, b"01", b"1.", b"1e", b"-", b"-0"])
def test_a_number_that_the_model_may_read_differently_is_left_to_it(number: bytes) -> None:
    returned = b'{"call_id":"c","tool":"t","result":%b}' % number
    assert taken(with_value("headrace.tool.returned.v1", returned, 0)) == 0


@given(anything)
@example({"a": [1, {}, [], "x:,\n"], "é": {"b": None}})
@settings(deadline=None)
def test_an_answer_is_written_as_json_dumps_does(answer: Any) -> None:
    taken(event("s1", 0, TrajectoryEnded(answer=answer)))


@given(words, words, words)
def test_texts_with_and_without_escapes(tool: str, call_id: str, subject: str) -> None:
    record = event("s1", 0, ToolReturned(tool=tool, call_id=call_id))
    taken(with_header(record, SUBJECT, subject.encode()), record)


@pytest.mark.parametrize("name", [ID, SOURCE, SUBJECT, TIME, SEQUENCE, TRACEPARENT, "other"])
def test_any_header_first_or_last_or_missing(name: str) -> None:
    record = event("s1", 5, FACTS["tool"])
    values = [*HEADERS.get(name, []), None, b"x" * 2048, b"x" * 2049, b"4294967295", b"4294967296"]
    taken(dataclasses.replace(record, headers=[pair for pair in record.headers if pair[0] != name]))
    for value in values:
        taken(dataclasses.replace(record, headers=[*record.headers, (name, value)]))
        taken(dataclasses.replace(record, headers=[(name, value), *record.headers]))
        taken(with_header(record, name, value))


@pytest.mark.parametrize(("partition", "offset"), [(-1, 0), (0, -1), (2**31 - 1, 2**63 - 1), (0, 2**32)])
def test_a_position_that_columns_cannot_hold_is_unstorable(partition: int, offset: int) -> None:
    record = dataclasses.replace(event("s1", 0, FACTS["tool"]), partition=partition, offset=offset)
    assert taken(record) == (partition >= 0 and offset >= 0)


@pytest.mark.parametrize("kind", FACT_NAMES)
def test_a_tombstone_and_an_empty_value(kind: str) -> None:
    record = with_value(kind, b"", 0)
    assert taken(record) == taken(dataclasses.replace(record, value=None)) == 0


@pytest.mark.parametrize("count", [0, 1, 255, 256, 20_000])
@pytest.mark.parametrize("logprobs", [0, 1, -1])
def test_sampled_tokens_are_counted_compressed_or_not(count: int, logprobs: int) -> None:
    call = called([1], range(count))
    values = array("f", [-0.5] * max(0, count + logprobs))
    fields = json.loads(call.model_dump_json()) | {"logprobs": encode_array(values)}
    record = event("s1", 0, call, value=json.dumps(fields, separators=(",", ":")).encode())
    assert taken(record) == (len(values) == count)


def test_an_array_that_python_refuses_is_left_to_the_model() -> None:
    value = b'{"model":"m","sampled_ids":"zstd:AAAA"}'
    assert taken(event("s1", 0, called([1], [2]), value=value)) == 0


def test_running_out_of_memory_is_not_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str, typecode: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(event_rows, "decode_array", fails)
    monkeypatch.setattr(event_rows, "_COLUMNS", make_columns(SPEEDUPS.EVENT_FIELDS)[0])
    with pytest.raises(MemoryError):
        convert(arrivals([event("s1", 0, FACTS["tool"]), event("s1", 1, called([1], range(300)))]))


def test_arguments_of_another_type_are_refused() -> None:
    columns = SPEEDUPS.EventColumns(
        columns=[(name, "text") for name in event_rows.EVENT_COLUMNS], own=event_rows.EVENT_COLUMNS, kinds={},
        decode_array=None, max_array_bytes=0, max_logprob=0,
    )  # fmt: skip
    for arguments in ((), ([],), ((), 0), ([], "0")):
        with pytest.raises(TypeError):
            columns.take(*arguments)
    with pytest.raises(ValueError, match="negative"):
        columns.take([], -1)
    assert columns.take([None], 0) == 0
    assert columns.take([], 5) == 5


@beside_a_current_module
@pytest.mark.parametrize(("model", "field"), OLDER_MODULES.values(), ids=OLDER_MODULES)
def test_an_older_module_leaves_what_it_does_not_know_to_python(
    model: type[Record], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, lag = make_columns(without(model, field))
    assert lag == lag_without(model, field)
    monkeypatch.setattr(event_rows, "_COLUMNS", columns)
    records = {fact.TYPE: event("s1", 0, fact) for fact in FACTS.values()}
    taken(*records.values())
    held_back = {kind for kind, record in records.items() if lag.holds_back(kind, record.value or b"")}
    assert {kind for kind, record in records.items() if taken(record) == 0} == held_back == {model.TYPE}


@beside_a_current_module
@pytest.mark.parametrize(
    ("model", "field"),
    [
        (TrajectoryEnded, "answer"),
        (ToolReturned, "latency_s"),
        (ModelCalled, "sampled_ids"),
        (ModelCalled, "usage.prompt_tokens"),
    ],
)
def test_a_type_with_an_unknown_field_that_fills_a_column_is_left_to_python(model: type[Record], field: str) -> None:
    columns, lag = make_columns(without(model, field))
    assert columns is not None
    assert lag.types == {model.TYPE}


@beside_a_current_module
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"columns": (*tables.EVENTS.columns, Column("counts", COUNTS, ""))}, "the form Array"),
        ({"columns": tables.EVENTS.columns[1:]}, "no column id_sent"),
    ],
)
def test_a_table_that_the_module_cannot_fill_is_filled_by_python(
    change: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_rows, "EVENTS", dataclasses.replace(tables.EVENTS, key=(), **change))
    columns, lag = make_columns(SPEEDUPS.EVENT_FIELDS)
    assert columns is None
    assert why in str(lag)


@beside_a_current_module
def test_a_column_that_every_row_fills_and_the_module_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_rows, "EVENT_COLUMNS", (*event_rows.EVENT_COLUMNS, "tool"))
    columns, lag = make_columns(SPEEDUPS.EVENT_FIELDS)
    assert columns is None
    assert "the column tool of every row" in str(lag)


@beside_a_current_module
@pytest.mark.parametrize(
    ("model", "field", "column"),
    [(TrajectoryStarted, "consent", "tool"), (TrajectoryStarted, "task", "answer"), (ModelCalled, "hidden", "tool"),
     (ModelCalled, "context_ids", "outcome"), (ModelCalled, "context_ids", "sampled_tokens"),
     (ClockTicked, "unix_ms", "seq")],
)  # fmt: skip
def test_a_field_that_the_module_cannot_convert_leaves_its_type_to_python(
    model: type[Record], field: str, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = event_rows.FIELDS | {model.TYPE: ((field, column, str),)}
    monkeypatch.setattr(event_rows, "FIELDS", fields)
    columns, lag = make_columns(SPEEDUPS.EVENT_FIELDS)
    assert lag == NativeLag(types=frozenset({model.TYPE}))
    assert model.TYPE not in columns.types


class Sampled(Part):
    token_ids: TokenIds | None = None


class StartedWithTokens(TrajectoryStarted):
    token_ids: TokenIds | None = None


class StartedWithSampled(TrajectoryStarted):
    sampled: Sampled = Sampled()


@pytest.mark.parametrize("model", [StartedWithTokens, StartedWithSampled])
def test_a_start_with_an_array_is_left_to_python(model: type[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_rows, "FACTS", (model,))
    columns, lag = make_columns({model.TYPE: "*"})
    assert columns is not None
    assert lag == NativeLag(types=frozenset({model.TYPE}))


def test_started_with_every_field() -> None:
    assert taken(event("s1", 0, started(tenant="a", cohort_key="eu", run="r", task={"target": ["é", 1.5, None]}))) == 1
