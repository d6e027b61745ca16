"""The pages are true: their snippets run with the results shown, and the commands, links and paths in them exist."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.agents.gateway.gateway import signing_secret
from headrace.agents.gateway.sealed import FeedbackTarget, Sealer
from headrace.deploy.cli import cli
from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.stack.stack import running_stack
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.streams.clickhouse.database import open_client
from headrace.streams.ledger.ledger import read_ledger
from tests.agents.adapters.scripted import scripted_endpoint
from tests.agents.adapters.shop import ANSWER, chat_shop, response_shop
from tests.beside import installed
from tests.trainer.provenance.published_run import publish_run, train

ROOT = Path(__file__).parents[1]
FOLDERS = ("schemas", "agents", "streams", "trainer", "deploy")
PAGES = sorted(
    path
    for pattern in ("*.md", *(f"{folder}/**/*.md" for folder in ("agents", "streams", "trainer", "deploy", "tests")))
    for path in ROOT.glob(pattern)
)
"""Every page of the repository."""
CODE = re.compile(r"^```(?P<language>\w+)(?: (?P<name>[\w-]+))?\n(?P<text>.*?)^```", re.S | re.M)
"""A fenced block; those with a name are snippets, which tests run."""
BLOCKS = {block["name"]: block["text"] for page in PAGES for block in CODE.finditer(page.read_text()) if block["name"]}
AIRLINE = ROOT.parent / "shared" / "data" / "airline-gpt4o-tasks-00-24.jsonl"
MODEL_PARTS = ("vllm", "trainer", "follower")
LANGCHAIN_AGENT = """
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.prebuilt import create_react_agent


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self


call = {"name": "search", "args": {"query": "size 44"}, "id": "1"}
model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("We have both.")]))
print(ask(create_react_agent(model, [search]), "order-17", "boots in 44?"))
"""


def run(*argv: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    cache = {"HEADRACE_CACHE": os.environ["HEADRACE_CACHE"]} if "HEADRACE_CACHE" in os.environ else {}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        argv,
        cwd=cwd,
        env=inherited | cache | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )


def test_every_snippet_is_run_by_a_test() -> None:
    run_here = {
        "tour",
        "first-events",
        "sdk",
        "openai",
        "langchain",
        "openai-agents",
        "pydantic-ai",
        "litellm",
        "mcp",
        "otel",
        "masking",
        "feedback-token",
        "consumer",
        "drive",
        "reward",
        "hints",
        "history",
        "provenance",
        "train",
        "airline-rewards",
        "airline-groups",
        "airline-tools",
    }
    run_by_test_questions = {
        "component-drift",
        "tokens-per-success",
        "tool-failures",
        "feedback-coverage",
        "why-rejected",
        "zero-variance",
        "top-by-advantage",
        "staleness",
        "context-changes",
        "reward-and-length",
        "changed-by-feedback",
        "cost-of-a-version",
    }
    run_by_test_consumers = {"kcat-alerts", "kcat-headers", "kcat-rewards"}
    run_by_tests_of_examples = {"typescript", "curl-session"}
    run_by_tests_of_clients = {"claude-agent-sdk"}
    run_by_test_archiver = {"duckdb", "archive-pandas"}
    found = [block for page in PAGES for block in CODE.finditer(page.read_text()) if block["language"] != "mermaid"]
    assert sorted(block["name"] or block["text"] for block in found) == sorted(
        run_here
        | run_by_test_questions
        | run_by_test_consumers
        | run_by_tests_of_examples
        | run_by_tests_of_clients
        | run_by_test_archiver
    )


def test_every_link_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text()))
        if not link.startswith("http") and not leads_somewhere(page, link)
    ]
    assert not broken


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or heading in anchors(target.read_text()))


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_readme_in_one_click() -> None:
    readme = (ROOT / "README.md").read_text()
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)\s]+)\)", readme)}
    runbooks = {page for page in PAGES if page.parent.name == "runbooks"}  # their list is reached, and lists them
    assert set(PAGES) - linked - runbooks == {ROOT / "README.md"}


def test_contributing_names_every_module_or_its_package() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Packages and modules")[2]
    named = set(re.findall(r"`([\w/.]+)`", page))
    modules = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 500
    unnamed = [
        str(path)
        for path in modules
        if str(path) not in named and not any(f"{parent}/" in named for parent in path.parents if len(parent.parts) > 1)
    ]
    assert [path for path in unnamed if "/examples/" not in path] == []


def test_every_file_that_a_page_names_exists() -> None:
    named = re.compile(r"`((?:schemas|agents|streams|trainer|deploy|tests)/[\w./-]*\w(?:\.\w+)?/?)`")
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in PAGES
        if page.name != "DECISIONS.md"  # which also names what was removed
        for path in named.findall(page.read_text())
        if not (ROOT / path).exists()
    ]
    assert not missing


def test_every_command_on_a_page_exists() -> None:
    written = [
        (page.relative_to(ROOT), line)
        for page in PAGES
        if page.name != "DECISIONS.md"  # which also names what was removed
        for line in re.findall(r"(?:^|[ `(])headrace ([a-z][^`#\n]*)", in_code(page.read_text()), re.M)
    ]
    assert len(written) > 50
    wrong = [f"{page}: headrace {line}: {problem}" for page, line in written if (problem := problem_of(line))]
    assert not wrong


def in_code(text: str) -> str:
    """Code of a page, a span or a line of a block at a time."""
    spans = re.findall(r"`([^`\n]+)`", CODE.sub("", text))
    blocks = [line for block in CODE.finditer(text) for line in block["text"].splitlines()]
    indented = re.findall(r"^    (?! )(.+)$", CODE.sub("", text), re.M)
    return "\n".join([*spans, *blocks, *indented])


def problem_of(line: str) -> str | None:
    """What is wrong with a command line without its first word; options are looked up and not run."""
    words = line.replace("…", "").replace(",", "").split()
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, words = words[0], words[1:]
        found = command.get_command(context, name)
        if found is None:
            return f"no command {name!r}"
        command = found
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    unknown = [word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word) and word not in known]
    return f"no option {unknown[0]}" if unknown else None


def test_a_reward_is_tried_without_a_broker(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(BLOCKS["reward"])
    done = run(sys.executable, "-c", BLOCKS["drive"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_spec_with_hints_is_loaded_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "hinted.py").write_text(BLOCKS["hints"])
    program = "from headrace.streams.rewards.registry import load_spec; print(load_spec('hinted.py:CODER').label)"
    done = run(sys.executable, "-c", program, cwd=tmp_path)
    assert done.stdout.strip() == "coder@1", done.stderr


@pytest.mark.kafka
async def test_a_few_lines_in_an_agent(kafka: str) -> None:
    done = await asyncio.to_thread(run, sys.executable, "-c", BLOCKS["sdk"].replace("localhost:9092", kafka))
    assert (done.returncode, done.stderr) == (0, "")
    types = [dict(record.headers)["ce_type"].decode() async for record in read_to_end(kafka, EVENTS)]
    assert [name.split(".", 1)[1] for name in types] == [
        "trajectory.started.v1",
        "tool.called.v1",
        "tool.returned.v1",
        "model.called.v1",
        "trajectory.ended.v1",
    ]
    assert len([record async for record in read_to_end(kafka, FEEDBACK)]) == 1


@pytest.mark.kafka
async def test_the_first_events(kafka: str) -> None:
    done = await asyncio.to_thread(run, sys.executable, "-c", BLOCKS["first-events"].replace("localhost:9092", kafka))
    assert (done.returncode, done.stderr) == (0, "")
    started, called, ended = await payloads_of_last(kafka, 3)
    assert (started["agent"], called["messages"][0]["content"]) == ("checkout", "We have both.")
    assert (ended["answer"], ended["outcome"]) == ("in stock", 1.0)


@pytest.mark.kafka
async def test_what_the_page_masks_is_hidden(kafka: str) -> None:
    done = await asyncio.to_thread(run, sys.executable, "-c", BLOCKS["masking"].replace("localhost:9092", kafka))
    assert (done.returncode, done.stderr) == (0, "")
    _, called, returned, _ = await payloads_of_last(kafka, 4)
    assert called["arguments"] == {"to": "[email]", "card": "[payment_card]"}
    assert called["masked"] == {"email": 1, "payment_card": 1}
    assert returned["result"] == "[name] gets her money for [order]"


def test_a_feedback_token_is_made_without_a_connection(tmp_path: Path) -> None:
    secret = signing_secret(tmp_path / ".headrace" / "gateway")
    done = run(sys.executable, "-c", BLOCKS["feedback-token"] + "\nprint(token)", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    target = Sealer([secret]).open_feedback(done.stdout.strip(), time.time())
    assert target == FeedbackTarget("acme", "019ab3f0-0000-7000-8000-000000000017")


@pytest.mark.kafka
async def test_an_openai_client(kafka: str) -> None:
    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": "Yes."}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            body = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-4o-2024", "choices": [choice]}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        environment = {"HEADRACE_KAFKA": kafka, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
        done = await asyncio.to_thread(run, sys.executable, "-c", BLOCKS["openai"], **environment)
        server.shutdown()
    assert (done.returncode, done.stderr) == (0, "")
    _, called, ended = await payloads_of_last(kafka, 3)
    assert called["model"] == "gpt-4o-2024"
    assert [message["content"] for message in called["messages"]] == ["Do you have these boots in 44?", "Yes."]
    assert ended["answer"] == "Yes."


OTEL_AGENT = """
tracer = trace.get_tracer("agent")
with tracer.start_as_current_span("invoke_agent shop", attributes={"gen_ai.operation.name": "invoke_agent"}):
    messages = '[{"role": "assistant", "parts": [{"type": "text", "content": "We have both."}]}]'
    asked = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o", "gen_ai.output.messages": messages}
    with tracer.start_as_current_span("chat gpt-4o", attributes=asked):
        pass
"""


@pytest.mark.kafka
async def test_an_instrumented_agent(kafka: str) -> None:
    done = await asyncio.to_thread(run, sys.executable, "-c", BLOCKS["otel"] + OTEL_AGENT, HEADRACE_KAFKA=kafka)
    assert (done.returncode, done.stderr) == (0, "")
    started, called, _ = await payloads_of_last(kafka, 3)
    assert "otel" in started["task"]
    assert (called["model"], called["messages"][-1]["content"]) == ("gpt-4o", "We have both.")


@pytest.mark.kafka
async def test_a_langchain_agent(kafka: str) -> None:
    path = os.pathsep.join([str(installed(ROOT / "tests" / "langchain.txt")), os.environ.get("PYTHONPATH", "")])
    program = BLOCKS["langchain"] + LANGCHAIN_AGENT
    done = await asyncio.to_thread(
        run, sys.executable, "-W", "ignore", "-c", program, HEADRACE_KAFKA=kafka, PYTHONPATH=path
    )
    assert (done.returncode, done.stdout) == (0, "We have both.\n"), done.stderr
    started, asked, called, returned, answered, ended = await payloads_of_last(kafka, 6)
    assert (started["task_id"], started["session"]) == ("order-17", "thread-7")
    assert asked["messages"][-1]["tool_calls"][0]["function"]["name"] == called["tool"] == "search"
    assert called["arguments"] == {"query": "size 44"}
    assert returned["result"] == ["boots", "sandals"]
    assert answered["messages"][-1]["content"] == ended["answer"] == "We have both."


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("name", "said", "called"),
    [
        ("openai-agents", ANSWER, 2),
        ("pydantic-ai", ANSWER, 2),
        ("litellm", "", 1),
        ("mcp", "boots\n", 0),
    ],
)
async def test_agents_of_other_libraries(name: str, said: str, called: int, kafka: str) -> None:
    requirements = ROOT / "tests" / "agents" / "adapters" / f"{name}.txt"
    beside = [str(installed(requirements))] if requirements.exists() else []
    path = os.pathsep.join([*beside, os.environ.get("PYTHONPATH", "")])
    with scripted_endpoint() as endpoint:
        endpoint.model = lambda body: response_shop(body) if "input" in body else chat_shop(body)
        environment = {
            "HEADRACE_KAFKA": kafka,
            "OPENAI_BASE_URL": endpoint.url,
            "OPENAI_API_KEY": "none",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PYTHONPATH": path,
        }
        done = await asyncio.to_thread(run, sys.executable, "-W", "ignore", "-c", BLOCKS[name], **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(said)
    tools = {"litellm": 0}.get(name, 1)
    _, *middle, ended = await payloads_of_last(kafka, 2 + called + 2 * tools)
    assert sum("messages" in each for each in middle) == called
    assert [each["tool"] for each in middle if "tool" in each] == ["search"] * 2 * tools
    assert ended["status"] == "completed"


async def payloads_of_last(kafka: str, count: int) -> list[dict[str, Any]]:
    """The payloads of the newest trajectory's ``count`` events, in order."""
    records = [record async for record in read_to_end(kafka, EVENTS)]
    newest = max(records, key=lambda record: record.timestamp).key
    values = [record.value for record in records if record.key == newest]
    assert len(values) == count
    return [json.loads(value) for value in values if value is not None]


@pytest.mark.kafka
@pytest.mark.clickhouse
@pytest.mark.slow
def test_the_tour(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(BLOCKS["reward"])
    history = (
        BLOCKS["history"].replace("rewards.py:", f"{tmp_path}/rewards.py:").replace("diff.png", f"{tmp_path}/d.png")
    )
    tour = BLOCKS["tour"].replace("headrace down\n", history + "headrace down\n")
    done = run("bash", "-euo", "pipefail", "-c", tour, HEADRACE_DATA=str(tmp_path / "data"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "adds up" in done.stdout.lower()
    first, second = re.findall(r"(\d+) events sent, (\d+) already in the log; 4 bad lines", done.stdout)
    assert int(first[0]) == int(second[1]) > 0
    assert first[1] == second[0] == "0"
    assert "brief@1: 0 errors" in done.stdout
    assert done.stdout.count("/metrics") >= 3
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


def test_a_training_run_can_be_looked_at_before_it_begins(tmp_path: Path) -> None:
    done = run("bash", "-euo", "pipefail", "-c", BLOCKS["train"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "groups_per_step = 4" in done.stdout
    assert "effective_sample_size" in done.stdout


@pytest.mark.kafka
def test_a_step_is_rebuilt_and_traced(kafka: str, tmp_path: Path) -> None:
    asyncio.run(publish_run(kafka, "told", 6))
    train(kafka, tmp_path, "told", 3)
    done = run("bash", "-euo", "pipefail", "-c", BLOCKS["provenance"], cwd=tmp_path, HEADRACE_KAFKA=kafka)
    assert done.returncode == 0, done.stdout + done.stderr
    for made in ("step-3.safetensors", "version-3.svg", "trajectory.svg"):
        assert (tmp_path / made).stat().st_size > 0


def figures(block: str) -> set[tuple[str, ...]]:
    """The rows that a snippet's last line promises."""
    promised = block.strip().splitlines()[-1].removeprefix("-- ")
    return {tuple(value.strip(" '") for value in row.split(",")) for row in re.split(r"\s{2,}", promised)}


@pytest.mark.kafka
@pytest.mark.clickhouse
@pytest.mark.slow
@pytest.mark.skipif(
    not AIRLINE.exists() and "CI" not in os.environ, reason="the recorded airline runs are not beside the repository"
)
async def test_the_airline_runs_are_counted_alike_in_kafka_and_clickhouse_however_often_they_are_imported(
    tmp_path: Path,
) -> None:
    settings = load_settings(data=str(tmp_path))
    async with running_stack(settings, without=MODEL_PARTS) as stack:
        kafka = stack.addresses["kafka"]
        client = await asyncio.to_thread(
            open_client, stack.addresses["clickhouse"], secrets=stack.settings.clickhouse_secrets
        )
        for _ in range(2):
            imported = await asyncio.to_thread(run, "headrace", "import", str(AIRLINE), "--kafka", kafka)
            assert imported.returncode == 0, imported.stderr
            await until_everything_has_a_fate(kafka)
            counted = await asyncio.to_thread(run, sys.executable, "-c", BLOCKS["consumer"], HEADRACE_KAFKA=kafka)
            assert counted.stdout.strip() == "(100, 0.31)", counted.stderr
            for name in ("airline-rewards", "airline-groups", "airline-tools"):
                await until_answered(client, BLOCKS[name], figures(BLOCKS[name]))

        ledger = await read_ledger(kafka)
        assert ledger.rejected_by == {
            "group": {"no_token_ids": 44, "zero_variance_all_fail": 40, "zero_variance_all_success": 16}
        }


async def until_everything_has_a_fate(kafka: str) -> None:
    async with asyncio.timeout(60):
        while not ((ledger := await read_ledger(kafka)).started == 100 and ledger.pending == 0):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert ledger.adds_up, ledger


async def until_answered(client: object, sql: str, expected: set[tuple[str, ...]]) -> None:
    """Poll until ClickHouse, which is a moment behind the log, gives ``expected``."""
    rows: set[tuple[str, ...]] = set()
    for _ in range(60):
        result = await asyncio.to_thread(client.query, sql)  # type: ignore[attr-defined]
        rows = {tuple(map(str, row)) for row in result.result_rows}
        if rows == expected:
            return
        await asyncio.sleep(0.5)
    assert rows == expected, sql
