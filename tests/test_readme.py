"""What the README shows is true today: its snippets run, its figures come out."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.stack.stack import running_stack
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.streams.clickhouse.database import open_client
from headrace.streams.ledger.ledger import read_ledger
from tests.trainer.provenance.told import tell, train

ROOT = Path(__file__).parents[1]
BLOCKS = dict(re.findall(r"```\w+ ([\w-]+)\n(.*?)```", (ROOT / "README.md").read_text(), re.S))
AIRLINE = ROOT.parent / "shared" / "data" / "airline-gpt4o-tasks-00-24.jsonl"
MODEL_PARTS = ("vllm", "trainer", "follower")


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


def test_every_snippet_is_held_by_a_test() -> None:
    held = {
        "tour",
        "sdk",
        "consumer",
        "drive",
        "reward",
        "history",
        "provenance",
        "train",
        "airline-rewards",
        "airline-groups",
        "airline-tools",
    }
    assert set(BLOCKS) == held


def test_a_reward_is_tried_without_a_broker() -> None:
    done = run(sys.executable, "-c", BLOCKS["drive"])
    assert done.returncode == 0, done.stderr


@pytest.mark.kafka
async def test_three_lines_in_an_agent(kafka: str) -> None:
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
    assert "the second time, nothing new is sent" in done.stdout
    assert "brief@1: 0 wrong" in done.stdout
    assert done.stdout.count("/metrics") >= 3
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


def test_a_training_run_can_be_looked_at_before_it_begins(tmp_path: Path) -> None:
    done = run("bash", "-euo", "pipefail", "-c", BLOCKS["train"], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "groups_per_step = 4" in done.stdout
    assert "effective_sample_size" in done.stdout


@pytest.mark.kafka
def test_a_step_is_rebuilt_and_traced(kafka: str, tmp_path: Path) -> None:
    asyncio.run(tell(kafka, "told", 6))
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
