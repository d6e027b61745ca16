"""Every page hears each second whether ClickHouse answers and the sink lives, and says so within five seconds."""

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import Page, sync_playwright

from headrace.deploy.dashboard.page_html import NAVIGATION, STATIC
from headrace.deploy.dashboard.pulse import EVERY_S, Pulse
from headrace.deploy.system.children import Child, Command
from headrace.deploy.system.ports import HOST, free_port
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.test_feed import Silent, served_with_silent_clickhouse
from tests.deploy.dashboard.test_pages import CHROMIUM, FLAGS, needs_chromium

SIGN = "INSERT INTO sinks (sink, time) SELECT 'sink/test', now64(3)"
PATHS = (*NAVIGATION, "/trajectory/none", "/group/none", "/version/3?run=none")


def told(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.split("data: ")[1])
    return found


def test_what_stops_is_shown_within_five_seconds() -> None:
    """At worst a sign is read a second after it was given; then the limit passes, and half a second until it shows."""
    script = (STATIC / "state.js").read_text()
    show_ms = int(re.search(r"setInterval\(show, (\d+)\)", script)[1])  # type: ignore[index]
    for name in ("CLICKHOUSE_SILENT_MS", "SINK_SILENT_MS"):
        silent_ms = int(re.search(rf"{name} = (\d+);", script)[1])  # type: ignore[index]
        assert 1_000 * EVERY_S + silent_ms + show_ms <= 5_000
        assert silent_ms > 2 * 1_000 * EVERY_S, "a sign and a question may each be a second old"


@pytest.mark.clickhouse
async def test_a_sink_lives_while_its_newest_sign_changes(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    client.command("TRUNCATE TABLE sinks")
    pulse = Pulse(clickhouse, None, every_s=0.05)
    with pulse.listening():
        await asyncio.sleep(0.5)
        assert told(pulse.event())["sink_s"] is None, "no sink has ever written"
        for _ in range(5):
            client.command(SIGN)
            await asyncio.sleep(0.2)
        alive = told(pulse.event())
        await asyncio.sleep(1.0)
        gone = told(pulse.event())
    pulse.close()
    client.close()
    assert alive["sink_s"] < 0.8
    assert gone["sink_s"] > 1.0
    assert gone["clickhouse_s"] < 0.8, "it answers all the time"


@pytest.mark.clickhouse
async def test_a_clickhouse_that_hangs_gives_no_answer_and_one_without_the_table_does(clickhouse: str) -> None:
    silent = Silent()
    pulse = Pulse(silent.url, None, every_s=0.05)
    with pulse.listening():
        await asyncio.sleep(0.5)
        assert told(pulse.event())["clickhouse_s"] >= 0.45
    silent.hang_up()
    pulse.close()
    client = open_client(clickhouse)
    client.command("CREATE DATABASE IF NOT EXISTS bare")
    client.close()
    bare = Pulse(f"{clickhouse}/bare", None, every_s=0.05)
    with bare.listening():
        await asyncio.sleep(1.0)
        assert told(bare.event())["clickhouse_s"] < 0.8
        assert told(bare.event())["sink_s"] is None
    bare.close()


async def test_nothing_is_asked_while_no_page_is_open() -> None:
    silent = Silent()
    pulse = Pulse(silent.url, None, every_s=0.05)
    with pulse.listening(), pulse.listening():
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    assert not [task for task in asyncio.all_tasks() if "Pulse._ask" in repr(task)]
    silent.hang_up()
    pulse.close()


def test_pages_of_records_have_a_stream_of_pulses_and_other_pages_hear_them_while_a_query_hangs() -> None:
    with served_with_silent_clickhouse() as url:
        for path in ("/api/pulse/stream", "/stream", "/fleet/stream"):
            with urllib.request.urlopen(url + path, timeout=10) as stream:
                lines = [stream.readline().decode() for _ in range(2)]
            assert lines[0] == "event: pulse\n"
            assert set(told(lines[1])) == {"clickhouse_s", "sink_s"}


@contextmanager
def dashboard_process(clickhouse_url: str, folder: Path) -> Iterator[str]:
    """A dashboard with its real refreshes, as a process."""
    port = free_port()
    env = {
        "HEADRACE_CLICKHOUSE": clickhouse_url, "HEADRACE_DASHBOARD_PORT": str(port), "HEADRACE_DATA": str(folder),
    }  # fmt: skip
    child = Child(Command((sys.executable, "-m", "headrace.deploy.cli", "worker", "dashboard"), env), folder / "log")
    url = f"http://{HOST}:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/healthz", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        child.stop()


@contextmanager
def open_pages(urls: Sequence[str]) -> Iterator[list[Page]]:
    """A page for each of ``urls``, each with connections of its own: a browser opens six to a server at most."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        pages = [browser.new_context(locale="en-US").new_page() for _ in urls]
        for page, url in zip(pages, urls, strict=True):
            page.goto(url)
        yield pages
        browser.close()


def all_show(pages: Sequence[Page], selector: str, words: str) -> None:
    """Wait until all ``pages`` show ``selector``, with ``words``; a busy machine may need longer than five seconds."""
    for page in pages:
        page.wait_for_selector(selector, timeout=20_000)
    assert [page.url for page in pages if words not in page.locator("#state").inner_text()] == []


@contextmanager
def stopped(port: int) -> Iterator[None]:
    """A ``with`` block in which the process that listens on ``port`` does not run."""
    (pid,) = {each.pid for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port}
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_a_sink_and_a_clickhouse_that_stop_are_shown_on_every_page(
    clickhouse: str, clickhouse_reader: str, tmp_path: Path
) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    ended = threading.Event()

    def give_signs() -> None:
        while not ended.wait(1.0):
            client.command(SIGN)

    sink = threading.Thread(target=give_signs)
    sink.start()
    try:
        with dashboard_process(clickhouse_reader, tmp_path) as url, open_pages([url + path for path in PATHS]) as pages:
            for page in pages:
                page.wait_for_selector("#state[data-state=live]:not([data-stale])", timeout=30_000)
            ended.set()
            sink.join()
            all_show(pages, "#state[data-stale]", "the sink has written nothing to ClickHouse for")
            client.command(SIGN)
            for page in pages:
                page.wait_for_selector("#state[data-state=live]:not([data-stale])", timeout=10_000)
            with stopped(urlsplit(clickhouse).port or 0):
                all_show(pages, "#state[data-state=slow]", "ClickHouse has not answered for")
    finally:
        ended.set()
        sink.join()
        client.close()
