"""Rows of trajectories that the extension module appends equal those of the models."""

import dataclasses
import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.schemas.arrays import encode_array
from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.records.trajectory import Defect, Segment, ToolStatistics, ToolUse, Trajectory, Turn
from headrace.streams.assembly.assemble import _conclude
from headrace.streams.clickhouse import tables, trajectory_rows
from headrace.streams.clickhouse.batches import convert, convert_validated
from headrace.streams.clickhouse.columns import COUNT, TEXT, Column
from headrace.streams.clickhouse.rows_by_table import RowsByTable
from headrace.streams.clickhouse.trajectory_rows import make_columns
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag
from headrace.streams.raw import LogRecord, StoredRecord
from tests.streams.clickhouse.test_any_record import with_odd
from tests.streams.clickhouse.test_direct_columns import VALUES, odd_text, same, with_value
from tests.streams.clickhouse.test_rows import TRAJECTORY
from tests.streams.native.built import needs_speedups
from tests.streams.native.test_lag import beside_a_current_module
from tests.streams.native.test_trajectories import anything, histories, numbers, words

pytestmark = needs_speedups

RICH = TRAJECTORY.model_copy(
    update={
        "started": TrajectoryStarted(
            task_id="task", agent="search", group_id="g", tenant="ü", harness_version="h@1",
            task={"source": "wiki", "level": 2, "hops": "many", "evaluation": "greedy", "target": ["é", 1.5]},
        ),
        "turns": [
            Turn(
                sampled_tokens=2, finish_reason="tool_calls", pruned_ids=["a", "b"], messages=[{"content": "é"}],
                tools=[
                    ToolUse(call_id="c1", tool="search", arguments={"query": "x"}, status="ok",
                            result=[1e-5, {"a": None}], latency_s=0.0004),
                    ToolUse(call_id="c2", tool="read", status="error", error_class="timeout"),
                ],
            ),
            Turn(summarized=True),
            Turn(finish_reason="stop", tools=[ToolUse(call_id="c3", tool="read")]),
        ],
        "defects": [Defect.MISSING_EVENTS, Defect.OVERSIZE],
        "outcome": 0.25,
    }
)  # fmt: skip


def records_of(*payloads: Trajectory | Mapping[str, Any] | bytes) -> list[LogRecord]:
    """Records of trajectories, as our own assembler writes them if their payloads are models."""
    values = [
        each.model_dump_json().encode() if isinstance(each, Trajectory) else
        each if isinstance(each, bytes) else
        json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode()
        for each in payloads
    ]  # fmt: skip
    return [with_value(Trajectory.TYPE, value, offset) for offset, value in enumerate(values)]


def taken(*payloads: Trajectory | Mapping[str, Any] | bytes) -> list[bool]:
    """Which of the payloads are not left to Python; asserts that all rows are right."""
    records = records_of(*payloads)
    converted = convert(records)
    same(converted, convert_validated(records))
    for _, rows in converted.tables:
        rows.validate(full=True)
    into = RowsByTable()
    return [into.add_trajectory(("id", 1, "/source", 0, 0, 1), record.value or b"") for record in records]


def fields_of(trajectory: Trajectory = RICH, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(trajectory.model_dump_json())
    return fields | changes


@beside_a_current_module
def test_trajectories_of_our_own_are_never_left_to_python() -> None:
    ended = RICH.model_copy(update={"started": None, "turns": [], "tools": {}, "segments": [], "answer": None})
    assert all(taken(RICH, TRAJECTORY, ended, RICH))


@given(histories())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_facts_have_the_rows_of_the_models(history: Any) -> None:
    trajectory, _ = _conclude(history)
    taken(trajectory.message.value)


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_odd_trajectories_have_the_rows_and_errors_of_the_models(data: st.DataObject) -> None:
    def choose(values: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(list(values)))

    plain = RICH.model_dump_json().encode()
    payloads = [
        choose([plain, odd_text(plain, choose), json.dumps(with_odd(fields_of(), choose)).encode()]) for _ in "12"
    ]
    taken(*payloads, plain)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:20].decode(errors="replace"))
@pytest.mark.parametrize("path", ["answer", "result", "arguments", "task", "latency_s", "calls", "tool", "unknown"])
def test_any_json_anywhere(path: str, value: bytes) -> None:
    fields = fields_of()
    call = fields["turns"][0]["tools"][0]
    place = {"answer": fields, "unknown": fields, "task": fields["started"], "calls": fields["tools"]["search"]}
    place.get(path, call)[path] = "@"
    taken(json.dumps(fields, separators=(",", ":")).encode().replace(b'"@"', value), RICH)


@given(st.dictionaries(st.sampled_from(["source", "evaluation", "level", "hops", "size", "other"]), anything | numbers))
@settings(max_examples=200, deadline=None)
def test_labels_of_any_task(task: dict[str, Any]) -> None:
    fields = fields_of()
    fields["started"]["task"] = task
    taken(fields)


@pytest.mark.parametrize("value", [True, False, 0, 0.0, "", None, [], {}, [1], 2, 2.5, "x", 'a"b'], ids=repr)
@pytest.mark.parametrize("name", ["source", "evaluation", "difficulty", "hops"])
def test_a_label_is_written_as_python_does(name: str, value: object) -> None:
    fields = fields_of()
    fields["started"]["task"] = {"lookups": 3, name: value}
    taken(fields)


@given(st.lists(st.tuples(words, st.dictionaries(words, st.integers(-1, 2**33), max_size=3)), max_size=4))
@settings(deadline=None)
def test_tools_are_sorted_and_their_errors_are_summed(uses: list[tuple[str, dict[str, int]]]) -> None:
    tools = {name: ToolStatistics(calls=3, errors=errors, seconds=0.1) for name, errors in uses}
    taken(RICH.model_copy(update={"tools": tools}))


SEGMENT = TRAJECTORY.segments[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_mask": [0, 0, 1]}, {"loss_mask": [0, 0, 0, 1]}, {"loss_mask": [0, 0, 2, 1]}, {"logprobs": [-0.5]},
        {"logprobs": [-0.5, 1.0]}, {"logprobs": [-0.5, float("nan")]}, {"logprobs": None}, {"token_ids": []},
        {"version_spans": []}, {"version_spans": [{"version": 3, "start": 0, "end": 1}]},
        {"sampling_spans": [{"temperature": 1.0, "start": 0, "end": 2}]},
        {"sampling_spans": [{"temperature": 1.0, "start": 0, "end": 3}]},
        {"version_spans": [{"version": 9, "start": 0, "end": 2, "run": "another"}]},
        {"version_spans": [{"version": None, "start": 0, "end": 2, "run": "default"}]},
    ],
    ids=str,
)  # fmt: skip
def test_segments_that_disagree_are_left_to_the_model(changes: dict[str, Any]) -> None:
    codes = {"token_ids": "i", "loss_mask": "b", "logprobs": "f"}
    fields = fields_of()
    for name, value in changes.items():
        packed = encode_array(array(codes[name], value)) if name in codes and value is not None else value
        fields["segments"][0][name] = packed
    taken(fields, RICH)


@pytest.mark.parametrize("count", [0, 255, 20_000])
def test_arrays_compressed_or_not(count: int) -> None:
    segment = Segment(
        token_ids=[*range(count), 7], loss_mask=[0] * count + [1], logprobs=[-0.5], version_spans=[], sampling_spans=[]
    )
    assert taken(RICH.model_copy(update={"segments": [segment, segment]})) == [True]


@pytest.mark.parametrize("count", [2**32 - 1, 2**32, 2**53])
def test_a_count_that_fits_no_column_is_unstorable_alone(count: int) -> None:
    turns = [{"sampled_tokens": count}]
    assert taken(RICH, fields_of(turns=turns), fields_of(events=count), RICH) == [
        True, count < 2**32, count < 2**32, True,
    ]  # fmt: skip


def test_rows_keep_the_order_of_the_records_whoever_converts_them() -> None:
    spaced = json.dumps(fields_of()).encode()
    assert taken(RICH, spaced, b"{", TRAJECTORY, spaced, RICH) == [True, False, False, True, False, True]
    records = records_of(spaced, RICH, b"{", TRAJECTORY, spaced)
    (_, rows), = convert(records).tables  # fmt: skip
    assert rows.column("offset").to_pylist() == [0, 1, 3, 4]


def test_tables_keep_the_order_of_their_first_rows() -> None:
    other = with_value("headrace.tool.called.v1", b'{"call_id":"c","tool":"t"}', 9)
    records: list[LogRecord] = [*records_of(b"{"), other, *records_of(RICH)]
    assert [table.name for table, _ in convert(records).tables] == ["events", "trajectories"]
    same(convert(records), convert_validated(records))


def test_running_out_of_memory_is_not_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str, typecode: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(trajectory_rows, "decode_array", fails)
    monkeypatch.setattr(
        trajectory_rows, "_COLUMNS", make_columns(SPEEDUPS.TRAJECTORY_FIELDS, SPEEDUPS.TRAJECTORY_COLUMNS)[0]
    )
    compressed = RICH.model_copy(update={"segments": [SEGMENT.model_copy(update={
        "token_ids": array("i", range(300)), "loss_mask": array("b", [0] * 298 + [1, 1]),
    })]})  # fmt: skip
    with pytest.raises(MemoryError):
        convert(records_of(compressed))


def test_arguments_of_another_type_are_refused() -> None:
    columns: Any
    columns, _ = make_columns(SPEEDUPS.TRAJECTORY_FIELDS, SPEEDUPS.TRAJECTORY_COLUMNS)
    with pytest.raises(TypeError):
        columns.take("{}")
    with pytest.raises(LookupError, match="no field trajectory_id"):
        type(columns)(shape=[], difficulty=(), decode_array=None, max_array_bytes=0, max_logprob=0)


@beside_a_current_module
@pytest.mark.parametrize("field", ["continuations", "turns.segment", "tools.seconds", "started.*", "defects"])
def test_an_older_module_leaves_trajectories_with_a_new_field_to_python(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [each for each in SPEEDUPS.TRAJECTORY_FIELDS.split() if each.partition("=")[0] != field]
    columns, lag = make_columns(" ".join(known), SPEEDUPS.TRAJECTORY_COLUMNS)
    assert lag
    monkeypatch.setattr(trajectory_rows, "_COLUMNS", columns)
    assert taken(RICH, TRAJECTORY) == [False, False]


@beside_a_current_module
def test_an_older_module_leaves_a_new_defect_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SPEEDUPS.TRAJECTORY_FIELDS.replace("|oversize", "")
    columns, lag = make_columns(known, SPEEDUPS.TRAJECTORY_COLUMNS)
    assert lag == NativeLag(values=frozenset({(Trajectory.TYPE, "defects", "oversize")}))
    monkeypatch.setattr(trajectory_rows, "_COLUMNS", columns)
    assert taken(RICH, TRAJECTORY) == [False, True]


@beside_a_current_module
@pytest.mark.parametrize("column", [Column("new", COUNT, ""), Column("turns", TEXT, "")])
def test_a_table_that_the_module_cannot_fill_is_filled_by_python(
    column: Column, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(each for each in tables.TRAJECTORIES.columns if each.name != column.name)
    monkeypatch.setattr(
        trajectory_rows, "TRAJECTORIES", dataclasses.replace(tables.TRAJECTORIES, columns=(*others, column))
    )
    columns, lag = make_columns(SPEEDUPS.TRAJECTORY_FIELDS, SPEEDUPS.TRAJECTORY_COLUMNS)
    assert columns is None
    assert f"the column {column.name} of trajectories" in str(lag)


def test_a_tombstone_has_no_row() -> None:
    (record,) = records_of(RICH)
    assert isinstance(record, StoredRecord)
    record = dataclasses.replace(record, value=None)
    same(convert([record]), convert_validated([record]))
