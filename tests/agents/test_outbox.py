"""Events go to disk while Kafka does not take them, and from there in order to Kafka; all of them are accounted for."""

import errno
import heapq
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents import outbox as outbox_module
from headrace.agents.counters import SdkCounters
from headrace.agents.delivery import EventDelivery
from headrace.agents.outbox import ADOPT_S, COMMIT_S, RETRY_S, SPOOL_AFTER_S, Outbox
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import Loss, cluster_fingerprint
from headrace.schemas.kafka.clients import MAX_REQUEST_BYTES
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message

CLUSTER = cluster_fingerprint("broker:9092")
QUEUE_SIZE, QUEUE_BYTES = 40, 1 << 20


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class ManualDelivery(EventDelivery):
    """A delivery whose broker is the test. Only injects faults and acknowledgements."""

    def __init__(self, process: "Process", clock: Clock) -> None:
        super().__init__("broker:9092", {}, process.counters, lambda ticket: process.outbox.resolve(ticket), clock)
        self.handed_over: list[int] = []
        self.acknowledged: list[int] = []

    def hand_over(self, most: int) -> None:
        for _ in range(min(most, self.waiting)):
            ticket, topic, message = heapq.heappop(self._waiting)
            self._in_flight[ticket] = (topic, message)
            self.handed_over.append(int(message.key))

    def acknowledge(self, most: int) -> None:
        for ticket in sorted(self._in_flight)[:most]:
            self.acknowledged.append(int(self._in_flight[ticket][1].key))
            self.sent += 1
            self._resolve(self._in_flight, ticket)

    def fail(self) -> None:
        for ticket, (topic, message) in self._in_flight.items():
            heapq.heappush(self._waiting, (ticket, topic, message))
        self._in_flight = {}


class Process:
    """A process with its outbox, in a folder that it shares with those before and after it."""

    def __init__(self, folder: Path | None, clock: Clock, *, limit: int = 1 << 30, first: int = 0) -> None:
        self.counters = SdkCounters()
        self.clock = clock
        self.delivery = ManualDelivery(self, clock)
        spool = Spool(folder, limit, CLUSTER, lambda *loss: self.outbox.count_loss(*loss)) if folder else None
        self.outbox = Outbox(self.delivery, spool, self.counters, QUEUE_SIZE, QUEUE_BYTES, clock)
        self.emitted = self.next = first
        self.refused = 0

    @property
    def queued(self) -> int:
        return self.delivery.pending + len(self.outbox.behind)

    def emit(self, count: int, size: int = 10) -> None:
        for _ in range(count):
            if self.queued >= QUEUE_SIZE:
                self.refused += 1  # as the sender's queue does
            else:
                key = b"%d" % self.next
                self.outbox.offer(self.next, EVENTS, Message(key, bytes(size), [("ce_id", key)]))
                self.next += 1

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.outbox.tick()

    def answer(self, rounds: int = 500) -> None:
        """Let the broker answer until nothing waits."""
        for _ in range(rounds):
            self.delivery.hand_over(7)
            self.delivery.acknowledge(5)
            self.pass_time(COMMIT_S)
            if not self.queued and not self.outbox.spooled:
                break

    def check(self) -> None:
        outbox, dropped = self.outbox, sum(self.counters.dropped().values())
        assert self.next + outbox.adopted == self.delivery.sent + self.queued + outbox.spooled + dropped
        assert self.queued <= QUEUE_SIZE + QUEUE_SIZE // 2, "in addition, what was read ahead and is in flight"
        assert self.delivery.pending_bytes < QUEUE_BYTES
        assert outbox.behind_bytes == sum(len(message.value) for _, _, message in outbox.behind)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path / "spool", Clock())


def on_disk(process: Process, folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.spool"))


def test_nothing_is_written_while_kafka_answers(process: Process, tmp_path: Path) -> None:
    for _ in range(20):
        process.emit(10)
        process.answer()
    assert process.delivery.acknowledged == list(range(200))
    assert not (tmp_path / "spool").exists()


def test_events_go_to_disk_when_nothing_was_acknowledged_for_some_seconds(process: Process, tmp_path: Path) -> None:
    process.emit(5)
    process.delivery.hand_over(2)
    process.pass_time(SPOOL_AFTER_S)
    assert (process.queued, process.outbox.spooled) == (5, 0)
    process.pass_time(0.1)
    assert (process.queued, process.outbox.spooled) == (2, 3), "what is in flight is on disk, too, but not to be read"
    process.emit(4)
    assert process.queued == 6, "they gather for an fsync"
    process.pass_time(COMMIT_S)
    assert (process.queued, process.outbox.spooled) == (2, 7)
    process.answer()
    assert process.delivery.acknowledged == list(range(9))
    assert (process.outbox.replayed, os.listdir(tmp_path / "spool")[1:]) == (9, []), "only the lock is left"
    process.emit(3)
    assert process.delivery.waiting == 3, "events take the direct way again"


def test_the_seconds_count_from_the_first_event_that_waits(process: Process) -> None:
    process.emit(1)
    process.answer()
    process.pass_time(10 * SPOOL_AFTER_S)
    process.emit(1)
    process.pass_time(SPOOL_AFTER_S / 2)
    assert process.outbox.spooled == 0, "it was idle before"
    for _ in range(2):
        process.emit(1)
        process.pass_time(SPOOL_AFTER_S / 3)
    assert process.outbox.spooled == 3, "later events do not put it off"


def test_a_full_queue_goes_to_disk_at_once(process: Process) -> None:
    process.emit(500)
    assert process.refused == 0
    process.answer()
    assert process.delivery.acknowledged == list(range(500))


def test_large_events_go_to_disk_before_queue_bytes_are_reached(process: Process) -> None:
    process.emit(6, size=QUEUE_BYTES // 10)
    process.check()
    assert process.delivery.pending_bytes + process.outbox.behind_bytes < QUEUE_BYTES // 2


def test_events_on_disk_are_read_ahead_within_the_limits_of_memory(process: Process) -> None:
    """Whether the client keeps what it is given, or has no connection."""
    for _ in range(60):
        process.emit(1, size=QUEUE_BYTES // 16)
        process.pass_time(COMMIT_S)
        process.delivery.hand_over(3)
        process.check()
    assert process.delivery.pending_bytes + process.outbox.behind_bytes < QUEUE_BYTES
    assert process.outbox.spooled > 40
    process.answer()
    assert process.delivery.acknowledged == list(range(60))


def test_a_flush_waits_for_events_on_disk(process: Process) -> None:
    process.emit(30)
    assert not process.outbox.resolved_up_to(29)
    process.emit(30)
    while process.outbox.spooled:
        assert process.outbox.resolved_up_to(29) is (set(range(30)) <= set(process.delivery.acknowledged))
        process.delivery.hand_over(7)
        process.delivery.acknowledge(7)
        process.pass_time(COMMIT_S)
    process.answer()
    assert process.outbox.resolved_up_to(59)


def test_what_a_full_spool_does_not_take_stays_in_memory_in_order(tmp_path: Path) -> None:
    process = Process(tmp_path / "spool", Clock(), limit=6_000)
    process.emit(200)
    assert process.outbox.is_full
    assert process.queued == QUEUE_SIZE
    assert process.refused > 0
    kept = process.next
    for _ in range(200):
        process.answer(1)
        process.pass_time(RETRY_S)
        process.check()
    assert process.delivery.acknowledged == list(range(kept))
    assert not process.outbox.is_full


def test_without_a_usable_folder_events_wait_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    process = Process(tmp_path / "spool", Clock())
    process.emit(50)
    process.pass_time(2 * SPOOL_AFTER_S)
    process.check()
    assert (process.queued, process.refused) == (QUEUE_SIZE, 10)
    process.answer()
    assert process.delivery.acknowledged == list(range(40))
    process.counters.wait_until_logged(20)
    assert sum("can be written by other users" in line for line in caplog.messages) == 1


def test_if_the_disk_fails_later_events_wait_in_memory_and_are_sent(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.emit(25)
    process.pass_time(COMMIT_S)
    assert process.outbox.spooled > 0

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(os, "pwrite", fail)
    process.emit(100)
    process.check()
    assert process.refused > 0
    kept = process.next
    process.answer()
    assert process.delivery.acknowledged == list(range(kept))
    process.emit(QUEUE_SIZE)
    process.answer()
    assert process.delivery.acknowledged == list(range(process.next))


@pytest.mark.parametrize("fails", [False, True], ids=["full", "broken"])
def test_a_spool_that_took_nothing_is_left_alone_for_a_while(
    fails: bool, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def append(*_: object, **__: object) -> list[object]:
        tried.append(process.clock.now)
        if fails:
            raise OSError(errno.EIO, "planted")
        return []

    monkeypatch.setattr(Spool, "append", append)
    process.emit(QUEUE_SIZE // 2)
    first = len(tried)
    assert first > 0
    for _ in range(5):
        process.emit(1)
        process.pass_time(RETRY_S / 10)
    assert len(tried) == first
    process.pass_time(RETRY_S)
    process.emit(1)
    assert len(tried) > first


def test_an_event_that_no_broker_takes_is_dropped_instead_of_written(process: Process) -> None:
    process.emit(QUEUE_SIZE // 2)
    process.emit(1, size=MAX_REQUEST_BYTES + 1)
    assert process.counters.dropped() == {"refused": 1}
    process.check()


def test_the_largest_event_that_a_broker_takes_is_written(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_REQUEST_BYTES", 100)
    process.emit(QUEUE_SIZE // 2)
    process.emit(1, size=100)
    assert process.counters.dropped() == {}
    process.emit(1, size=101)
    assert process.counters.dropped() == {"refused": 1}


def test_later_events_wait_behind_what_is_in_flight_once_that_is_on_disk(process: Process) -> None:
    process.emit(3)
    process.delivery.hand_over(3)
    process.pass_time(2 * SPOOL_AFTER_S)
    process.emit(2)
    assert (process.delivery.pending, process.outbox.spooled) == (3, 0)
    process.pass_time(COMMIT_S)
    assert (process.delivery.pending, process.outbox.spooled) == (3, 2)


@pytest.mark.parametrize("events", [1, 2, QUEUE_SIZE // 5])
def test_what_was_in_flight_leaves_no_file_once_it_is_acknowledged(
    events: int, process: Process, tmp_path: Path
) -> None:
    """Else the next process would send all of it again, after an orderly end of this one."""
    process.emit(events)
    process.delivery.hand_over(events)
    process.pass_time(2 * SPOOL_AFTER_S)
    assert on_disk(process, tmp_path / "spool") > 0
    process.answer()
    assert len(process.delivery.acknowledged) == events
    assert list((tmp_path / "spool").glob("*.spool")) == []
    process.outbox.finish()
    assert os.listdir(tmp_path / "spool") == []


def test_no_event_overtakes_those_of_a_spool_that_has_become_full(tmp_path: Path) -> None:
    process = Process(tmp_path / "spool", Clock(), limit=1_000)
    process.emit(QUEUE_SIZE // 2)
    assert process.outbox.spooled > 0
    assert process.outbox.behind
    assert process.delivery.pending == 0
    process.answer()
    assert process.delivery.acknowledged == list(range(QUEUE_SIZE // 2))


def test_without_a_spool_nothing_is_on_disk() -> None:
    process = Process(None, Clock())
    assert not process.outbox.is_full
    process.emit(3)
    process.pass_time(2 * SPOOL_AFTER_S)
    assert (process.outbox.finish(), process.outbox.spooled, process.queued) == (0, 0, 3)


@pytest.mark.parametrize("events", [0, 3])
def test_an_end_writes_what_was_in_flight_and_says_how_much_is_left(
    events: int, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.emit(events)
    process.delivery.hand_over(events)
    process.delivery.fail()
    assert process.outbox.finish() == events
    process.counters.wait_until_logged(20)
    assert ("3 events were not sent" in caplog.text) is bool(events)


def test_events_of_ended_processes_are_looked_for_once_in_a_while(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []
    monkeypatch.setattr(Spool, "adopt", lambda spool: looked.append(process.clock.now))
    process.delivery.producer = object()  # what a connection sets
    for _ in range(3 * int(ADOPT_S)):
        process.pass_time(1.0)
    assert len(looked) == 3


def test_damage_of_its_own_file_adopts_nothing(tmp_path: Path) -> None:
    first = Process(tmp_path / "spool", Clock())
    first.emit(2)
    first.pass_time(2 * SPOOL_AFTER_S)
    first.outbox.finish()
    process = Process(tmp_path / "spool", first.clock)
    process.delivery.producer = object()  # what a connection sets
    process.pass_time(ADOPT_S)
    process.answer()
    assert process.outbox.adopted == 2
    process.outbox.count_loss("a.spool", Loss(0, 10, 1, is_torn=False))
    assert (process.outbox.adopted, process.counters.dropped()) == (2, {"spool_damaged": 1})


def test_a_later_process_sends_what_an_ended_one_left(tmp_path: Path) -> None:
    clock = Clock()
    first = Process(tmp_path / "spool", clock)
    first.emit(100)
    first.pass_time(COMMIT_S)
    first.delivery.hand_over(10)
    first.delivery.acknowledge(10)
    first.delivery.fail()
    assert first.outbox.finish() == 90
    assert (first.queued, first.outbox.spooled) == (0, 90)
    first.check()

    second = Process(tmp_path / "spool", clock, first=1_000)
    second.pass_time(ADOPT_S)
    assert second.outbox.adopted == 0, "it has no connection"
    second.delivery.producer = object()  # what a connection sets
    second.emit(5)
    second.pass_time(ADOPT_S)
    assert second.outbox.resolved_up_to(999), "no flush waits for adopted events"
    second.answer()
    assert second.delivery.acknowledged[:5] == list(range(1_000, 1_005)), "its own first"
    assert second.delivery.acknowledged[5:] == list(range(100)), "the first ten again: their segment was not finished"
    assert (second.outbox.adopted, second.outbox.replayed) == (100, 105), "its own were on disk, too"
    assert [name for name in os.listdir(tmp_path / "spool") if name.endswith(".spool")] == []


def test_a_damaged_file_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(tmp_path / "spool", Clock())
    process.emit(3)
    process.pass_time(2 * SPOOL_AFTER_S)
    process.outbox.finish()
    (segment,) = (tmp_path / "spool").glob("*.spool")
    segment.write_bytes(segment.read_bytes()[:-1])
    second = Process(tmp_path / "spool", process.clock)
    second.delivery.producer = object()  # what a connection sets
    second.pass_time(ADOPT_S)
    second.answer()
    assert second.delivery.acknowledged == [0, 1]
    assert (second.outbox.adopted, second.counters.dropped()) == (3, {"spool_damaged": 1})
    second.counters.wait_until_logged(20)
    assert "has an incomplete end at byte" in caplog.text


steps = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.integers(1, 30)),
        st.tuples(st.just("hand over"), st.integers(1, 20)),
        st.tuples(st.just("acknowledge"), st.integers(1, 20)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("tick"), st.sampled_from([1, 5, 50])),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("kill"), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.sampled_from([3_000, 20_000, 1 << 30]))
def test_every_event_is_sent_or_counted_and_order_is_kept(steps: list[tuple[str, int]], limit: int) -> None:
    """Whatever Kafka does. Only a kill may lose events, those that were not on disk."""
    with TemporaryDirectory() as name:
        clock, folder = Clock(), Path(name) / "spool"
        acknowledged, promised, first = set[int](), set[int](), 0
        process = Process(folder, clock, limit=limit)
        process.delivery.producer = object()  # what a connection sets
        for step, number in [*steps, ("end", 0)]:
            if step == "emit":
                process.emit(number)
            elif step == "hand over":
                process.delivery.hand_over(number)
            elif step == "acknowledge":
                process.delivery.acknowledge(number)
            elif step == "fail":
                process.delivery.fail()
            elif step == "tick":
                process.pass_time(number / 10)
            accepted = process.next - first + process.outbox.adopted
            dropped = sum(process.counters.dropped().values())
            assert accepted == process.delivery.sent + process.queued + process.outbox.spooled + dropped
            assert dropped == 0
            own = [each for each in process.delivery.handed_over if each >= first]
            assert list(dict.fromkeys(own)) == sorted(set(own)), "first sent in order"
            if step in ("end", "kill"):
                acknowledged |= set(process.delivery.acknowledged)
                if step == "end":
                    process.delivery.fail()
                    process.outbox.finish()
                    left = (*process.delivery._waiting, *process.outbox.behind)
                    in_memory = {int(message.key) for _, _, message in left}
                    promised |= set(range(first, process.next)) - in_memory
                else:
                    direct = {t for t in process.delivery._in_flight if t not in process.outbox._segments}
                    direct |= {t for t, _, _ in process.delivery._waiting if t not in process.outbox._segments}
                    direct |= {t for t, _, _ in process.outbox.behind}
                    promised |= set(range(first, process.next)) - direct
                    process.outbox.forget()
                first = process.next
                process = Process(folder, clock, limit=limit, first=first)
                process.delivery.producer = object()  # what a connection sets
        for _ in range(100):
            process.pass_time(ADOPT_S)
            process.answer(20)
        acknowledged |= set(process.delivery.acknowledged)
        assert promised <= acknowledged <= set(range(first))
