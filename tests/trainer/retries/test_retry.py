import asyncio

import pytest

from headrace.trainer.retries import retry as retry_module
from headrace.trainer.retries.retry import Interrupted, OutageSettings, retry, unless_stopped

QUICK = OutageSettings(first_wait_s=0.001, longest_wait_s=0.002, alert_after_s=0.0, patience_s=60.0)


class Unavailable(RuntimeError):
    """The error that is retried."""


class Work:
    """Fails a number of times."""

    def __init__(self, failures, error=None):
        self.failures, self.error, self.calls = failures, error or Unavailable("not there"), 0

    async def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


class RecordingListener:
    """Records an outage's notifications."""

    def __init__(self):
        self.waits_for, self.seconds, self.ends = [], [], []

    async def waits(self, error, lasted_s):
        self.waits_for.append(str(error))
        self.seconds.append(lasted_s)

    async def ended(self, lasted_s):
        self.ends.append(lasted_s)


async def ride(work, settings=QUICK, stop=None):
    listener = RecordingListener()
    return await retry(work, Unavailable, settings, stop or asyncio.Event(), listener), listener


async def test_a_success_notifies_no_listener():
    result, listener = await ride(Work(0))
    assert (result, listener.waits_for, listener.ends) == ("done", [], [])


async def test_an_outage_is_reported_with_its_duration_and_ends_once():
    work = Work(20)
    result, listener = await ride(work)
    assert (result, work.calls) == ("done", 21)
    assert listener.waits_for == ["not there"] * 20
    assert listener.seconds == sorted(listener.seconds)
    (lasted_s,) = listener.ends
    assert lasted_s >= listener.seconds[-1] > 0


async def test_a_retry_limit_of_0_is_one_attempt():
    work = Work(1)
    with pytest.raises(Unavailable):
        await ride(work, OutageSettings(patience_s=0.0))
    assert work.calls == 1


async def test_a_call_that_hangs_is_cancelled_some_time_after_a_stop(monkeypatch):
    monkeypatch.setattr(retry_module, "STOP_GRACE_S", 0.01)
    stop, hangs = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, stop.set)
    with pytest.raises(Interrupted, match="the call did not end"):
        await asyncio.wait_for(unless_stopped(hangs.wait, stop), 30)


async def test_a_call_in_progress_at_a_stop_may_still_end():
    stop = asyncio.Event()
    stop.set()
    assert await unless_stopped(Work(0), stop) == "done"


async def test_after_the_retry_limit_the_error_is_raised():
    with pytest.raises(Unavailable, match="not there"):
        await ride(Work(10**9), OutageSettings(0.001, 0.002, 0.0, patience_s=0.05))


async def test_another_error_is_no_outage():
    work = Work(1, ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        await ride(work)
    assert work.calls == 1


async def test_a_stop_ends_the_retries_immediately():
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(Interrupted, match="not there"):
        await asyncio.wait_for(ride(Work(10**9), OutageSettings(300.0, 300.0), stop), 30)


@pytest.mark.parametrize("name", ["first_wait_s", "patience_s", "answer_s"])
def test_negative_seconds_are_refused(name):
    with pytest.raises(ValueError, match=name):
        OutageSettings(**{name: -1.0})
