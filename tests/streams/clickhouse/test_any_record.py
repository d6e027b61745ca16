"""Any record that the schema accepts is stored or a dead letter, and its neighbours are stored."""

import copy
import json
import random
from time import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.examples import EXAMPLES
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.rows import RowOrigin, to_rows
from headrace.streams.clickhouse.schema import ensure_tables
from headrace.streams.clickhouse.tables import STORED_TOPICS
from headrace.streams.raw import StoredRecord

ODD: list[Any] = [
    0, -1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**64, 10**400, -(2**70), 1.5, -0.0, 1e308, 5e-324, True, None,
    "", "\x00", "\ud800", "naïve 🙂\u2028", "x" * 300_000, [], {}, [0], [None], {"": None}, {"a": 2**40},
    {"x" * 1000: 1e308},
    [2**40], ["a"] * 1000, {str(n): n for n in range(1000)},
]  # fmt: skip


NOW_MS = int(time() * 1000)
"""Rows of older records expire."""
STORED = sorted(name for name, example in EXAMPLES.items() if example.topic in STORED_TOPICS)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in ``value``, branches included."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += leaves(child, (*path, key))
    return found


def with_odd(example: Any, choose: Any) -> Any:
    """``example`` with some of its values replaced."""
    odd = copy.deepcopy(example)
    for _ in range(choose([1, 1, 2, 3])):
        places = leaves(odd)
        if not places:
            break
        *path, last = choose(places)
        parent = odd
        for key in path:
            parent = parent[key]
        parent[last] = copy.deepcopy(choose(ODD))
    return odd


def record_of(name: str, choose: Any, offset: int) -> StoredRecord:
    example = EXAMPLES[name]
    value = json.dumps(with_odd(json.loads(example.message.value), choose)).encode()
    odd_headers = {
        "ce_time": [b"1601-01-01T00:00:00Z", b"2199-12-31T23:59:59Z", b"9999-12-31T23:59:59Z", b"2026-01-01T00:00:00Z"],
        "ce_sequence": [b"0", b"65535", b"4294967296", b"999999999999999999"],
        "ce_subject": [b"", b"\x00", b"x" * 600, "naïve".encode()],
    }
    headers = [
        (key, choose(odd_headers[key]) if key in odd_headers and choose([True, False, False]) else content)
        for key, content in example.message.headers
    ]
    return StoredRecord(example.topic.name, 0, offset, NOW_MS, example.message.key, value, headers)


def is_readable(record: StoredRecord) -> bool:
    try:
        decode(record.headers, record.value)
    except UnreadableRecord:
        return False
    return True


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_record_is_stored_or_a_dead_letter_alone(data: st.DataObject) -> None:
    def choose(values: list[Any]) -> Any:
        return data.draw(st.sampled_from(values))

    name = choose(STORED)
    example = EXAMPLES[name].message
    neighbours = [StoredRecord(EXAMPLES[name].topic.name, 0, n, 1, b"", example.value, example.headers) for n in (0, 2)]
    odd = record_of(name, choose, 1)
    batch = convert([neighbours[0], odd, neighbours[1]])
    rows = {offset for _, table in batch.tables for offset in table.column("offset").to_pylist()}
    aside = [record.offset for record, _ in batch.unreadable + batch.unstorable]
    has_rows = {
        n.offset for n in neighbours if to_rows(*decode(n.headers, n.value), RowOrigin(0, 0, 1), n.value or b"")
    }
    assert rows - {1} == has_rows
    assert aside in ([], [1])
    if aside:
        assert 1 not in rows
        assert [record.offset for record, _ in batch.unreadable] == ([] if is_readable(odd) else [1])
    elif has_rows:
        assert 1 in rows or not to_rows(*decode(odd.headers, odd.value), RowOrigin(0, 1, 1), odd.value or b"")


@pytest.mark.clickhouse
def test_the_database_accepts_all_converted_rows(clickhouse: str) -> None:
    rng = random.Random(7)
    names = sorted(EXAMPLES)
    records = [record_of(names[n % len(names)], rng.choice, n) for n in range(1500)]
    readable = [record for record in records if is_readable(record)]
    assert 100 < len(readable) < 1500
    batch = convert(records)
    assert len(batch.unreadable) == len(records) - len(readable)
    client = open_client(clickhouse)
    ensure_tables(client)
    for table, rows in batch.tables:
        insert(client, table, rows, f"odd:{table.name}")
        # Rows of one key are one row, and the examples' ids repeat.
        keys = set(
            zip(*(rows.column("id_sent" if name == "id" else name).to_pylist() for name in table.key), strict=True)
        )
        assert client.query(f"SELECT count() FROM {table.name} FINAL").result_rows[0][0] == len(keys)
        # Every value can be read back.
        assert client.query(f"SELECT * FROM {table.name} FINAL").row_count == len(keys)
