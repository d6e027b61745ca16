"""Frames of a spool: what was written is read back; damage leaves a prefix of it and a description of the rest."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.spool_frames import (
    CLUSTER_BYTES,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameReader,
    Loss,
    RecordTooLarge,
    SpooledRecord,
    cluster_fingerprint,
    cluster_of,
    frame_of,
    header_of,
)

CLUSTER = cluster_fingerprint("broker:9092")

names = st.text(max_size=12)
values = st.binary(max_size=40)
spooled_records = st.builds(
    SpooledRecord,
    topic=names,
    key=st.none() | values,
    value=st.none() | values,
    headers=st.lists(st.tuples(names, values), max_size=3).map(tuple),
    timestamp_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
)
files = st.lists(spooled_records, max_size=6)


def file_of(records: list[SpooledRecord]) -> bytes:
    return header_of(CLUSTER) + b"".join(map(frame_of, records))


def read(data: bytes) -> tuple[list[SpooledRecord], Loss | None]:
    reader, found = FrameReader(data), list[SpooledRecord]()
    while (record := reader.next()) is not None:
        found.append(record)
    assert reader.next() is None, "the end stays the end"
    return found, reader.loss


@given(files)
def test_records_are_read_as_they_were_written(records: list[SpooledRecord]) -> None:
    assert read(file_of(records)) == (records, None)


@given(files, st.data())
def test_a_file_that_was_cut_gives_its_whole_frames(records: list[SpooledRecord], data: st.DataObject) -> None:
    whole = file_of(records)
    size = data.draw(st.integers(0, len(whole)))
    ends = [HEADER_BYTES]
    for record in records:
        ends.append(ends[-1] + len(frame_of(record)))
    complete = sum(end <= size for end in ends[1:])
    found, loss = read(whole[:size])
    assert found == records[:complete]
    if size in ends:
        assert loss is None
    elif size < HEADER_BYTES:
        assert loss == Loss(0, size, 0, is_torn=True)
    else:
        assert loss == Loss(ends[complete], size - ends[complete], 1, is_torn=True)


@given(files.filter(bool), st.data())
def test_a_flipped_bit_ends_the_file_before_its_frame(records: list[SpooledRecord], data: st.DataObject) -> None:
    whole = bytearray(file_of(records))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    starts = [HEADER_BYTES]
    for record in records:
        starts.append(starts[-1] + len(frame_of(record)))
    intact = max(0, sum(start <= at for start in starts) - 1)
    found, loss = read(bytes(whole))
    assert loss is not None
    assert found == (records[:intact] if at >= HEADER_BYTES else [])
    assert loss.offset == (starts[intact] if at >= HEADER_BYTES else 0)
    assert loss.size == len(whole) - loss.offset
    is_length = at >= HEADER_BYTES and at - starts[intact] < 4
    lost = len(records) - len(found)
    assert loss.records >= 1 if is_length else loss.records == lost


@given(files, st.integers(1, 200))
def test_zeros_at_the_end_were_never_written(records: list[SpooledRecord], zeros: int) -> None:
    whole = file_of(records)
    assert read(whole + bytes(zeros)) == (records, Loss(len(whole), zeros, 1, is_torn=True))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_to_the_end(data: bytes) -> None:
    found, loss = read(data)
    assert found == [] or cluster_of(data) is not None
    found, loss = read(header_of(CLUSTER) + data)
    assert loss is not None or not data
    assert len(found) <= len(data) // 8


def test_a_valid_checksum_of_another_content_is_damage() -> None:
    """A later version may write frames of another form."""
    payload = b"another form of a payload, long enough"
    size = struct.pack("<I", len(payload))
    frame = size + struct.pack("<I", crc32(payload, crc32(size))) + payload
    whole = header_of(CLUSTER) + frame + frame_of(SpooledRecord("t", None, None))
    assert read(whole) == ([], Loss(HEADER_BYTES, len(whole) - HEADER_BYTES, 2, is_torn=False))


@given(spooled_records, st.data())
def test_a_payload_that_is_longer_or_shorter_than_its_record_is_damage(
    record: SpooledRecord, data: st.DataObject
) -> None:
    payload = frame_of(record)[8:]
    changed = data.draw(st.sampled_from([payload + b"\0", *(payload[:size] for size in range(len(payload)))]))
    size = struct.pack("<I", len(changed))
    file = header_of(CLUSTER) + size + struct.pack("<I", crc32(changed, crc32(size))) + changed
    found, loss = read(file)
    assert (found, loss is None) == ([], False)


def test_a_record_beyond_the_limit_is_refused() -> None:
    with pytest.raises(RecordTooLarge, match="67,108,864"):
        frame_of(SpooledRecord("t", None, bytes(MAX_PAYLOAD_BYTES)))
    with pytest.raises(RecordTooLarge, match="65,536 headers"):
        frame_of(SpooledRecord("t", None, None, (("h", b""),) * 65_536))


@given(st.lists(names, max_size=4), st.lists(names, max_size=4))
def test_different_settings_have_different_fingerprints(one: list[str], other: list[str]) -> None:
    assert (cluster_fingerprint(*one) == cluster_fingerprint(*other)) is (one == other)
    assert cluster_of(header_of(cluster_fingerprint(*one)) + b"x") == cluster_fingerprint(*one)


def test_a_header_needs_a_whole_fingerprint() -> None:
    with pytest.raises(ValueError, match="expected 32"):
        header_of(bytes(CLUSTER_BYTES - 1))


def test_the_header_of_another_version_is_none_of_this_one() -> None:
    other = b"HRSPOOL2" + CLUSTER
    assert cluster_of(other + struct.pack("<I", crc32(other))) is None
