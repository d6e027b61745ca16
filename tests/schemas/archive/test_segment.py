"""Segments of the archive: every record survives, a changed file is refused."""

from io import BytesIO

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.archive.layout import first_of, folder_of, path_of
from headrace.schemas.archive.segment import (
    END_BYTES,
    ROW_GROUP,
    ArchivedRecord,
    LogPart,
    SegmentUnreadable,
    read_segment,
    summary_of,
    to_parquet,
)

PART = LogPart("events", "Yq3-x_", 2, 100, 1_000_000)


def record(offset: int, **changes: object) -> ArchivedRecord:
    values: dict[str, object] = {
        "timestamp": 1_790_000_000_000 + offset, "key": b"t-1", "value": b"{}", "headers": (("ce_type", b"x"),),
    }  # fmt: skip
    return ArchivedRecord(PART.topic, PART.partition, offset, **(values | changes))  # type: ignore[arg-type]


@st.composite
def histories(draw: st.DrawFn) -> list[ArchivedRecord]:
    offsets = draw(st.lists(st.integers(PART.first, PART.stop - 1), unique=True, min_size=1, max_size=20))
    octets = st.none() | st.binary(max_size=30)
    names = st.text(max_size=8)
    return [
        record(
            offset,
            timestamp=draw(st.integers(-1, 2**63 - 1)),
            key=draw(octets),
            value=draw(octets),
            headers=tuple(draw(st.lists(st.tuples(names, octets), max_size=4))),
        )
        for offset in sorted(offsets)
    ]


@given(histories())
def test_every_record_is_read_as_it_was_written_with_odd_times_missing_payloads_and_repeated_headers(
    history: list[ArchivedRecord],
) -> None:
    file = to_parquet(PART, history)
    assert [each for records in read_segment(file, PART) for each in records] == history
    summary = summary_of(file[-END_BYTES:])
    assert (summary.part, summary.records) == (PART, len(history))
    assert summary.newest_ms == max(each.timestamp for each in history)
    assert to_parquet(PART, history) == file, "a repeated range gives the same file"


def test_a_footer_is_read_from_the_end_of_a_large_file() -> None:
    file = to_parquet(PART, [record(PART.first + number) for number in range(12 * ROW_GROUP)])
    assert summary_of(file[-END_BYTES:]).records == 12 * ROW_GROUP


def test_pandas_reads_the_columns_under_their_names() -> None:
    file = to_parquet(PART, [record(100, value=b'{"a": 1}'), record(101, key=None)])
    frame = pandas.read_parquet(BytesIO(file))
    assert list(frame.columns) == ["offset", "timestamp_ms", "key", "value", "headers"]
    assert frame["value"].tolist() == [b'{"a": 1}', b"{}"]
    assert pandas.isna(frame["key"][1])
    assert [dict(each) for each in frame["headers"][0]] == [{"name": "ce_type", "value": b"x"}]


def test_a_segment_of_another_range_is_refused() -> None:
    file = to_parquet(PART, [record(100)])
    with pytest.raises(SegmentUnreadable, match="instead of"):
        list(read_segment(file, LogPart("events", "Yq3-x_", 3, 100, 1_000_000)))


@given(st.data())
def test_a_damaged_file_is_refused_or_says_what_it_said(data: st.DataObject) -> None:
    history = [record(offset, value=b"payload %d" % offset) for offset in range(100, 120)]
    file = bytearray(to_parquet(PART, history))
    at = data.draw(st.integers(4, len(file) - 1))
    file[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = [each for records in read_segment(bytes(file), PART) for each in records]
    except SegmentUnreadable:
        return
    assert found == history


@pytest.mark.parametrize("file", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_file_is_refused(file: bytes) -> None:
    with pytest.raises(SegmentUnreadable):
        summary_of(file)


def test_a_segment_is_named_by_its_first_offset() -> None:
    path = path_of("events", "Yq3-x_", 2, 7104)
    assert path == "archive/topic=events/log=Yq3-x_/partition=2/00000000000000007104.parquet"
    assert path.startswith(folder_of("events", "Yq3-x_", 2))
    assert first_of(path) == 7104
    assert folder_of("alerts", "t5uNd+1//fw==", 0) == "archive/topic=alerts/log=t5uNd-1__fw/partition=0"
    assert first_of("archive/x/7104.parquet") is None
    assert first_of("archive/x/00000000000000007104.tmp") is None
