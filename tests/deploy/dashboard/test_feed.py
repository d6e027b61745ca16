"""A page knows within five seconds that what it shows is old."""

import asyncio
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from headrace.deploy.dashboard.feed import SLOW_S, waiting
from headrace.deploy.dashboard.page_html import STATIC
from headrace.deploy.dashboard.server import REFRESH_S
from headrace.deploy.system.ports import HOST
from tests.deploy.dashboard.served import served


class Silent:
    """A server that takes connections and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._taken: list[socket.socket] = []
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def hang_up(self) -> None:
        """End all connections, and take no more: clients stop waiting."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in self._taken:
            each.close()

    def _take(self) -> None:
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return


@contextmanager
def served_with_silent_clickhouse() -> Iterator[str]:
    """The address of a dashboard whose ClickHouse does not answer."""
    clickhouse = Silent()
    try:
        with served(clickhouse.url) as url:
            yield url
            clickhouse.hang_up()  # else the dashboard's end waits for its query
    finally:
        clickhouse.hang_up()


def test_both_limits_are_within_five_seconds() -> None:
    script = (STATIC / "state.js").read_text()
    silent_ms = int(re.search(r"SILENT_MS = (\d+);", script)[1])  # type: ignore[index]
    shown_every_ms = int(re.search(r"setInterval\(show, (\d+)\)", script)[1])  # type: ignore[index]
    assert REFRESH_S + SLOW_S < 5
    assert silent_ms > REFRESH_S * 1000
    assert silent_ms + shown_every_ms <= 5_000


async def test_a_page_is_told_that_it_waits_until_the_snapshot_is_there() -> None:
    reading = asyncio.ensure_future(asyncio.sleep(0.35, "snapshot"))
    told = [text async for text in waiting(reading, after_s=0.1, every_s=0.1)]
    assert told[0] == "event: slow\ndata: 0.1\n\n"
    assert 1 <= len(told) <= 3
    assert reading.result() == "snapshot"


async def test_a_page_that_waits_hears_the_pulse_from_the_start() -> None:
    reading = asyncio.ensure_future(asyncio.sleep(0.35, "snapshot"))
    told = [text async for text in waiting(reading, lambda: "pulse", after_s=0.25, every_s=0.1)]
    assert told[:3] == ["pulse", "pulse", "event: slow\ndata: 0.25\n\n"]


async def test_a_page_that_does_not_wait_is_told_nothing() -> None:
    reading = asyncio.ensure_future(asyncio.sleep(0, "snapshot"))
    assert [text async for text in waiting(reading)] == []


async def test_a_page_that_is_closed_ends_the_reading() -> None:
    reading = asyncio.ensure_future(asyncio.sleep(60))
    told = waiting(reading, after_s=0.01)
    await anext(told)
    await told.aclose()
    with pytest.raises(asyncio.CancelledError):
        await reading


def test_a_clickhouse_that_hangs_is_told_before_its_query_times_out() -> None:
    with (
        served_with_silent_clickhouse() as url,
        urllib.request.urlopen(f"{url}/stream", timeout=10) as stream,
    ):
        while (line := stream.readline()) != b"event: slow\n":
            assert line in (b"event: pulse\n", b"\n") or line.startswith(b'data: {"clickhouse_s"')
        assert float(stream.readline().removeprefix(b"data: ")) == SLOW_S


def test_the_guide_is_an_answer_of_the_server() -> None:
    with served("http://127.0.0.1:1") as url, urllib.request.urlopen(f"{url}/api/guide") as answer:
        assert [way["name"] for way in json.load(answer)] == ["sdk", "gateway", "import"]
