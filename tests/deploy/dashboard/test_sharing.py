"""A shared link shows its run and nothing else, until it expires."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from headrace.deploy.cli import cli
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import OF_RUN
from headrace.deploy.dashboard.sharing import (
    MAX_STREAMS,
    SHARED_PANELS,
    Share,
    SharedRuns,
    TokenProblem,
    key_file,
    make_key,
    open_token,
    restricted,
    sign,
)
from headrace.streams.clickhouse.database import open_client
from tests.deploy.dashboard.seed import seed_run
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium

KEY = bytes(range(32))
OTHER = "another-run-of-somebody-else"


@given(st.text(min_size=1, max_size=300), st.integers(0, 2**40))
def test_a_token_says_what_was_signed(run: str, expires: int) -> None:
    token = sign(Share(run, expires), KEY)
    assert open_token(token, KEY, expires - 1) == Share(run, expires)
    assert open_token(token, KEY, expires) is TokenProblem.EXPIRED
    assert open_token(token, bytes(32), expires - 1) is TokenProblem.FORGED
    assert open_token(token, None, expires - 1) is TokenProblem.FORGED


@given(st.data())
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    token = sign(Share("demo", 10), KEY)
    at = data.draw(st.integers(0, len(token) - 1))
    changed = token[:at] + data.draw(st.sampled_from("AQz09-_.=%")) + token[at + 1 :]
    found = open_token(changed, KEY, 0)
    # The last character of base64 may have bits that mean nothing.
    assert found is TokenProblem.FORGED or found == Share("demo", 10)


@given(st.text(max_size=100))
def test_any_text_is_refused_as_a_token(text: str) -> None:
    assert open_token(text, KEY, 0) is TokenProblem.FORGED


def test_a_token_for_all_runs_is_refused() -> None:
    assert open_token(sign(Share("", 10), KEY), KEY, 0) is TokenProblem.FORGED


def test_only_panels_about_one_run_are_shared() -> None:
    pages = {page.path: page for page in PAGES}
    for path, shared in SHARED_PANELS.items():
        panels = {panel.name: panel for panel in pages[path].panels}
        assert shared <= panels.keys()
        assert all(OF_RUN in panels[name].sql for name in shared - {"runs"})
        assert "alerts" not in shared, "their sentences name other things"


def test_what_a_snapshot_has_besides_is_left_out() -> None:
    answer = {
        "run": "demo", "problem": None, "others": ["secret"],
        "panels": {"runs": {"run": ["x", "demo"], "reward": [1, 2], "all_runs": [2, 2]}, "new": {"run": ["x"]}},
    }  # fmt: skip
    runs = {"run": ["demo"], "reward": [2], "all_runs": [1]}
    assert restricted(answer, "", "demo") == {
        "run": "demo", "problem": None, "panels": {"runs": runs, "new": {"run": []}},
    }  # fmt: skip
    failed = restricted({"run": "demo", "problem": "no run 'demo': there are x, y", "panels": {}}, "", "demo")
    assert "x, y" not in failed["problem"]


async def test_whoever_has_a_link_cannot_use_up_the_pages_of_those_who_run_the_stack(tmp_path: Path) -> None:
    file = key_file(tmp_path)
    path = f"/shared/{sign(Share('mine', int(time.time()) + 60), make_key(file))}/stream"
    opened, closed = asyncio.Semaphore(0), asyncio.Event()
    answers: list[int] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        opened.release()
        await closed.wait()

    async def send(message: Message) -> None:
        answers.extend([message["status"]] if message["type"] == "http.response.start" else [])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    shared = SharedRuns(page, file=file)
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    tasks = [asyncio.create_task(shared(scope, receive, send)) for _ in range(MAX_STREAMS)]
    for _ in tasks:
        await opened.acquire()
    await shared(scope, receive, send)
    assert answers == [503]
    closed.set()
    await asyncio.gather(*tasks)
    await shared(scope, receive, send)
    assert answers == [503], "a page that was closed makes room for another"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_file(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def dashboard(clickhouse: str, clickhouse_reader: str, key: Path) -> Iterator[str]:
    client = open_client(clickhouse)
    seed_run(client, "mine", versions=3)
    seed_run(client, OTHER, versions=6, seed=1)
    with served(clickhouse_reader, share_key=key) as url:
        yield url


def link(dashboard: str, key: Path, run: str = "mine", life_s: float = 3600) -> str:
    return f"{dashboard}/shared/{sign(Share(run, int(time.time() + life_s)), make_key(key))}"


def get(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def snapshot(url: str) -> dict[str, Any]:
    status, text = get(f"{url}/api/snapshot")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.clickhouse
@pytest.mark.parametrize("page", ["", "/trainer"])
def test_a_link_shows_the_figures_of_its_run_and_no_word_of_another(dashboard: str, key: Path, page: str) -> None:
    shared = link(dashboard, key) + page
    found = snapshot(shared)
    whole = json.loads(get(f"{dashboard}{page}/api/snapshot?run=mine")[1])
    assert OTHER in json.dumps(whole)
    assert OTHER not in json.dumps(found)
    assert found["panels"]["runs"]["run"] == ["mine"]
    for name in SHARED_PANELS[page] - {"runs", "totals"}:
        assert found["panels"][name] == whole["panels"][name]
    assert sum(any(found["panels"][name].values()) for name in SHARED_PANELS[page]) > len(SHARED_PANELS[page]) / 2
    hidden = found["panels"].keys() - SHARED_PANELS[page]
    assert {"alerts", "activity"} <= hidden
    assert not any(values for name in hidden for values in found["panels"][name].values())


@pytest.mark.clickhouse
@pytest.mark.parametrize("query", [f"?run={OTHER}", "?run=", f"?RUN={OTHER}&run=mine&run={OTHER}"])
def test_a_link_shows_its_run_whatever_is_asked_for(dashboard: str, key: Path, query: str) -> None:
    status, text = get(f"{link(dashboard, key)}/api/snapshot{query}")
    assert status == 200
    assert (json.loads(text)["run"], OTHER in text) == ("mine", False)
    with urllib.request.urlopen(f"{link(dashboard, key)}/stream{query}") as stream:
        event = stream.readline().decode()
    assert event.startswith("data: ")
    assert OTHER not in event


@pytest.mark.clickhouse
@pytest.mark.parametrize(
    "path",
    ["/api/panels/alerts", "/api/guide", "/healthz", "/explore", "/static/page.js", "/../api/snapshot",
     "/%2e%2e/api/snapshot", "//api/snapshot", "/trainer/../api/panels/alerts", "/shared", "/watch", "/trajectory/x"],
)  # fmt: skip
def test_a_link_leads_nowhere_else(dashboard: str, key: Path, path: str) -> None:
    status, text = get(link(dashboard, key) + path)
    assert status == 404, text
    assert OTHER not in text


@pytest.mark.clickhouse
def test_a_link_leads_to_the_queries_of_its_panels_and_of_charts_that_are_drawn_from_them(
    dashboard: str, key: Path
) -> None:
    for page, shared in SHARED_PANELS.items():
        status, text = get(f"{link(dashboard, key)}{page}/api/panels")
        every = json.loads(get(f"{dashboard}{page}/api/panels")[1])
        expected = [each for each in every if each["name"] in shared or each["source"] in shared]
        assert (status, json.loads(text)) == (200, expected)
        assert shared < {each["name"] for each in every}


@pytest.mark.clickhouse
def test_a_link_can_only_be_read_and_only_while_it_is_valid(dashboard: str, key: Path) -> None:
    shared = link(dashboard, key)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert get(f"{shared}/api/snapshot", method)[0] == 405
    assert get(f"{shared}/api/snapshot", "HEAD")[0] == 200
    status, text = get(f"{link(dashboard, key, life_s=-1)}/api/snapshot")
    assert (status, "has expired" in text) == (403, True)
    assert get(f"{dashboard}/shared/x.y/api/snapshot")[0] == 403
    make_key(key, replace=True)
    status, text = get(f"{shared}/api/snapshot")
    assert (status, "not valid" in text) == (403, True)
    assert get(f"{dashboard}/api/snapshot")[0] == 200


@pytest.mark.clickhouse
def test_a_page_that_is_open_when_its_link_expires_gets_nothing_more(dashboard: str, key: Path) -> None:
    with urllib.request.urlopen(f"{link(dashboard, key, life_s=2)}/stream") as stream:
        lines = iter(stream.readline, b"")
        assert next(lines).startswith(b"data: ")
        assert b"event: expired\n" in lines


def test_a_dashboard_without_a_key_shares_nothing(tmp_path: Path) -> None:
    with served("http://127.0.0.1:1", share_key=tmp_path / "none") as url:
        assert get(f"{url}/shared/{sign(Share('mine', 2**40), KEY)}/api/snapshot")[0] == 403


def test_the_command_prints_a_link_and_revokes_it(tmp_path: Path) -> None:
    def share(*arguments: str) -> Any:
        return CliRunner().invoke(cli, ["share", *arguments, "--data", str(tmp_path)])

    done = share("demo", "--address", "https://headrace.example.org", "--days", "2")
    assert done.exit_code == 0, done.output
    address, _, token = done.stdout.strip().rstrip("/").rpartition("/")
    assert address == "https://headrace.example.org/shared"
    file = key_file(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    opened = open_token(token, file.read_bytes(), time.time())
    assert isinstance(opened, Share)
    assert opened.run == "demo"
    assert 86_400 < opened.expires - time.time() <= 2 * 86_400
    assert share("--revoke-all").exit_code == 0
    assert open_token(token, file.read_bytes(), time.time()) is TokenProblem.FORGED
    assert share().exit_code == 2
    assert share("demo", "--revoke-all").exit_code == 2
    assert share("demo", "--address", "nowhere").exit_code == 2


@pytest.mark.clickhouse
def test_a_run_that_does_not_exist_is_a_warning(dashboard: str, clickhouse_reader: str, tmp_path: Path) -> None:
    def share(run: str, clickhouse: str) -> str:
        options = [run, "--address", "https://headrace.example.org", "--data", str(tmp_path)]
        done = CliRunner(env={"HEADRACE_CLICKHOUSE": clickhouse}).invoke(cli, ["share", *options])
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("https://headrace.example.org/shared/")
        return done.stderr

    assert "warning: There is no run 'mien'. Is it 'mine'? The link shows it" in share("mien", clickhouse_reader)
    assert "warning" not in share("mine", clickhouse_reader)
    assert "warning" not in share("mien", "http://127.0.0.1:1"), "nobody can be asked"


@pytest.mark.browser
@pytest.mark.clickhouse
@needs_chromium
def test_a_shared_page_draws_its_run_and_its_links_stay_within_the_token(dashboard: str, key: Path) -> None:
    shared = link(dashboard, key)
    with browser_page() as (page, complaints):
        page.goto(f"{shared}/")
        page.wait_for_selector("#reward canvas")
        assert page.locator("label.run").is_hidden()
        # No card says of what is not shared that there is none.
        assert set(page.locator("#cards > .cards > .card").evaluate_all("all => all.map((card) => card.id)")) == (
            SHARED_PANELS[""] - {"totals"}
        )
        targets = page.eval_on_selector_all("nav a", "links => links.map(link => new URL(link.href).pathname)")
        assert targets == [f"{shared.removeprefix(dashboard)}{path}" for path in ("/", "/trainer")]
        page.click("nav a:nth-of-type(2)")
        page.wait_for_selector("#loss canvas")
        assert page.locator("#alerts").count() == 0
        assert OTHER not in page.content()
        assert complaints == []
