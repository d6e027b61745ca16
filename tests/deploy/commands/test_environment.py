"""``headrace environment`` as a user runs it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from tests.agents.coder.deletion.scripted_model import scripted_model
from tests.agents.environments.gym_server import gym_server, row
from tests.agents.gateway.running import running_gateway
from tests.agents.gateway.scripted_engine import answering


def headrace(*argv: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "headrace.deploy.cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


async def ran(folder: Path, *options: str, gateway: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """The command on one row of the tests' resources server, behind a gateway."""
    dataset = folder / "weather.jsonl"
    dataset.write_text(json.dumps(row()) + "\n")
    async with (
        answering("It is cold.") as engine,
        gym_server() as server,
        running_gateway(folder / "gateway", [engine.url], **(gateway or {})) as serving,
    ):
        argv = ("environment", "nemo-gym", server.url, str(dataset), "--gateway", serving.url, "--group-size", "2")
        return await asyncio.to_thread(headrace, *argv, "--data", str(folder / "data"), *options)


async def test_it_runs_the_tasks_and_says_what_became_of_them(tmp_path: Path) -> None:
    done = await ran(tmp_path, "--no-budget")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 groups begun; rollouts ended: 2 completed; mean outcome 0.000\n"


async def test_a_gateway_that_checks_keys_needs_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"sha256": "0" * 64, "tenant": "a"}]}))
    done = await ran(tmp_path, "--no-budget", gateway={"keys": keys})
    assert done.returncode == 1
    assert "answered 401 to /sessions" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.kafka
async def test_it_keeps_to_the_budget_of_the_run(tmp_path: Path, kafka: str) -> None:
    done = await ran(tmp_path, "--kafka", kafka, "--epochs", "3", "--max-groups", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 groups begun; rollouts ended: 6 completed")


async def test_deletion_tasks_are_attempted_at_any_endpoint(tmp_path: Path) -> None:
    tasks, results = tmp_path / "tasks.jsonl", tmp_path / "results.jsonl"
    made = await asyncio.to_thread(
        headrace, "deletion-tasks", "--module", "colorsys", "--per-module", "1", "--out", str(tasks)
    )
    if "need the sandbox provider overlay" in made.stderr and "CI" not in os.environ:
        pytest.skip(made.stderr)
    assert made.returncode == 0, made.stderr
    options = ("--group-size", "2", "--results", str(results), "--data", str(tmp_path / "data"))
    async with scripted_model([("read", {"path": "colorsys.py"})], [("submit", {})]) as (url, asked):
        done = await asyncio.to_thread(headrace, "environment", "deletion", str(tasks), "--base-url", url, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 groups begun; rollouts ended: 2 completed; mean outcome 0.000\n"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["reward"], line["stop"], line["turns"]) for line in lines] == [(0.0, "submitted", 2)] * 2
    assert {each["model"] for each in asked} == {"policy"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["verifiers", "x", "--python", "python", "--env", "{"], "--env is no JSON"),
        (["verifiers", "x", "--python", "python", "--select", "[]"], "--select is no JSON object"),
        (["verifiers", "x", "--python", "python", "--group-size", "0"], "group_size is 0"),
        (["openenv", "http://127.0.0.1:9"], "one of --resets and --seeds"),
        (
            ["openenv", "http://127.0.0.1:9", "--seeds", "2", "--gateway", "http://127.0.0.1:9"],
            "no environment of OpenEnv",
        ),
        (["openenv", "http://127.0.0.1:9", "--seeds", "2", "--gateway", ""], "No address of gateway is known"),
        (["deletion", "pyproject.toml"], "pyproject.toml:1: a line is no deletion task"),
        (["deletion", "pyproject.toml", "--results", "no/such/folder/file"], "--results: there is no folder"),
    ],
)
def test_what_is_wrong_is_said(argv: list[str], said: str, tmp_path: Path) -> None:
    options = ["--gateway", "http://127.0.0.1:9", "--no-budget", "--data", str(tmp_path)]
    done = CliRunner().invoke(cli, ["environment", argv[0], *argv[1:2], *options, *argv[2:]])
    assert done.exit_code != 0
    assert said in done.output
