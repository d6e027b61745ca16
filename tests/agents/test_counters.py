"""Every loss is logged: the first of a reason immediately, others once a minute, the remaining ones at the end."""

import logging
import threading

import pytest

from headrace.agents import counters as module
from headrace.agents.counters import LOG_INTERVAL_S, LOG_THREAD_NAME, Alteration, DropReason, SdkCounters


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    for thread in threading.enumerate():
        if thread.name == LOG_THREAD_NAME:
            thread.join(20)
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_the_first_occurrence_of_a_reason_is_logged_immediately_and_others_once_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    counters = SdkCounters()
    counters.drop(DropReason.INVALID, "field 0")
    assert lines(caplog) == [
        "an event was dropped (invalid): field 0; further ones are counted and logged once a minute"
    ]
    for number in range(1, 5):
        counters.drop(DropReason.INVALID, f"field {number}")
    counters.log_counts()
    assert lines(caplog) == [], "the interval has not passed"
    clock.now += LOG_INTERVAL_S
    counters.log_counts()
    assert lines(caplog) == ["4 more events were dropped (invalid), 5 in total: field 1"]
    clock.now += LOG_INTERVAL_S
    counters.log_counts()
    assert lines(caplog) == [], "nothing new"


def test_an_exception_in_the_host_s_log_is_ignored(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter of the host may raise; other lines are logged, and the counts are correct."""

    class Raises(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("the host's filter")

    counters, raises = SdkCounters(), Raises()
    monkeypatch.setattr(counters, "_log_soon", lambda: None)  # so that this thread writes the log, as the sender's does
    module.LOG.addFilter(raises)
    try:
        counters.drop(DropReason.INVALID, "field 0")
        counters.log(logging.ERROR, "a line")
        counters.log_counts()
    finally:
        module.LOG.removeFilter(raises)
    counters.drop(DropReason.INVALID, "field 1")
    counters.log_counts(all_reasons=True)
    assert lines(caplog) == ["1 more events were dropped (invalid), 2 in total: field 1"]


def test_a_later_drop_logs_the_count_of_the_last_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    counters = SdkCounters()
    counters.drop(DropReason.AFTER_END, "a")
    lines(caplog)
    counters.drop(DropReason.AFTER_END, "a")
    clock.now += LOG_INTERVAL_S
    lines(caplog)
    counters.drop(DropReason.AFTER_END, "b")
    assert lines(caplog) == ["2 more events were dropped (after_end), 3 in total: a"]


def test_at_the_end_all_counts_are_logged(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    counters = SdkCounters()
    counters.drop(DropReason.OVERSIZE, "x", events=3)
    counters.alter(Alteration.UNSERIALISABLE, "a generator")
    logged = lines(caplog)
    counters.alter(Alteration.UNSERIALISABLE, "a map", values=2)
    assert lines(caplog) == []
    assert logged == [
        "3 events were dropped (oversize), 3 in total: x",
        "a value was sent in another form (unserialisable): a generator; "
        "further ones are counted and logged once a minute",
    ]
    counters.log_counts(all_reasons=True)
    assert lines(caplog) == ["2 more values were sent in another form (unserialisable), 3 in total: a map"]
    assert (counters.dropped(), counters.altered()) == ({"oversize": 3}, {"unserialisable": 3})


def test_counts_are_exact_with_many_threads() -> None:
    counters = SdkCounters()

    def count() -> None:
        for _ in range(2_000):
            counters.drop(DropReason.QUEUE_FULL)
            counters.alter(Alteration.SURROGATE, values=3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counters.dropped(), counters.altered()) == ({"queue_full": 8_000}, {"surrogate": 24_000})


def test_if_no_log_thread_can_be_started_the_counts_are_logged_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    counters = SdkCounters()
    counters.drop(DropReason.CLOSED, "x")
    counters.log(30, "a line")
    assert caplog.records == []
    counters.log_counts(all_reasons=True)
    assert caplog.records[0].getMessage() == "a line"
    assert "(closed): x" in caplog.text
