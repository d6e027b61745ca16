"""The fold with the fast path matches the fold without it: same outcomes and same state after every record."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import SUBJECT, TYPE
from headrace.streams.assembly.arrival import KINDS, Arrival, arrival_of, plain_arrival_of
from headrace.streams.assembly.assemble import outputs_of
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.open_state import OpenState, PlainOpenState
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from tests.streams.assembly.any_log import LIMITS, messy_log
from tests.streams.builders import T0, log, session, with_header
from tests.streams.native.built import needs_speedups

pytestmark = needs_speedups


def state(fold: PartitionFold, position: int) -> dict[str, object]:
    """The whole state of a fold, with open trajectories by ID in each of its orders."""
    return {
        "stream_ms": fold.stream_ms,
        "duplicates": fold.duplicates,
        "held": (fold.held_events, fold.held_bytes),
        "resume": fold.resume_point(position),
        "deadline": fold.deadline_ms,
        "closed": fold.closed_count,
        "orders": [list(order) for order in (fold._open, fold._quiet, fold._ended, fold._remembered)],
        "open": [
            {name: getattr(trajectory, name) for name in PlainOpenState.__slots__ if name != "records"}
            | {"records": [(number, held.offset) for number, held in trajectory.records.items()]}
            for trajectory in fold._open.values()
        ],
        "remembered": list(fold._remembered.values()),
    }


def fast(fold: PartitionFold, records: Sequence[Arrival]) -> list[Outgoing]:
    """The outcomes of ``records``, using the fast path where possible."""
    found: list[Outgoing] = []
    index = 0
    while (index := fold.take_ordinary(records, index)) < len(records):
        found += [outgoing for outcome in fold.arrive(records[index]) for outgoing in outputs_of(outcome)]
        index += 1
    return found


def slow(fold: PartitionFold, records: Sequence[Arrival]) -> list[Outgoing]:
    """The same, one by one."""
    return [outgoing for record in records for outcome in fold.arrive(record) for outgoing in outputs_of(outcome)]


BOUNDED = LIMITS | st.builds(
    FoldLimits,
    max_event_bytes=st.sampled_from([400, 1500]),
    max_trajectory_bytes=st.sampled_from([5_000, 1_000_000]),
    max_trajectory_events=st.sampled_from([3, 6]),
    max_open=st.sampled_from([1, 2, 100]),
    remember=st.sampled_from([1, 100]),
    idle_timeout_ms=st.sampled_from([20, 600_000]),
)


@given(messy_log(), BOUNDED, st.lists(st.integers(1, 30), max_size=8))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fast_and_slow_paths_agree_on_any_log(records: list[StoredRecord], limits: FoldLimits, cuts: list[int]) -> None:
    quick, plain = PartitionFold(limits), PartitionFold(limits)
    at = 0
    for length in [*cuts, len(records)]:
        batch = records[at : at + length]
        at += len(batch)
        assert fast(quick, [arrival_of(record) for record in batch]) == slow(
            plain, [plain_arrival_of(record) for record in batch]
        )
        assert state(quick, at) == state(plain, at)


def taken(records: Sequence[LogRecord], look: Callable[[LogRecord], Arrival]) -> int:
    """Number of ``records`` that take the fast path."""
    fold, count, index = PartitionFold(FoldLimits()), 0, 0
    looked_at = [look(record) for record in records]
    while index < len(records):
        end = fold.take_ordinary(looked_at, index)
        count += end - index
        if end < len(records):
            fold.arrive(looked_at[end])
        index = end + 1
    return count


def test_all_but_the_last_event_of_a_trajectory_take_the_fast_path() -> None:
    records = log([*session("s1", "ask", "tool", "ask"), *session("s2", "ask", "prune", "tool", "ask")])
    assert taken(records, arrival_of) == len(records) - 2
    assert taken(records, plain_arrival_of) == 0


@pytest.mark.parametrize("after_ms", [49, 50, 51])
def test_due_trajectories_close_before_an_ordinary_event(after_ms: int) -> None:
    silent, other = session("s1", "ask"), session("s2", "ask", "tool")
    silent = [replace(record, timestamp=T0) for record in silent[:2]]
    times = (T0 + 10, T0 + 10, T0 + after_ms)
    going_on = [replace(record, timestamp=time) for record, time in zip(other[:3], times, strict=True)]
    records = [arrival_of(record) for record in log([*silent, *going_on])]
    quick, plain = (PartitionFold(FoldLimits(idle_timeout_ms=50)) for _ in range(2))
    closed = fast(quick, records)
    assert len(closed) == (after_ms >= 50)
    assert closed == slow(plain, records)
    assert state(quick, 5) == state(plain, 5)


def test_the_position_advances_with_ordinary_events() -> None:
    records = [arrival_of(record) for record in log(session("s1", "ask", "tool", "ask"), first=7)[:-1]]
    assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=7, output_end=0)
    assert list(assembly.take_all(records)) == []
    assert assembly.position == 7 + len(records)


@pytest.mark.parametrize("subject", [b"", b"s" * 512, b"s" * 513, "é€😀".encode(), b"\xc3", b"\xed\xa0\x80", b"\0"])
def test_only_a_valid_id_opens_a_trajectory(subject: bytes) -> None:
    first = with_header(session("s1", "ask")[0], SUBJECT, subject)
    quick, plain = PartitionFold(FoldLimits()), PartitionFold(FoldLimits())
    outcomes = fast(quick, [arrival_of(first)]), slow(plain, [plain_arrival_of(first)])
    assert outcomes[0] == outcomes[1]
    assert state(quick, 1) == state(plain, 1)


def test_a_trajectory_opens_in_the_same_state_with_and_without_the_module() -> None:
    states = [make("s1", 3, 7, 11, 13, 17, 19) for make in (OpenState, PlainOpenState)]
    found = [{name: getattr(state, name) for name in PlainOpenState.__slots__} for state in states]
    assert found[0] == found[1]
    assert OpenState is not PlainOpenState


def test_an_unknown_type_takes_the_fast_path_too(monkeypatch: pytest.MonkeyPatch) -> None:
    new = b"headrace.never.heard.of.v1"
    records = [arrival_of(with_header(record, TYPE, new)) for record in session("s1", "ask", "tool")[1:4]]
    whole = [arrival_of(session("s1", "ask")[0]), *records]
    assert PartitionFold(FoldLimits()).take_ordinary(whole, 0) == 1
    monkeypatch.setattr("headrace.streams.assembly.fold.KINDS", KINDS | {new})
    assert PartitionFold(FoldLimits()).take_ordinary(whole, 0) == len(whole)
