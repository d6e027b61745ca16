"""Events of sessions on their way to the journal: in order, without gaps, and never twice."""

import asyncio
import gc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway import recorder as recorder_module
from headrace.agents.gateway.journal import JournalFull
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.gateway.recorder import Recorder
from headrace.schemas.events import ToolCalled

A, B = ("acme", "a"), ("acme", "b")


class FakeJournal:
    """Takes events while it has room; each write takes a moment."""

    def __init__(self) -> None:
        self.room = 10**9
        self.written: list[TrajectoryEvent] = []

    async def record(self, events: Sequence[TrajectoryEvent], now_ms: int) -> bool:
        room = self.room  # as at the time of the call
        await asyncio.sleep(0)
        if len(events) > room:
            raise JournalFull
        self.written += events
        return True


def event(seq: int, trajectory: str = "t") -> TrajectoryEvent:
    return TrajectoryEvent(trajectory, seq, ToolCalled(call_id="c", tool="bash", arguments={}))


@pytest.fixture
def journal() -> FakeJournal:
    return FakeJournal()


@pytest.fixture
def recorder(journal: FakeJournal) -> Recorder:
    return Recorder(journal, lambda: 0)  # type: ignore[arg-type]


def seqs(events: Sequence[TrajectoryEvent]) -> list[int | None]:
    return [each.seq for each in events]


async def test_what_was_refused_is_recorded_before_what_follows(recorder: Recorder, journal: FakeJournal) -> None:
    journal.room = 0
    for seq in range(2):
        with pytest.raises(JournalFull):
            await recorder.record(A, [event(seq)])
    assert recorder.waiting == 2
    journal.room = 100
    await recorder.record(A, [event(2)])
    assert seqs(journal.written) == [0, 1, 2]
    assert recorder.waiting == 0


async def test_what_was_refused_is_recorded_again_by_itself(recorder: Recorder, journal: FakeJournal) -> None:
    journal.room = 0
    for session in (A, B):
        with pytest.raises(JournalFull):
            await recorder.record(session, [event(0)])
    await recorder.retry()
    assert recorder.waiting == 2
    journal.room = 100
    await recorder.retry()
    assert (recorder.waiting, len(journal.written)) == (0, 2)


async def test_a_caller_that_has_left_keeps_no_other_from_its_answer(recorder: Recorder, journal: FakeJournal) -> None:
    first = recorder.record(A, [event(0)])
    left, stayed = recorder.record(A, [event(1)]), recorder.record(A, [event(2)])  # gathered together
    left.cancel()
    async with asyncio.timeout(20):
        await asyncio.gather(first, stayed)
        await recorder.drain()
    assert seqs(journal.written) == [0, 1, 2]


async def test_what_a_journal_that_fails_did_not_take_are_holes(
    recorder: Recorder, journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(events: Sequence[TrajectoryEvent], now_ms: int) -> bool:
        raise OSError("planted")

    monkeypatch.setattr(journal, "record", fail)
    with pytest.raises(OSError, match="planted"):
        await recorder.record(A, [event(0), event(1)])
    assert (recorder.holes, recorder.waiting) == (2, 0)


async def test_a_refusal_that_nobody_waits_for_is_not_logged(
    recorder: Recorder, journal: FakeJournal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.room = 0
    recorder.record(A, [event(0)])
    await recorder.drain()
    gc.collect()
    await asyncio.sleep(0)
    assert (recorder.waiting, caplog.text) == (1, "")


async def test_held_events_are_recorded_with_the_next_ones(recorder: Recorder, journal: FakeJournal) -> None:
    recorder.hold(A, [event(0)])
    recorder.hold(B, [event(9)])
    recorder.hold(A, [event(1)])
    assert journal.written == []
    await recorder.record(A, [event(2)])
    assert seqs(journal.written) == [0, 1, 2]
    await recorder.record(B, ())
    assert seqs(journal.written) == [0, 1, 2, 9]


async def test_events_can_be_withdrawn_until_they_are_recorded(recorder: Recorder, journal: FakeJournal) -> None:
    first, second = event(0), event(0)
    recorder.hold(A, [first, second])
    assert recorder.withdraw(A, [first])
    assert not recorder.withdraw(A, [first])
    journal.room = 0
    with pytest.raises(JournalFull):
        await recorder.record(A, ())
    assert recorder.waiting == 1
    assert recorder.withdraw(A, [second])
    assert recorder.waiting == 0
    journal.room = 100
    await recorder.record(A, [first])
    assert not recorder.withdraw(A, [first])
    assert not recorder.withdraw(B, [first])
    assert recorder.withdraw(B, [])
    assert len(journal.written) == 1


async def test_events_that_are_being_written_again_cannot_be_withdrawn(
    recorder: Recorder, journal: FakeJournal
) -> None:
    first = event(0)
    journal.room = 0
    with pytest.raises(JournalFull):
        await recorder.record(A, [first])
    journal.room = 100
    again = recorder.record(A, [])
    assert not recorder.withdraw(A, [first])
    await again
    assert seqs(journal.written) == [0]


async def test_nothing_overtakes_events_that_are_being_refused(recorder: Recorder, journal: FakeJournal) -> None:
    journal.room = 1
    large = recorder.record(A, [event(0), event(1)])
    small = recorder.record(A, [event(2)])
    await asyncio.wait([large, small])
    journal.room = 100
    await recorder.retry()
    assert seqs(journal.written) == [0, 1, 2]


async def test_sessions_do_not_wait_for_one_another(recorder: Recorder, journal: FakeJournal) -> None:
    journal.room = 1
    large = recorder.record(A, [event(0), event(1)])
    await recorder.record(B, [event(7)])
    with pytest.raises(JournalFull):
        await large
    assert seqs(journal.written) == [7]


async def test_a_caller_that_leaves_does_not_stop_its_events(recorder: Recorder, journal: FakeJournal) -> None:
    async def leaving() -> None:
        await asyncio.shield(recorder.record(A, [event(0)]))

    task = asyncio.create_task(leaving())
    await asyncio.sleep(0)
    task.cancel()
    await recorder.drain()
    assert seqs(journal.written) == [0]


async def test_beyond_a_number_the_events_that_waited_longest_are_holes(
    recorder: Recorder, journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_WAITING", 3)
    journal.room = 0
    for number in range(3):
        with pytest.raises(JournalFull):
            await recorder.record(("acme", str(number)), [event(number)])
        await recorder.retry()
    with pytest.raises(JournalFull):
        await recorder.record(("acme", "3"), [event(3), event(4)])
    assert (recorder.holes, recorder.waiting) == (2, 3)
    journal.room = 100
    await recorder.retry()
    assert seqs(journal.written) == [2, 3, 4]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.sampled_from([0, 1, 2, 100])), max_size=20))
def test_the_numbers_of_a_session_are_written_in_order_and_once(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        journal = FakeJournal()
        recorder = Recorder(journal, lambda: 0)  # type: ignore[arg-type]
        given_numbers = {"a": 0, "b": 0}
        tasks = []
        for name, number, room in steps:
            journal.room = room
            start = given_numbers[name]
            given_numbers[name] += number
            events = [event(seq, name) for seq in range(start, start + number)]
            tasks.append(recorder.record(("acme", name), events))
            if room % 2:
                await asyncio.sleep(0)
        await recorder.drain()
        journal.room = 100
        await recorder.retry()
        for name, total in given_numbers.items():
            assert [each.seq for each in journal.written if each.trajectory_id == name] == list(range(total))

    asyncio.run(run())
