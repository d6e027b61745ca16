"""Next to each bound the fold with the fast path matches the fold without it."""

from array import array
from collections.abc import Iterator
from math import inf, isfinite, nan

import pytest

from headrace.schemas.arrays import MAX_LOGPROB, encode_array
from headrace.schemas.bounds import MAX_TIME_MS
from headrace.schemas.envelope import SEQUENCE
from headrace.streams.assembly.arrival import arrival_of, plain_arrival_of
from headrace.streams.assembly.assemble import _conclude
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.segments import MAX_TOKENS
from headrace.streams.assembly.trajectory_writer import plainly_written
from headrace.streams.raw import StoredRecord
from tests.streams.builders import T0, called, event, log, session, started, with_header
from tests.streams.native.built import needs_speedups
from tests.streams.native.test_ordinary_events import fast, slow, state
from tests.streams.native.test_trajectories import history_of

pytestmark = needs_speedups

ONE, OTHER = session("s1", "ask", "tool", "ask"), session("s2", "ask", "prune", "ask")
RECORDS = log([record for pair in zip(ONE, OTHER, strict=False) for record in pair])


def agree(records: list[StoredRecord], limits: FoldLimits) -> None:
    """Compare both paths after every record."""
    quick, plain = PartitionFold(limits), PartitionFold(limits)
    for at, record in enumerate(records):
        assert fast(quick, [arrival_of(record)]) == slow(plain, [plain_arrival_of(record)])
        assert state(quick, at + 1) == state(plain, at + 1)


def reached() -> Iterator[tuple[str, int]]:
    """Limits, and the values that ``RECORDS`` reach."""
    fold = PartitionFold(FoldLimits())
    for record in RECORDS:
        arrival = plain_arrival_of(record)
        fold.arrive(arrival)
        yield "max_event_bytes", arrival.size
        yield "max_open_bytes", fold.held_bytes
        yield "max_open", fold.open_count
        for trajectory in fold._open.values():
            yield "max_trajectory_bytes", trajectory.size
            yield "max_trajectory_events", len(trajectory.records)


@pytest.mark.parametrize(
    "name", ["max_event_bytes", "max_open_bytes", "max_open", "max_trajectory_bytes", "max_trajectory_events"]
)
def test_values_at_and_next_to_a_bound(name: str) -> None:
    values = {value for field, value in reached() if field == name}
    assert len(values) > 1
    for limit in {value + beside for value in values for beside in (-1, 0, 1)} - {0}:
        agree(RECORDS, FoldLimits(**{name: limit}))


@pytest.mark.parametrize("digits", [17, 18, 19, 20])
@pytest.mark.parametrize("digit", [b"0", b"9"])
def test_a_sequence_number_of_any_length(digits: int, digit: bytes) -> None:
    agree([RECORDS[0], with_header(RECORDS[2], SEQUENCE, digit * (digits - 1) + b"1")], FoldLimits())


@pytest.mark.parametrize("name", ["ce_id", "ce_type", "ce_source", "ce_subject", "traceparent", "other"])
@pytest.mark.parametrize("length", [511, 512, 513, 2047, 2048, 2049])
def test_a_header_of_any_length(name: str, length: int) -> None:
    agree([with_header(RECORDS[0], name, b"s" * length), *RECORDS[1:4]], FoldLimits())


@pytest.mark.parametrize("timestamp", [-1, 0, 1, T0, MAX_TIME_MS - 1, MAX_TIME_MS, MAX_TIME_MS + 1])
def test_a_timestamp_at_either_end(timestamp: int) -> None:
    first = RECORDS[0]
    at_the_end = StoredRecord(first.topic, 0, 0, timestamp, first.key, first.value, first.headers)
    agree([at_the_end, *RECORDS[1:4]], FoldLimits())


@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_a_trajectory_with_the_most_tokens(beside: int) -> None:
    call = called(array("i", range(MAX_TOKENS - 2 + beside)), [1, 2])
    history = history_of([event("s1", 0, started()), event("s1", 1, call)])
    written = plainly_written(history)
    assert written is not None
    assert written == _conclude(history)[0].message
    assert (b'"oversize"' in written.value) == (beside > 0)


@pytest.mark.parametrize("logprob", [-1e6, -0.5, 0.0, 0.99 * MAX_LOGPROB, 1.01 * MAX_LOGPROB, 0.5, 1.0, inf, -inf, nan])
def test_a_log_probability_above_the_bound_is_left_to_the_model(logprob: float) -> None:
    plain, odd = (encode_array(array("f", [value])).encode() for value in (-0.5, logprob))
    value = event("s1", 1, called([1], [2])).value
    assert value is not None
    assert value.count(plain) == 1
    history = history_of([event("s1", 0, started()), event("s1", 1, called([1], [2]), value=value.replace(plain, odd))])
    written, expected = plainly_written(history), _conclude(history)[0].message
    fits = isfinite(logprob) and logprob <= MAX_LOGPROB
    assert (written is not None, b"bad_event" in expected.value) == (fits, not fits)
    assert written is None or written == expected


@pytest.mark.parametrize("time_ms", [0, 1, 2])
@pytest.mark.parametrize("closed_ms", [-5, -1, 0, 1])
def test_times_at_the_beginning_of_the_epoch(time_ms: int, closed_ms: int) -> None:
    records = [event("s1", number, fact, time_ms=time_ms) for number, fact in enumerate((started(), called([1], [2])))]
    history = history_of(records, closed_ms=closed_ms)
    written = plainly_written(history)
    assert written is not None
    assert written == _conclude(history)[0].message
    assert b'"started_ms":%d,"ended_ms":%d,' % (time_ms, time_ms) in written.value
