"""Panels as files."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headrace.deploy.dashboard.export import FileFormat, to_file
from headrace.deploy.dashboard.panel import Columns

COLUMNS: Columns = {"name": ["a,b", 'say "hi"', "=SUM(A1)"], "value": [1.5, None, -2.0], "n": [1, 2, 3]}


def test_csv_quotes_text_and_leaves_missing_values_empty() -> None:
    rows = list(csv.reader(io.StringIO(to_file(COLUMNS, FileFormat.CSV).decode())))
    assert rows == [["name", "value", "n"], ["a,b", "1.5", "1"], ['say "hi"', "", "2"], ["'=SUM(A1)", "-2.0", "3"]]


def test_parquet_holds_texts_and_types_as_they_are() -> None:
    table = parquet.read_table(io.BytesIO(to_file(COLUMNS, FileFormat.PARQUET)))
    assert table.to_pydict() == COLUMNS


@pytest.mark.parametrize("file_format", FileFormat)
def test_a_result_without_rows_is_a_file_with_the_names_of_its_columns(file_format: FileFormat) -> None:
    content = to_file({"a": [], "b": []}, file_format)
    names = (
        content.decode().strip().split(",")
        if file_format is FileFormat.CSV
        else parquet.read_table(io.BytesIO(content)).column_names
    )
    assert names == ["a", "b"]


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))))
def test_no_cell_of_csv_begins_as_a_formula(texts: list[str]) -> None:
    content = to_file({"n": list(range(len(texts))), "text": list(texts)}, FileFormat.CSV).decode()
    cells = [row[1] for row in list(csv.reader(io.StringIO(content, newline="")))[1:]]
    assert [cell.removeprefix("'") for cell in cells] == [text.removeprefix("'") for text in texts]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
