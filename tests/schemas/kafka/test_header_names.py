"""Records with header names that are not UTF-8 are read, and so is everything after them."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

import headrace.schemas.kafka.clients  # noqa: F401  # installs the reader
from headrace.schemas.kafka.header_names import LenientRecords

PLACE = TopicPartition("events", 0)


class NotUtf8(str):
    """A header name with two bytes that are not UTF-8."""

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfeid"


def batch(first: int, *names: str, compression: int = 0) -> bytes:
    """Returns a batch with a record for each of ``names``, its only header's name."""
    builder = _DefaultRecordBatchBuilderPy(
        magic=2, compression_type=compression, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, name in enumerate(names):
        builder.append(offset, 1_700_000_000_000, b"k", b"v%d" % (first + offset), headers=[(name, b"\xff")])
    built = builder.build()
    built[:8] = first.to_bytes(8, "big")
    return bytes(built)


def read(fetched: bytes, start: int = 0) -> list[Any]:
    """Returns what a consumer reads of ``fetched`` from the offset ``start`` on."""
    unpacked = fetcher.PartitionRecords(PLACE, fetcher.MemoryRecords(fetched), [], start, None, None, True, 0)
    return list(unpacked)


@pytest.mark.parametrize("compression", [0, 1], ids=["plain", "gzip"])
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_a_header_name_that_is_not_utf8_stops_no_partition(compression: int, start: int) -> None:
    fetched = (
        (b"" if start else batch(0, "id"))
        + batch(1, "id", NotUtf8("id"), "é", compression=compression)
        + batch(4, "id", "id")
    )
    found = read(fetched, start)
    assert [record.offset for record in found] == list(range(start, 6))
    assert [record.value for record in found] == [b"v%d" % offset for offset in range(start, 6)]
    names = ["id", "id", "\ufffd\ufffdid", "é", "id", "id"]
    assert [record.headers for record in found] == [((name, b"\xff"),) for name in names[start:]]
    assert {record.timestamp for record in found} == {1_700_000_000_000}


def test_the_size_is_that_of_all_batches() -> None:
    fetched = batch(0, "id") + batch(1, "id")
    assert LenientRecords(fetched).size_in_bytes() == len(fetched)
