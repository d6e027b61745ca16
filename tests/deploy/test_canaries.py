"""Plants a secret in every setting and an escape in every name, and searches for them in all output of headrace.

A real stack runs with passwords in its addresses and options, over a log in which every id, name and message holds
control characters, line ends, a bidirectional override and broken markup.
"""

import asyncio
import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from xml.etree import ElementTree

import psutil
import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from starlette.testclient import TestClient

from headrace.deploy.cli import cli
from headrace.deploy.dashboard.server import dashboard_app
from headrace.schemas.examples import EXAMPLES, OTHER, TRAJECTORY, Example
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import TOPICS
from headrace.schemas.wire import Message
from tests.deploy.system.test_data_folder import open_to_others

SECRET = "cAnArYs3cret"
NASTY = "\x1b[31m\x9b2J\r\n\u202e\x7f" + r"$\frac{$ <script>alert(1)</script> & ]]> --"
FORBIDDEN = frozenset(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E)) - {"\n"}
HEADRACE = (sys.executable, "-m", "headrace.deploy.cli")
WITH_SECRET = {
    "HEADRACE_KAFKA": f"reader:{SECRET}@127.0.0.1:9092",
    "HEADRACE_CLICKHOUSE": f"http://reader:{SECRET}@127.0.0.1:1",
    "HEADRACE_VLLM": f"http://reader:{SECRET}@127.0.0.1:1/?api_key={SECRET}",
    "HEADRACE_OTLP": f"http://reader:{SECRET}@127.0.0.1:99999",
    "HEADRACE_STORE_URL": f"s3://key:{SECRET}@bucket/prefix",
    "HEADRACE_OPTIONS": json.dumps({"workers": {"judge_password": SECRET, "judge_url": f"http://u:{SECRET}@h:1"}}),
}


def clean(text: str) -> None:
    assert SECRET not in text
    assert not set(text) & FORBIDDEN, sorted(set(text) & FORBIDDEN)


def poisoned(value: Any, model: type[Any]) -> Any:
    """Returns ``value`` with the canary appended to every text and name for which the model allows it."""

    def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for step, each in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            yield (*at, step)
            yield from places(each, (*at, step))

    for *above, last in sorted(places(value), key=len, reverse=True):
        tried = copy.deepcopy(value)
        holder = tried
        for step in above:
            holder = holder[step]
        for change in ("value", "name"):
            if change == "value" and isinstance(holder[last], str):
                holder[last] += NASTY
            elif change == "name" and isinstance(last, str):
                holder[last + NASTY] = holder.pop(last)
            else:
                continue
            with contextlib.suppress(ValidationError):
                made = model.model_validate_json(json.dumps(tried)).model_dump(mode="json")
                # A field that the model ignores is left as it is.
                if json.dumps(made).count("script") >= json.dumps(tried).count("script"):
                    value = tried
                    break
            tried = copy.deepcopy(value)
            holder = tried
            for step in above:
                holder = holder[step]
    return value


def poisoned_message(example: Example) -> Message:
    model = type(example.payload)
    payload = model.model_validate_json(json.dumps(poisoned(json.loads(example.payload.model_dump_json()), model)))
    envelope = replace(example.envelope, subject=example.envelope.subject + NASTY, source=example.envelope.source)
    return replace(example, key=example.key + NASTY, envelope=envelope, payload=payload).message


def test_every_type_has_a_field_for_the_canary() -> None:
    for name, example in EXAMPLES.items():
        message = poisoned_message(example)
        assert b"script" in (message.key or b"") + (message.value or b""), name


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A stack with secrets in its settings and poisoned records; ``output`` is the output of its start."""
    data = tmp_path_factory.mktemp("canaries") / "data"
    options = {"workers": {"judge_url": f"http://u:{SECRET}@127.0.0.1:1/?api_key={SECRET}"}}
    settings = {
        "HEADRACE_DATA": str(data),
        "HEADRACE_OTLP": f"http://reader:{SECRET}@127.0.0.1:1",
        "HEADRACE_OPTIONS": json.dumps(options),
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HEADRACE_") and name != "HEADRACE_CACHE"]:
            patch.delenv(name)
        for name, value in settings.items():
            patch.setenv(name, value)
        begun = subprocess.run(
            [*HEADRACE, "up", "--detach", "--without", "vllm,trainer,follower"],
            capture_output=True, text=True, check=False, timeout=300, umask=0,
        )  # fmt: skip
        try:
            assert begun.returncode == 0, begun.stdout + begun.stderr
            state = json.loads(CliRunner().invoke(cli, ["status", "--json"]).stdout)
            asyncio.run(plant(state["kafka"]))
            yield {"data": data, "env": settings, "state": state, "output": begun.stdout + begun.stderr}
        finally:
            ended = subprocess.run([*HEADRACE, "down"], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr


async def plant(kafka: str) -> None:
    """A poisoned record of every type, and an unreadable record in each topic."""
    async with open_producer(kafka) as producer:
        for example in EXAMPLES.values():
            await (await send(producer, example.topic, poisoned_message(example)))
        for topic in TOPICS:
            headers = [
                ("ce_type", f"x{NASTY}".encode()),
                ("ce_subject", f"s{NASTY}".encode()),
                ("ce_id", b"\xff\x1b[2J"),
            ]
            await (await send(producer, topic, Message(f"k{NASTY}".encode(), f"{{{NASTY}".encode(), headers)))


def shown(stack: dict[str, Any], *arguments: str) -> str:
    """Returns a command's whole output; it may end with an error, but not with an exception."""
    done = CliRunner().invoke(cli, arguments, env=stack["env"])
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
    assert "Traceback" not in done.output
    clean(done.output)
    return done.output


@pytest.mark.kafka
def test_no_command_prints_an_escape_or_a_secret(stack: dict[str, Any], tmp_path: Path) -> None:
    clean(stack["output"])
    assert "http://***@127.0.0.1:1" in shown(stack, "settings")
    assert json.loads(shown(stack, "settings", "--json"))["otlp"] == "http://***@127.0.0.1:1"
    shown(stack, "status")
    assert json.loads(shown(stack, "status", "--json"))["ready"]
    for topic in TOPICS:
        assert r"\x1b[31m" in shown(stack, "tail", topic.name, "--from", "beginning"), topic
        shown(stack, "tail", topic.name, "--from", "beginning", "--full")
        for line in shown(stack, "tail", topic.name, "--from", "beginning", "--json", "--arrays").splitlines():
            assert json.loads(line)["topic"] == topic.name
    deadline = time.monotonic() + 60  # the assembler writes dead letters
    while "bad_" not in shown(stack, "dead-letters", "list", "--topic", "events") and time.monotonic() < deadline:
        time.sleep(0.5)
    entries = [
        json.loads(line) for line in shown(stack, "dead-letters", "list", "--json").splitlines() if line[0] == "{"
    ]
    assert entries
    shown(stack, "dead-letters", "list", "--full")
    for entry in entries:
        shown(stack, "dead-letters", "show", entry["letter"], "--full")
        assert f'"letter": "{entry["letter"]}"' in shown(stack, "dead-letters", "show", entry["letter"], "--json")
        shown(stack, "dead-letters", "redrive", entry["letter"], "--dry-run")
    for by in ("version", "reason", "task", "step", "stage", "agent"):
        assert "trained" in shown(stack, "ledger", "--by", by)
    assert "started" in json.loads(shown(stack, "ledger", "--json"))
    shown(stack, "topology", "--lag")
    for name in (TRAJECTORY, OTHER):
        shown(stack, "lineage", "--trajectory", name + NASTY)
        json.loads(shown(stack, "lineage", "--trajectory", name + NASTY, "--json").partition("\ndrawn")[0])
    run = EXAMPLES["headrace.step.trained.v1"].payload.run + NASTY  # type: ignore[attr-defined]
    for arguments in (["--members"], ["--members", "--json"], ["--json"], []):
        shown(stack, "lineage", "--version", "5", "--run", run, *arguments)
    shown(stack, "rebuild", "all", "--run", run)
    shown(stack, "rebuild", "5", "--run", run, "--json")
    shown(stack, "reward", "check", "search@1", "--one-process")
    shown(stack, "replay", "canary")
    shown(stack, "diff", "canary", "--picture", str(tmp_path / "diff.png"))


@pytest.mark.kafka
def test_no_picture_fails_on_a_name(stack: dict[str, Any], tmp_path: Path) -> None:
    run = EXAMPLES["headrace.step.trained.v1"].payload.run + NASTY  # type: ignore[attr-defined]
    for number, arguments in enumerate((["--trajectory", TRAJECTORY + NASTY], ["--version", "5", "--run", run])):
        for kind in ("svg", "png"):
            picture = tmp_path / f"{number}.{kind}"
            assert "drawn: " in shown(stack, "lineage", *arguments, "--picture", str(picture))
            if kind == "svg":
                assert not set(picture.read_text()) & FORBIDDEN - {"\t"}
                ElementTree.parse(picture)


@pytest.mark.kafka
def test_no_page_and_no_response_of_the_dashboard_shows_a_secret(stack: dict[str, Any]) -> None:
    where = stack["state"]["dashboard"]
    for path in ("/", "/trainer", "/api/snapshot", "/trainer/api/snapshot", "/api/metrics"):
        with urlopen(where + path) as answer:
            text = answer.read().decode()
            assert SECRET not in text
            assert not set(text) & {chr(code) for code in range(0x20)} - {"\n"}
            if "json" in answer.headers["Content-Type"]:
                json.loads(text)
            else:
                assert "alert(1)" not in text
            if path in ("/", "/trainer"):
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


@pytest.mark.kafka
def test_no_file_of_the_stack_contains_a_secret_and_no_log_an_escape(stack: dict[str, Any]) -> None:
    files = [Path(parent, name) for parent, _, names in os.walk(stack["data"]) for name in names]
    assert {"stack.json", "ports.json", "up.log", "sink.log", "traces.log"} <= {path.name for path in files}
    for path in files:
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:  # ClickHouse merges parts and Kafka deletes segments while the stack runs
            continue
        assert SECRET.encode() not in content, path
        if path.suffix == ".log" and path.parent.name == "logs":
            clean(content.decode().replace("\t", " "))


@pytest.mark.kafka
def test_files_and_folders_are_private_and_arguments_contain_no_secret(stack: dict[str, Any]) -> None:
    assert open_to_others(stack["data"]) == []
    supervisor = psutil.Process(stack["state"]["pid"])
    family = [supervisor, *supervisor.children(recursive=True)]
    assert len(family) > 8
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            assert SECRET not in " ".join(process.cmdline())


@pytest.mark.parametrize("name", WITH_SECRET)
def test_a_setting_that_is_refused_is_shown_without_its_secret(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, WITH_SECRET[name])
    argv = [*HEADRACE, "up", "--data", str(tmp_path / "data"), "--without", "vllm,trainer,follower"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    clean(done.stdout + done.stderr)
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("sink", {"HEADRACE_KAFKA": "127.0.0.1:1", "HEADRACE_CLICKHOUSE": WITH_SECRET["HEADRACE_CLICKHOUSE"]}),
        ("follower", {"HEADRACE_KAFKA": "127.0.0.1:1", "HEADRACE_VLLM": WITH_SECRET["HEADRACE_VLLM"]}),
        ("traces", {"HEADRACE_KAFKA": "127.0.0.1:1", "HEADRACE_OTLP": f"http://u:{SECRET}@127.0.0.1:1"}),
        ("assemble", {"HEADRACE_KAFKA": "127.0.0.1:1", "HEADRACE_OTLP": f"http://u:{SECRET}@127.0.0.1:1"}),
    ],
)
def test_a_worker_without_a_connection_logs_no_secret(part: str, settings: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = os.environ | settings | {"HEADRACE_DATA": str(tmp_path), "HEADRACE_LOG_LEVEL": "debug"}
    with log.open("wb") as output:
        process = subprocess.Popen([*HEADRACE, "worker", part], env=environment, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 120
            while not log.stat().st_size and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(8)
        finally:
            process.kill()
            process.wait()
    assert log.stat().st_size
    clean(log.read_text())


def test_the_dashboard_names_an_unavailable_database_without_its_password() -> None:
    with TestClient(dashboard_app(WITH_SECRET["HEADRACE_CLICKHOUSE"]), base_url="http://127.0.0.1") as client:
        problem = client.get("/api/snapshot").json()["problem"]
    assert problem.startswith("ClickHouse at http://***@127.0.0.1:1 does not answer")


def test_only_the_terminal_module_prints() -> None:
    """Every command prints through deploy/terminal.py, which escapes, so that a new command cannot forget it."""
    folder = Path(__file__).parent.parent.parent / "deploy"
    printing = re.compile(r"\b(?:click\.(?:echo|secho|echo_via_pager)|print|sys\.std(?:out|err)\.write)\(")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if printing.search(path.read_text())}
    assert found == {
        "terminal.py",
        "commands/lineage.py",  # with --text, as show
        "commands/query.py",  # binary formats, which a terminal does not get
        "commands/show.py",  # coloured, each fragment escaped by printable()
        "commands/tail.py",
        "consumers/with_aiokafka.py",
        "consumers/with_confluent_kafka.py",
        "dashboard/guide.py",  # a line of a program that a reader copies
    }
