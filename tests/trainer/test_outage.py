import asyncio

import pytest

from headrace.trainer.outage import Interrupted, OutageSettings, ride_out

QUICK = OutageSettings(first_wait_s=0.001, longest_wait_s=0.002, alert_after_s=0.0, patience_s=60.0)


class Away(RuntimeError):
    """The trouble."""


class Work:
    """Fails so many times."""

    def __init__(self, failures, error=None):
        self.failures, self.error, self.calls = failures, error or Away("not there"), 0

    async def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


async def ride(work, settings=QUICK, stop=None):
    told = []

    async def alert(error):
        told.append(str(error))

    result = await ride_out(work, Away, settings, stop or asyncio.Event(), alert)
    return result, told


async def test_what_works_at_once_tells_nobody():
    assert await ride(Work(0)) == ("done", [])


async def test_an_outage_is_waited_for_and_told_once():
    work = Work(20)
    assert await ride(work) == ("done", ["not there"])
    assert work.calls == 21


async def test_a_short_outage_tells_nobody():
    assert await ride(Work(3), OutageSettings(0.001, 0.002, alert_after_s=60.0)) == ("done", [])


async def test_patience_ends_with_the_trouble_itself():
    with pytest.raises(Away, match="not there"):
        await ride(Work(10**9), OutageSettings(0.001, 0.002, 0.0, patience_s=0.05))


async def test_another_error_is_no_outage():
    work = Work(1, ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        await ride(work)
    assert work.calls == 1


async def test_a_stop_ends_the_waiting_at_once():
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(Interrupted, match="not there"):
        await asyncio.wait_for(ride(Work(10**9), OutageSettings(300.0, 300.0), stop), 30)


@pytest.mark.parametrize("name", ["first_wait_s", "patience_s"])
def test_negative_seconds_are_refused(name):
    with pytest.raises(ValueError, match=name):
        OutageSettings(**{name: -1.0})
