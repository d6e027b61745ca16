"""No reason for a loss goes unsaid: the first at once, the rest once a minute, what is left at the end."""

import pytest

from headrace.agents import tally as module
from headrace.agents.tally import REMIND_S, Alteration, DropReason, Tally


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
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_the_first_of_a_reason_is_told_at_once_and_the_others_once_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally()
    for number in range(5):
        tally.drop(DropReason.INVALID, f"field {number}")
    assert lines(caplog) == ["an event was dropped (invalid): field 0; how many more there are is told once a minute"]
    tally.remind()
    assert lines(caplog) == [], "the minute is not over"
    clock.now += REMIND_S
    tally.remind()
    assert lines(caplog) == ["4 more events were dropped (invalid), 5 in all: field 4"]
    clock.now += REMIND_S
    tally.remind()
    assert lines(caplog) == [], "nothing new"


def test_a_later_drop_reminds_by_itself(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    tally.drop(DropReason.AFTER_END, "a")
    tally.drop(DropReason.AFTER_END, "a")
    clock.now += REMIND_S
    lines(caplog)
    tally.drop(DropReason.AFTER_END, "b")
    assert lines(caplog) == ["2 more events were dropped (after_end), 3 in all: b"]


def test_at_the_end_everything_is_told(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    tally.drop(DropReason.OVERSIZE, "x", events=3)
    tally.alter(Alteration.UNSERIALISABLE, "a generator")
    tally.alter(Alteration.UNSERIALISABLE, "a map", values=2)
    assert lines(caplog) == [
        "3 events were dropped (oversize), 3 in all: x",
        "a value was sent in another form (unserialisable): a generator; how many more there are is told once a minute",
    ]
    tally.remind(at_once=True)
    assert lines(caplog) == ["2 more values were sent in another form (unserialisable), 3 in all: a map"]
    assert (tally.dropped(), tally.altered()) == ({"oversize": 3}, {"unserialisable": 3})
