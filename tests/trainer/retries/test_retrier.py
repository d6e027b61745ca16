"""Reports of outages, in progress and as alerts."""

import asyncio
import json

import pytest

from headrace.schemas.objects.unavailable import StoreUnavailable
from headrace.trainer.progress.progress import Progress
from headrace.trainer.retries.broker import LogUnavailable
from headrace.trainer.retries.retrier import Retrier
from headrace.trainer.retries.retry import OutageSettings

QUICK = OutageSettings(first_wait_s=0.001, longest_wait_s=0.002, alert_after_s=0.0)


class Announcer:
    """A fake announcer, unavailable for a number of calls."""

    def __init__(self, away=0):
        self.away, self.published = away, []

    async def announce(self, news):
        if self.away:
            self.away -= 1
            raise LogUnavailable("no log")
        self.published += [json.loads(each.payload) for each in news]

    @property
    def kinds(self):
        return [each["kind"] for each in self.published]


class FailingWork:
    """Work that fails a number of times, and records the outage shown by progress meanwhile."""

    def __init__(self, error, times, progress):
        self.error, self.times, self.progress, self.seen = error, times, progress, []

    async def __call__(self):
        self.seen.append(self.progress.outage)
        if self.times:
            self.times -= 1
            raise self.error
        return "done"


@pytest.fixture
def progress():
    return Progress()


@pytest.fixture
def retrier(progress):
    def _retrier(announcer, outages=QUICK):
        return Retrier(outages, announcer.announce, asyncio.Event(), progress, run="run")

    return _retrier


async def test_progress_shows_an_outage_only_while_it_lasts(retrier, progress):
    work = FailingWork(StoreUnavailable("no store"), 2, progress)
    assert await retrier(Announcer()).for_store(work, 3) == "done"
    assert work.seen == ["", "no store", "no store"]
    assert (progress.outage, progress.outage_s) == ("", 0.0)


async def test_an_unavailable_store_raises_one_alert_immediately(retrier, progress):
    announcer = Announcer()
    await retrier(announcer).for_store(FailingWork(StoreUnavailable("no store"), 5, progress), 3)
    (alert,) = announcer.published
    assert (alert["kind"], alert["message"]) == ("object_store_unavailable", "version 3 waits: no store")


async def test_without_the_log_the_alert_waits_and_retries_continue(retrier, progress):
    announcer = Announcer(away=1)
    retries = retrier(announcer)
    await retries.for_store(FailingWork(StoreUnavailable("no store"), 5, progress), 3)
    assert announcer.published == []
    await retries.for_log(FailingWork(None, 0, progress))
    assert announcer.kinds == ["object_store_unavailable"]


async def test_an_outage_of_the_log_raises_an_alert_once_it_is_over(retrier, progress):
    announcer = Announcer()
    await retrier(announcer).for_log(FailingWork(LogUnavailable("no log"), 5, progress))
    (alert,) = announcer.published
    assert (alert["kind"], alert["severity"]) == ("log_unavailable", "warning")
    assert "Kafka was unavailable for 0 s from" in alert["message"]


async def test_calls_in_the_same_outage_raise_one_alert(retrier, progress):
    announcer = Announcer()
    retries = retrier(announcer)
    await asyncio.gather(*(retries.for_log(FailingWork(LogUnavailable("no log"), 5, progress)) for _ in range(3)))
    assert announcer.kinds == ["log_unavailable"]


async def test_a_short_outage_of_the_log_raises_no_alert(retrier, progress):
    announcer = Announcer()
    retries = retrier(announcer, OutageSettings(0.001, 0.002, alert_after_s=60.0))
    await retries.for_log(FailingWork(LogUnavailable("no log"), 3, progress))
    assert announcer.published == []


async def test_alerts_that_wait_are_published_at_the_end(retrier, progress):
    announcer = Announcer(away=1)
    retries = retrier(announcer)
    await retries.for_store(FailingWork(StoreUnavailable("no store"), 5, progress), 3)
    assert announcer.published == []
    await retries.close()
    assert announcer.kinds == ["object_store_unavailable"]
    await retries.close()
    assert announcer.kinds == ["object_store_unavailable"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_alerts_that_cannot_be_published_at_the_end_are_logged(retrier, progress, hangs, monkeypatch, caplog):
    monkeypatch.setattr("headrace.trainer.retries.retrier.STOP_GRACE_S", 0.01)
    announcer = Announcer(away=9)
    retries = retrier(announcer)
    await retries.for_store(FailingWork(StoreUnavailable("no store"), 5, progress), 3)
    if hangs:
        monkeypatch.setattr(retries, "_publish", lambda news: asyncio.Event().wait())
    await retries.close()
    assert "object_store_unavailable" in caplog.records[-1].message
    assert caplog.records[-1].levelname == "ERROR"
