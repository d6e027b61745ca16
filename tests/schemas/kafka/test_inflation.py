"""aiokafka's own readers skip batches that decompress to too much; batches within the bound are read unchanged."""

import io
import logging
import resource
import struct
from collections.abc import Callable

import aiokafka.codec
import aiokafka.consumer.fetcher
import cramjam
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition

from headrace.schemas.kafka import clients, inflation
from headrace.schemas.kafka.inflation import MAX_INFLATED_BYTES, InflatedError, largest_lz4

assert clients  # importing it is what bounds aiokafka

CODECS: dict[str, tuple[int, Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip": (1, lambda raw: aiokafka.codec.gzip_encode(raw, 1), inflation.gzip_inflated),
    "lz4": (3, aiokafka.codec.lz4_encode, inflation.lz4_inflated),
    "zstd": (4, aiokafka.codec.zstd_encode, inflation.zstd_inflated),
}
TEXTS = [b"", b"a", bytes(range(256)) * 300, b"ab" * 700_000, bytes(5_000_000)]
BOMB = bytes(MAX_INFLATED_BYTES + 1_000_000)


def batch(codec: int, offset: int, *values: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 2**31)
    for place, value in enumerate(values):
        builder.append(place, timestamp=1_700_000_000_000, key=None, value=value, headers=[])
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, offset)
    return bytes(built)


def read(fetched: bytes) -> tuple[list[tuple[int, int]], int]:
    """Offset and size of every record that a consumer returns, and its next offset."""
    fetcher = aiokafka.consumer.fetcher
    records = fetcher.PartitionRecords(
        TopicPartition("feedback", 0), fetcher.MemoryRecords(fetched), [], 0, None, None, True, fetcher.READ_COMMITTED
    )
    return [(each.offset, len(each.value)) for each in records], records.next_fetch_offset


@pytest.mark.parametrize("name", CODECS)
def test_batches_within_the_bound_are_unchanged(name: str) -> None:
    codec, encode, decode = CODECS[name]
    for text in TEXTS:
        assert decode(encode(text)) == text
    assert read(batch(codec, 5, b"one", b"x" * 1_000_000)) == ([(5, 3), (6, 1_000_000)], 7)


@pytest.mark.parametrize("name", CODECS)
def test_a_batch_that_decompresses_to_too_much_is_skipped(name: str, caplog: pytest.LogCaptureFixture) -> None:
    codec, _, _ = CODECS[name]
    fetched = batch(codec, 0, b"one") + batch(codec, 1, b"two", BOMB) + batch(codec, 3, b"three")
    with caplog.at_level(logging.ERROR):
        assert read(fetched) == ([(0, 3), (3, 5)], 4)
    assert "offsets 1 to 2" in caplog.text


def test_an_oversized_batch_is_never_in_memory() -> None:
    """Ten gigabytes in one megabyte, the size that a topic of 1 MiB accepts."""
    frame = zstandard.ZstdCompressor().compress(bytes(2**30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InflatedError):
        inflation.zstd_inflated(frame * 10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * MAX_INFLATED_BYTES / 1024


def test_several_frames_form_one_payload() -> None:
    parts = [b"one" * 1000, b"two" * 1000]
    assert inflation.zstd_inflated(b"".join(map(aiokafka.codec.zstd_encode, parts))) == b"".join(parts)
    assert inflation.gzip_inflated(b"".join(map(aiokafka.codec.gzip_encode, parts))) == b"".join(parts)
    two = aiokafka.codec.lz4_encode(parts[0]) + aiokafka.codec.lz4_encode(BOMB)
    assert largest_lz4(two) > MAX_INFLATED_BYTES


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 9_000_000])
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_the_lz4_size_estimate_is_a_close_upper_bound(size: int, linked: bool, checksum: bool) -> None:
    for text in (bytes(size), bytes(range(251)) * (size // 251)):
        out = cramjam.lz4.Compressor(content_checksum=checksum, block_linked=linked)
        out.compress(io.BytesIO(text).read())
        frame = bytes(out.finish())
        assert len(text) <= largest_lz4(frame) <= len(text) + 4 * 1024 * 1024
