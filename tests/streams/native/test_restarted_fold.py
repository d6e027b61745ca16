"""After a restart, too, the fold with the fast path matches the fold without it."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.streams.assembly.arrival import arrival_of, plain_arrival_of
from headrace.streams.assembly.assemble import outputs_of
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History
from headrace.streams.assembly.recovery import emitted_of
from headrace.streams.assembly.remembered import Emitted
from headrace.streams.raw import StoredRecord
from tests.streams.assembly.any_log import messy_log
from tests.streams.builders import session
from tests.streams.native.built import needs_speedups
from tests.streams.native.test_ordinary_events import BOUNDED, fast, slow, state

pytestmark = needs_speedups


def stopped(records: list[StoredRecord], limits: FoldLimits) -> tuple[int, int, list[Emitted]]:
    """The state that a restart after ``records`` finds: offset to read from, stream time there, and written output."""
    fold, written = PartitionFold(limits), []
    for record in records:
        for outcome in fold.arrive(plain_arrival_of(record)):
            if isinstance(outcome, History):
                value = outputs_of(outcome)[0].message.value
                written.append(emitted_of(StoredRecord("trajectories", 0, len(written), 0, None, value, ())))
    position, stream_ms = fold.resume_point(len(records))
    return position, stream_ms, written


def agree_after_a_restart(records: list[StoredRecord], limits: FoldLimits, cut: int, lengths: list[int]) -> None:
    position, stream_ms, written = stopped(records[:cut], limits)
    quick, plain = (PartitionFold(limits, stream_ms=stream_ms, position=position, written=written) for _ in range(2))
    for length in [*lengths, len(records)]:
        batch = records[position : position + length]
        position += len(batch)
        assert fast(quick, [arrival_of(record) for record in batch]) == slow(
            plain, [plain_arrival_of(record) for record in batch]
        )
        assert state(quick, position) == state(plain, position)


@given(messy_log(), BOUNDED, st.floats(0, 1), st.lists(st.integers(1, 9), max_size=20))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fast_and_slow_paths_agree_after_a_restart(
    records: list[StoredRecord], limits: FoldLimits, share: float, lengths: list[int]
) -> None:
    agree_after_a_restart(records, limits, int(share * len(records)), lengths)


def test_trajectories_closed_by_the_previous_record_are_restored_equally() -> None:
    first, closing, next_one = session("s1", "ask", "ask"), session("s2", "ask"), session("s3", "ask")
    records = [*first[:1], *closing, *next_one[:2], *first[1:]]
    records = [
        StoredRecord(each.topic, 0, offset, each.timestamp, each.key, each.value, each.headers)
        for offset, each in enumerate(records)
    ]
    for length in range(1, len(records)):
        agree_after_a_restart(records, FoldLimits(), 4, [length])
