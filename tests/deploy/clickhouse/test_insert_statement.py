"""An insert is split from its data in one pass, whatever its content."""

import time

import pytest

from headrace.deploy.clickhouse.insert_statement import Insert, split_insert


@pytest.mark.parametrize(
    ("text", "head", "input_format", "data"),
    [
        (b"INSERT INTO t FORMAT Native\n\x01FORMAT CSV", "INSERT INTO t ", "Native", b"\x01FORMAT CSV"),
        (b"insert into `d b`.`t` (`a`, `b c`) format CSV 1,2", "insert into `d b`.`t` (`a`, `b c`) ", "CSV", b"1,2"),
        (b"INSERT INTO t SETTINGS async_insert=0 FORMAT TSV\n1", "INSERT INTO t SETTINGS async_insert=0 ", "TSV", b"1"),
        (b"INSERT INTO t FORMAT Arrow", "INSERT INTO t ", "Arrow", b""),
        (b"INSERT INTO t FORMAT CSV;", "INSERT INTO t ", "CSV", b""),
        (b"INSERT INTO t VALUES (1, 'FORMAT CSV')", "INSERT INTO t ", "Values", b" (1, 'FORMAT CSV')"),
        (b"INSERT INTO t VALUES (1); DROP TABLE t", "INSERT INTO t ", "Values", b" (1); DROP TABLE t"),
        (b"/* INSERT INTO x VALUES */ INSERT INTO \"format\" (\"select\") FORMAT CSV\n1",
         '/* INSERT INTO x VALUES */ INSERT INTO "format" ("select") ', "CSV", b"1"),
        (b"-- FORMAT\nINSERT INTO t (format, values) FORMAT CSV\n",
         "-- FORMAT\nINSERT INTO t (format, values) ", "CSV", b""),
    ],
)  # fmt: skip
def test_an_insert_is_split_from_its_data(text: bytes, head: str, input_format: str, data: bytes) -> None:
    assert split_insert(text) == Insert(head, input_format, data)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"INSERT",
        b"INSERT INTO t SELECT 'FORMAT CSV x'",
        b"INSERT INTO t WITH 1 AS x SELECT x FORMAT CSV",
        b"INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV",
        b"INSERT INTO FUNCTION file('x') FORMAT CSV\n1",
        b"SELECT 1 FORMAT CSV",
        b"INSERT INTO t 'unfinished FORMAT CSV",
        b"INSERT INTO t /* unfinished FORMAT CSV",
    ],
)
def test_text_without_data_is_a_statement(text: bytes) -> None:
    assert split_insert(text) is None


@pytest.mark.parametrize(
    "unit",
    [
        b" ",
        b"/*",
        b"/**/",
        b"--\n",
        b"`a` ",
        b"a.",
        b"(",
        b"''",
        b"\\",
        b"'\\",
        b'"',
        b"FORMAT ",
        b"SETTINGS x ",
        b"\xff",
    ],
)
def test_the_time_is_linear_in_the_length_of_the_text(unit: bytes) -> None:
    def seconds(length: int) -> float:
        texts = [
            begin + unit * (length // len(unit)) + end
            for begin in (b"", b"INSERT INTO ", b"INSERT INTO t (", b"INSERT INTO t ", b"INSERT INTO t SETTINGS ")
            for end in (b"", b"x", b" FORMA")
        ]
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            for text in texts:
                split_insert(text)
            best = min(best, time.process_time() - begun)
        return best

    # Sixteen times the text takes sixteen times as long, not 256 times. The second is for coarse clocks.
    assert seconds(128_000) < 64 * seconds(8_000) + 1
