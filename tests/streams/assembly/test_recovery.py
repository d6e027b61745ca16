"""A restart reads only the end of a trajectory's record, with the same result as reading all of it."""

from collections.abc import Callable
from dataclasses import replace
from time import thread_time
from unittest.mock import patch

import msgspec
import pytest

from headrace.streams.assembly import recovery
from headrace.streams.assembly.assemble import outputs_of
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History
from headrace.streams.assembly.recovery import emitted_of
from headrace.streams.raw import StoredRecord
from tests.streams.builders import T0, event, facts, log, session, ticks


def record_of(records: list[StoredRecord]) -> StoredRecord:
    """The record of the one trajectory in ``records``."""
    fold = PartitionFold(FoldLimits())
    outcomes = [outcome for record in log([*records, *ticks(T0, T0 + 10**7)]) for outcome in fold.arrive(record)]
    (history,) = [outcome for outcome in outcomes if isinstance(outcome, History)]
    message = outputs_of(history)[0].message
    return StoredRecord("trajectories", 0, 7, T0, message.key, message.value, message.headers)


def by_all_of_it(record: StoredRecord) -> recovery.Emitted:
    with patch.object(recovery, "_TAIL", b"nowhere"):
        return emitted_of(record)


WHOLE = session("s1", "ask", "tool", "ask")
ODD_TASK = {"task": {"text": 'a ,"missing":[1,2] in a text', "missing": [1, 2], "x": {"a": 1, "missing": [3]}}}


@pytest.mark.parametrize(
    "records",
    [
        WHOLE,
        WHOLE[:-1],
        [*WHOLE[:2], *WHOLE[3:]],
        session('é "quoted"', "ask"),
        session("s1", "ask", start=ODD_TASK),
        [replace(WHOLE[0], value=None), *WHOLE[1:]],
        [event("s1", 0, facts("ask")[0], value=b'{"task_id":"t","agent":"a","task":{"a":1,"missing":[]}}')],
    ],
)
def test_the_end_of_a_record_gives_the_same_as_the_whole_record(records: list[StoredRecord]) -> None:
    record = record_of(records)
    assert emitted_of(record) == by_all_of_it(record)


def test_a_record_with_fields_in_another_order_is_read_whole() -> None:
    record = record_of(WHOLE)
    fields = msgspec.json.decode(record.value or b"")
    backwards = replace(record, value=msgspec.json.encode(dict(reversed(fields.items()))))
    assert emitted_of(backwards) == emitted_of(record)
    without_a_key = replace(record, key=None)
    assert emitted_of(without_a_key) == emitted_of(record)


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"a":1,"missing":[]}', b',"missing":[', b"\xff" * 9])
def test_a_record_that_is_no_trajectory_is_an_error(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="is not a trajectory"):
        emitted_of(replace(record_of(WHOLE), value=value))


def test_an_older_record_without_a_closed_offset_closes_at_its_last_record() -> None:
    record = record_of([*WHOLE[:2], *WHOLE[3:]])
    fields = msgspec.json.decode(record.value or b"")
    for name in ("missing_ranges", "missing_count", "closed_offset", "start_id"):
        del fields[name]
    old = emitted_of(replace(record, value=msgspec.json.encode(fields)))
    assert (old.closed_offset, old.remembered.gaps) == (
        fields["last"]["offset"] + 1,
        emitted_of(record).remembered.gaps,
    )


def test_reading_a_large_record_costs_only_its_end() -> None:
    bulk = event(
        "s1", 1, facts("tool")[2], value=b'{"call_id":"c","tool":"t","result":[' + b"0.125," * 150_000 + b"1]}"
    )
    large = record_of([WHOLE[0], bulk])
    assert len(large.value or b"") > 900_000, "the bulk is in the record"
    assert least_time(emitted_of, large) < least_time(by_all_of_it, large) / 4


def least_time(read: Callable[[StoredRecord], object], record: StoredRecord) -> float:
    """The least processor time of several tries, in seconds: on a busy machine some take many times as long."""
    tries = []
    for _ in range(10):
        begin = thread_time()
        read(record)
        tries.append(thread_time() - begin)
    return min(tries)
