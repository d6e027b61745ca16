"""`headrace query`."""

import io

import pytest
from click.testing import CliRunner
from pyarrow import parquet

from headrace.deploy.cli import cli

pytestmark = pytest.mark.clickhouse


def test_a_format_that_is_not_text_is_written_as_it_is(clickhouse_reader: str) -> None:
    sql = "SELECT number, char(255, 7) AS odd FROM numbers(3)"
    done = CliRunner().invoke(cli, ["query", sql, "--format", "Parquet", "--clickhouse", clickhouse_reader])
    assert done.exit_code == 0, done.output
    assert parquet.read_table(io.BytesIO(done.stdout_bytes)).column("number").to_pylist() == [0, 1, 2]


def test_sql_comes_from_standard_input_too(clickhouse_reader: str) -> None:
    options = ["query", "-", "--format", "TabSeparated", "--clickhouse", clickhouse_reader]
    done = CliRunner().invoke(cli, options, input="SELECT 'it''s', 1\n")
    assert done.stdout == "it\\'s\t1\n"
    assert "at most 1,000,000" in CliRunner().invoke(cli, options, input="x" * 1_000_001).output


def test_control_characters_in_text_do_not_reach_the_terminal(clickhouse_reader: str) -> None:
    done = CliRunner().invoke(
        cli, ["query", "SELECT char(27)", "--format", "TabSeparatedRaw", "--clickhouse", clickhouse_reader]
    )
    assert done.stdout == "\\x1b\n"
