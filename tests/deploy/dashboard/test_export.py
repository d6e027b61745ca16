"""Panels as files."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headrace.deploy.dashboard.export import CSV_ROWS, ROW_GROUP, FileFormat, pieces, read_pieces
from headrace.deploy.dashboard.panel import Panel
from headrace.streams.clickhouse.database import open_client

COLUMNS = {"name": ["a,b", 'say "hi"', "=SUM(A1)"], "value": [1.5, None, -2.0], "n": [1, 2, 3]}


def to_file(columns: dict[str, Any], file_format: FileFormat, batch: int = 2) -> bytes:
    table = pa.table(columns)
    return b"".join(pieces(table.schema, table.to_batches(max_chunksize=batch), file_format))


def rows_of(content: bytes) -> Sequence[Sequence[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


def test_csv_quotes_text_and_leaves_missing_values_empty() -> None:
    rows = rows_of(to_file(COLUMNS, FileFormat.CSV))
    assert rows == [["name", "value", "n"], ["a,b", "1.5", "1"], ['say "hi"', "", "2"], ["'=SUM(A1)", "-2.0", "3"]]


def test_parquet_holds_texts_and_types_as_they_are() -> None:
    table = parquet.read_table(io.BytesIO(to_file(COLUMNS, FileFormat.PARQUET)))
    assert table.to_pydict() == COLUMNS


def test_a_number_that_is_not_finite_is_missing() -> None:
    columns = {"value": [math.nan, math.inf, 0.5]}
    assert rows_of(to_file(columns, FileFormat.CSV)) == [["value"], [""], [""], ["0.5"]]
    assert parquet.read_table(io.BytesIO(to_file(columns, FileFormat.PARQUET))).to_pydict() == {
        "value": [None, None, 0.5]
    }


@pytest.mark.parametrize("file_format", FileFormat)
def test_a_result_without_rows_is_a_file_with_the_names_of_its_columns(file_format: FileFormat) -> None:
    content = to_file({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())}, file_format)
    names = (
        content.decode().strip().split(",")
        if file_format is FileFormat.CSV
        else parquet.read_table(io.BytesIO(content)).column_names
    )
    assert names == ["a", "b"]


@pytest.mark.parametrize("file_format", FileFormat)
def test_a_long_result_is_made_in_pieces_while_it_is_read(file_format: FileFormat) -> None:
    read = 0
    batch = pa.record_batch({"n": list(range(ROW_GROUP // 4))})

    def batches() -> Any:
        nonlocal read
        for _ in range(16):
            read += 1
            yield batch

    made = pieces(batch.schema, batches(), file_format)
    next(made)
    next(made)
    assert read <= 8  # a piece leaves before the rest of the result has come
    sizes = [len(piece) for piece in made]
    assert len(sizes) >= 2
    assert max(sizes) < (CSV_ROWS * 8 if file_format is FileFormat.CSV else ROW_GROUP * 16)


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))))
def test_no_cell_of_csv_begins_as_a_formula(texts: list[str]) -> None:
    content = to_file({"n": list(range(len(texts))), "text": pa.array(texts, pa.string())}, FileFormat.CSV)
    cells = [row[1] for row in rows_of(content)[1:]]
    assert [cell.removeprefix("'") for cell in cells] == [text.removeprefix("'") for text in texts]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


@pytest.mark.clickhouse
def test_a_result_of_clickhouse_has_its_types_and_a_column_for_each_key_of_a_map(clickhouse_reader: str) -> None:
    client = open_client(clickhouse_reader)
    plain = Panel(
        "p",
        "",
        "SELECT toLowCardinality(toString(number)) AS t, number AS n, if(number = 1, NULL, number / 0) AS f, "
        "[toString(number)] AS l FROM numbers({count:UInt32})",
    )
    table = parquet.read_table(io.BytesIO(b"".join(read_pieces(client, plain, {"count": "2"}, FileFormat.PARQUET))))
    assert table.to_pydict() == {"t": ["0", "1"], "n": [0, 1], "f": [None, None], "l": [["0"], ["1"]]}
    assert table.schema.field("n").type == pa.uint64()
    mapped = Panel("p", "", "SELECT number AS n, map('loss', number / 2) AS metrics FROM numbers({count:UInt32})")
    content = b"".join(read_pieces(client, mapped, {"count": "2"}, FileFormat.CSV))
    assert rows_of(content) == [["n", "metrics.loss"], ["0", "0.0"], ["1", "0.5"]]
    client.close()
