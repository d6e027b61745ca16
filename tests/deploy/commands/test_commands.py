"""Errors of every command: an unavailable broker, wrong files and wrong settings."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.deploy.kafka import broker

ASKS_KAFKA = {
    ("ledger",): [],
    ("tail",): ["events"],
    ("import",): ["RUNS"],
    ("dead-letters", "list"): [],
    ("dead-letters", "show"): ["0:1"],
    ("dead-letters", "repair"): ["0:1", "--set", "a=1"],
    ("dead-letters", "redrive"): ["--all"],
    ("topics",): ["--create"],
    ("topology",): ["--lag"],
    ("reward", "check"): ["search@1"],
    ("replay",): ["again"],
    ("diff",): ["again"],
    ("rebuild",): ["1"],
    ("lineage",): ["--version", "1"],
    ("show",): ["T"],
    ("fork",): ["019f", "--turn", "2", "--vllm", "http://127.0.0.1:1"],
    ("sft",): ["--out", "OUT"],
    ("rft",): ["--out", "OUT"],
    ("train",): [],
    ("watch", "list"): [],
    ("watch", "ack"): ["0f3e", "--by", "ada"],
    ("watch", "accept"): ["0f3e", "--by", "ada"],
    ("watch", "plant"): ["padding", "--live"],
}
"""Commands that use a broker, with their required arguments except its address."""
ASKS_NO_KAFKA = {
    *(("demo",), ("up",), ("status",), ("down",), ("settings",), ("tables",), ("schemas",), ("asyncapi",)),
    *(("base-model",), ("corpus",), ("tasks",), ("index",)),
    *(("worker",), ("reward", "list"), ("reward", "show"), ("reward", "score"), ("keys",)),
    *(("metrics",), ("query",), ("sandbox",), ("deletion-tasks",), ("runbook",), ("watch", "monitors")),
    *(("share",), ("grafana",)),
    # These ask the gateway first.
    *(("environment", "verifiers"), ("environment", "openenv"), ("environment", "nemo-gym")),
    ("environment", "deletion"),
}


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "LISTENS_S", 0.3)
    monkeypatch.setattr(broker, "ANSWERS_S", 0.6)


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def leaves(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from leaves(found, (*above, name))
        else:
            yield (*above, name)


def refused(arguments: list[str], env: dict[str, str] | None = None) -> str:
    """Returns the command's output, which must be an error without a traceback."""
    done: Result = CliRunner().invoke(cli, arguments, env=env)
    assert isinstance(done.exception, SystemExit), (arguments, done.exception, done.output)
    assert done.exit_code in (1, 2), (arguments, done.output)
    assert "Error: " in done.output
    assert "Traceback" not in done.output
    return done.output


def test_every_command_is_covered() -> None:
    assert set(leaves(cli)) == {*ASKS_KAFKA, *ASKS_NO_KAFKA}  # type: ignore[arg-type]


@pytest.mark.parametrize("command", ASKS_KAFKA, ids=" ".join)
def test_an_unavailable_broker_ends_the_command_with_an_error_that_names_the_setting(
    command: tuple[str, ...], silent: str, tmp_path: Path
) -> None:
    (tmp_path / "runs.jsonl").write_text('{"task_id": 1, "traj": []}\n')
    named = {"RUNS": str(tmp_path / "runs.jsonl"), "OUT": str(tmp_path / "out")}
    given = [*command, *(named.get(each, each) for each in ASKS_KAFKA[command])]
    env = {"HEADRACE_DATA": str(tmp_path / "data")}
    for address, expected in (
        ("127.0.0.1:1", "did not answer a metadata request within 0.3 s"),
        (silent, "did not answer a metadata request within 0.6 s"),
        ("127.0.0.1:99999", "which is not host:port[,host:port…]"),
        ("localhost", "which is not host:port[,host:port…]"),
    ):
        output = refused([*given, "--kafka", address], env)
        assert "HEADRACE_KAFKA" in output, output
        assert expected in output, output
    if command != ("train",):
        assert "No address of kafka is known" in refused(given, env)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["asyncapi", "--write", "MISSING/x.json"], "cannot be used: No such file or directory"),
        (["schemas", "--write", "/proc/x"], "/proc/x cannot be used"),
        (["base-model", "--out", "/proc/x/y"], "cannot be used: No such file or directory"),
        (["reward", "score", "search@1"], "give a FILE"),
        (["train", "--check", "--kafka", "h:1", "--config", "MISSING"], "cannot be read: No such file or directory"),
        (["train", "--check", "--kafka", "h:1", "--config", "BINARY"], "is not a TOML file"),
        (["lineage", "--version", "1", "--picture", "MISSING/x.svg"], "--picture: there is no folder"),
        (["diff", "x", "--picture", "x.nope"], "ends in .svg, .png or .pdf"),
        (["tail", "rewards", "--where", "totl>1"], "No record of rewards has a field totl: did you mean total?"),
        (["up", "--set", "trainer.steps=many"], 'steps is "many". Allowed: whole number.'),
        (["up", "--set", "assemble.nope=1"], "there is no option nope"),
        (["up", "--set", "asemble.max_open=1"], "names asemble, which is not a part"),
        (["up", "--set", "kafka.heap=1"], "kafka has no options"),
        (["up", "--set", "workers.rewards=5"], "rewards is 5. Allowed: table."),
        (["up", "--set", "vllm.max_model_len=long"], 'max_model_len is "long". Allowed: whole number'),
        (["up", "--set", "sink.linger_s=-1"], "linger_s must be positive"),
        (["up", "--run", ""], "which is not up to 100 letters"),
        (["up", "--clickhouse", "host:8123"], "which is not http://host:port"),
        (["up", "--store-url", "ftp://x"], "has none of these forms"),
        (["up", "--model-dir", "MISSING"], "is not a Hugging Face model directory"),
        (["up", "--data", "/proc/x"], "The data folder /proc/x (HEADRACE_DATA, --data) cannot be used"),
        (["worker", "assemble", "--kafka", "h:1", "--log-level", "loud"], "none of debug, info, warning, error"),
        (["worker", "assemble", "--kafka", "h:1", "--set", "asemble.x=1"], "names asemble, which is not a part"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_reported_in_a_sentence_before_anything_starts(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    names = {"MISSING": str(tmp_path / "missing"), "BINARY": str(tmp_path / "binary")}
    given = [names.get(each, each.replace("MISSING/", f"{tmp_path}/missing/")) for each in arguments]
    output = refused(given, {"HEADRACE_DATA": str(tmp_path / "data"), "HEADRACE_KAFKA": "127.0.0.1:1"})
    assert expected in output
    assert not (tmp_path / "data" / "kafka").exists()


def test_a_binary_file_is_reported_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_bytes(os.urandom(2000))
    done = CliRunner().invoke(cli, ["reward", "score", "search@1", str(tmp_path / "runs.jsonl")])
    assert done.exit_code == 0, done.exception
    assert "runs.jsonl:1: left out: " in done.output
