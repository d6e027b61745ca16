"""The guide of the first run: its commands do what they say."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.deploy.dashboard.guide import ways
from headrace.schemas.events import ModelCalled, TrajectoryEnded
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium


def command(name: str, kafka: str | None = None, gateway: str | None = None) -> str:
    return next(way.command for way in ways(kafka, gateway) if way.name == name)


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    search = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the guide speaks to an activated environment
    )
    env = {**os.environ, "PATH": search, "HEADRACE_DATA": str(folder / "data"), "HEADRACE_CACHE": str(folder / "cache")}
    argv = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


async def outcomes(kafka: str) -> list[float | None]:
    facts = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, EVENTS)]
    return [fact.outcome for fact in facts if isinstance(fact, TrajectoryEnded)]


@pytest.mark.kafka
async def test_the_sdk_and_the_import_send_what_they_say(kafka: str, tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, command("sdk", kafka), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(await outcomes(kafka), key=float) == [0.0, 1.0]  # type: ignore[arg-type]
    done = await asyncio.to_thread(run, command("import", kafka), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 trajectories in 1 groups" in done.stdout
    assert sorted(await outcomes(kafka), key=float) == [0.0, 0.0, 1.0, 1.0]  # type: ignore[arg-type]
    facts = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, EVENTS)]
    assert len([fact for fact in facts if isinstance(fact, ModelCalled)]) == 4


def test_the_gateway_s_command_asks_for_the_model_and_sends_it_a_message(tmp_path: Path) -> None:
    asked: list[tuple[str, object]] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Host"]))
            self.answer({"object": "list", "data": [{"id": "small"}]})

        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.answer({"choices": [{"message": {"role": "assistant", "content": "We have boots."}}]})

        def answer(self, body: object) -> None:
            content = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"127.0.0.1:{server.server_port}"
        done = run(command("gateway", gateway=f"http://{address}"), tmp_path)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert "We have boots." in done.stdout
    said = [{"role": "user", "content": "Do you have boots?"}]
    assert asked == [
        ("/v1/models", address),
        ("/v1/chat/completions", {"model": "small", "max_tokens": 32, "messages": said}),
    ]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in command("gateway", gateway="http://user:secret@host:8200")


def test_without_a_gateway_the_page_says_how_to_get_one() -> None:
    assert command("gateway") == "headrace up --model-dir MODEL"
    about = next(way.about for way in ways("broker:9092", None) if way.name == "gateway")
    assert "needs a model" in about
    assert "broker:9092" in command("sdk", "broker:9092")
    assert "localhost:9092" in command("sdk")


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_guide_is_shown_until_something_was_recorded(
    clickhouse: str, clickhouse_reader: str, width: int, scheme: str
) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    for table in ("events", "starts"):
        client.command(f"TRUNCATE TABLE {table}")
    with served(clickhouse_reader) as url, browser_page(width, scheme) as (page, complaints):
        page.goto(url)
        page.wait_for_selector("#guide .way")
        assert page.locator("#guide .way").count() == 3
        assert page.locator("#cards").is_hidden(), "twelve empty charts say nothing more"
        assert command("sdk").splitlines()[1] in page.locator("#guide .way pre").first.inner_text()
        page.locator("#guide button.copy").first.click()
        wide = page.evaluate(
            "[...document.querySelectorAll('#guide *')].filter(node => node.getBoundingClientRect().right > innerWidth"
            " && !node.closest('pre')).map(node => node.outerHTML.slice(0, 80))"
        )
        assert wide == [], "nothing is cut off"
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=f"{folder}/guide-{width}-{scheme}.png", full_page=True)
        client.command(
            "INSERT INTO events (id_sent, type, logged_at, time, trajectory_id, started_run) "
            "SELECT 'e1', 'headrace.trajectory.started.v1', now64(3), now64(3), 't1', 'first'"
        )
        compute_missing(client)
        page.wait_for_selector("#guide", state="hidden")
        assert page.locator("#cards").is_visible()
        assert complaints == []
