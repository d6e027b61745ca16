"""A new processor takes four files: `histogram` is added to a copy of the tree, and runs wherever processors run.

CONTRIBUTING describes it, and names the same files.
"""

import asyncio
import json
import re
import shutil
import sys
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.system.children import Child, Command, end_of
from headrace.deploy.system.notify import ReadySocket
from headrace.deploy.system.ports import free_port, metrics_url
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode
from tests.newcomer.task_rewards import FILES, add_processor
from tests.newcomer.tree import ROOT, copy_tree, environment, run
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.test_workers import produce, until

CLI = ("-m", "headrace.deploy.cli")
GROUPS, SIZE, TASKS = 150, 4, 7


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_tree(tmp_path_factory.mktemp("tree"))
    add_processor(tree)
    return tree


def output(tree: Path, *command: str) -> str:
    done = run(tree, *command)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_it_takes_four_files_and_contributing_names_them() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## A new processor")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (?:`([\w/.]+\.py)`|new: \[\S+\]\(tests/newcomer/new_files/(\S+)\))", section, re.MULTILINE)
    assert {edited or new for edited, new in named} == FILES
    assert len(FILES) == 4


@pytest.mark.nightly
def test_its_types_are_strict(tree: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tree)
    modules = [f"headrace.{path.removesuffix('.py').replace('/', '.')}" for path in sorted(FILES)]
    selected = [part for module in modules for part in ("-m", module)]
    found = output(tree, "-m", "mypy", "--config-file=pyproject.toml", f"--cache-dir={tree / 'cache'}", *selected)
    assert "no issues found in 4 source files" in found


def test_it_is_drawn(tree: Path) -> None:
    drawing = output(tree, *CLI, "topology", "--mermaid")
    for line in ("histogram[histogram]:::stream", "rewards --> histogram", "histogram --> task_rewards"):
        assert f"  {line}\n" in drawing
    (stored,) = re.findall(r'read_by_sink\["([^"]+)"\]', drawing)
    assert stored == "every topic but task-rewards and observations"  # they have no table
    assert "histogram\n  rewards → task-rewards\n" in output(tree, *CLI, "topology")


def test_it_is_driven(tree: Path) -> None:
    first, second = json.loads(output(tree, str(ROOT / "tests/newcomer/new_processor.py")))
    assert (first["count"], first["total"], first["tenths"][9]) == (1, 1.0, 1)
    assert (second["count"], second["total"], second["squares"]) == (2, 1.25, 1.0625)
    assert (second["tenths"][2], sum(second["tenths"])) == (1, 2)


@pytest.mark.nightly
def test_its_topic_is_documented_and_no_other_test_asks_for_a_file(tree: Path) -> None:
    assert "an example, key ada-works" in output(tree, *CLI, "topics", "task-rewards")
    output(tree, *CLI, "schemas", "--write", "schemas/snapshots")
    output(tree, *CLI, "asyncapi", "--write", "schemas/asyncapi.json")
    unit = ("kafka", "clickhouse", "vllm", "browser", "s3")
    paths = (
        *("streams/test_topology.py", "streams/replay/test_other_processors.py", "schemas", "deploy/tail/test_line.py"),
        *("streams/clickhouse/test_rows.py", "streams/clickhouse/test_tables.py", "deploy/processes/test_drawing.py"),
        *("streams/clickhouse/test_any_record.py", "deploy/processes/test_registry.py", "streams/test_drive.py"),
    )
    selected = ["-m", " and ".join(f"not {mark}" for mark in unit), *(str(ROOT / "tests" / path) for path in paths)]
    # The drawing is pasted into a page of the repository.
    selected += ["-k", "not current_flowchart"]
    output(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *selected)


@contextmanager
def workers(tree: Path, kafka: str, folder: Path, port: int) -> Iterator[Child]:
    """A process that runs score, group and histogram of ``tree``, with metrics on ``port``."""
    with ReadySocket() as notified:
        env = environment(tree) | notified.env
        env |= {"HEADRACE_KAFKA": kafka, "HEADRACE_DATA": str(folder), "HEADRACE_MEMBER": "one"}
        env |= {"HEADRACE_METRICS_PORTS": json.dumps({"workers": port})}
        env |= {"HEADRACE_OPTIONS": json.dumps({"workers": {"batch": 25}})}
        child = Child(Command((sys.executable, *CLI, "worker", "workers"), env), folder / "workers.log")
        try:
            asyncio.run(asyncio.wait_for(notified.ready(), 120))
            yield child
        finally:
            child.kill()


def trajectories() -> list[Message]:
    """Attempts at a few tasks; members of a group differ."""
    made = []
    for number in range(GROUPS * SIZE):
        group = number % GROUPS
        one = attempt(f"h{number}", group=f"hg{group}", size=SIZE, outcome=float(number // GROUPS % 2))
        assert one.started is not None
        started = one.started.model_copy(update={"task_id": f"task-{group % TASKS}"})
        made.append(trajectory_message(one.model_copy(update={"started": started})))
    return made


def read(kafka: str, topic: Topic) -> list[KafkaRecord]:
    async def all_records() -> list[KafkaRecord]:
        return [record async for record in read_to_end(kafka, topic, decided=True)]

    return sorted(asyncio.run(all_records()), key=lambda record: (record.partition, record.offset))


def histograms(kafka: str, name: str = "task-rewards") -> dict[bytes | None, list[dict[str, Any]]]:
    """The histograms in the topic ``name``, by key, in order."""
    found: dict[bytes | None, list[dict[str, Any]]] = defaultdict(list)
    for record in read(kafka, replace(REWARDS, name=name)):
        found[record.key].append(json.loads(record.value or b""))
    return found


def counted(kafka: str) -> int:
    return sum(each[-1]["count"] for each in histograms(kafka).values())


def metric(port: int, name: str) -> dict[str, float]:
    """Values of a counter of histogram, by topic."""
    with urllib.request.urlopen(metrics_url(port), timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    mine = [line for line in lines if line.startswith(name) and 'processor="histogram"' in line]
    return {re.findall(r'topic="([\w-]+)"', line)[0]: float(line.split()[-1]) for line in mine}


@pytest.mark.kafka
def test_it_runs_exactly_once_over_a_kill_is_measured_and_replayed(kafka: str, tree: Path, tmp_path: Path) -> None:
    assert "task-rewards" in output(tree, *CLI, "topics", "--create", "--kafka", kafka)
    made, port = trajectories(), free_port()
    with workers(tree, kafka, tmp_path / "first", port) as first:
        produce(kafka, TRAJECTORIES, made[: len(made) // 2])
        until(lambda: counted(kafka) > 50, "some rewards are counted", first.log)
        first.kill_command()
        assert first.wait(30) != 0
    with workers(tree, kafka, tmp_path / "second", port) as second:
        produce(kafka, TRAJECTORIES, made[len(made) // 2 :])
        until(lambda: counted(kafka) >= len(made), "every reward is counted", second.log)
        until(lambda: metric(port, "headrace_processor_read")["rewards"] > 0, "it is measured", second.log)
        measured = {name: metric(port, f"headrace_processor_{name}") for name in ("read", "written")}
        assert measured["read"].keys() == {"rewards"}
        assert measured["written"]["task-rewards"] >= len(made) // 2
        second.terminate()
        assert second.wait(30) == 0, end_of(second.log)

    live = histograms(kafka)
    # Every count once and in order: nothing was lost, and nothing counted twice.
    for each in live.values():
        assert [histogram["count"] for histogram in each] == list(range(1, len(each) + 1))
    rewards = [(record.partition, decode(record.headers, record.value)[1]) for record in read(kafka, REWARDS)]
    totals: Counter[bytes] = Counter()
    for partition, reward in rewards:
        assert isinstance(reward, Reward)
        totals[f"{partition}:{reward.task_id}".encode()] += reward.total or 0.0
    assert {key: each[-1]["total"] for key, each in live.items()} == totals

    manifest = json.loads(output(tree, *CLI, "replay", "again", "--json", "--kafka", kafka))
    again = histograms(kafka, "replay.again.task-rewards")
    assert {key: each[-1] for key, each in again.items()} == {key: each[-1] for key, each in live.items()}
    assert (manifest["counts"]["task-rewards"], manifest["counts"]["histogram_added"]) == (len(made), len(made))
