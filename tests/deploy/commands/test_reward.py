"""``headrace reward``: recorded runs get their recorded rewards, and the errors of a broken reward are found."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.deploy.rewards.recorded import file_samples, kafka_samples
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES
from headrace.schemas.wire import Message, record_message
from headrace.streams.rewards.registry import OURS
from tests.streams.attempts import START_MS, attempt, trajectory_message

DATA = Path(__file__).parents[2] / "data"
AIRLINE = Path(__file__).parents[4] / "shared" / "data" / "airline-gpt4o-tasks-00-24.jsonl"
RUNS = DATA / "runs.jsonl"
TABLES = f"{DATA / 'user_rewards' / 'table_rewards.py'}:TABLES"
BROKEN = '''
import random
import time

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.spec import RewardSpec, reward


@reward(weight=1.0)
def unordered(trajectory: Trajectory) -> float:
    """The length of the first name in a set."""
    return float(len(next(iter({"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"}))))


@reward(weight=1.0)
def recent(trajectory):
    return time.time() - trajectory.ended_ms / 1000


SPEC = RewardSpec("broken", 1, (unordered, recent))
'''


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["reward", *arguments])


def test_recorded_runs_get_their_recorded_rewards() -> None:
    expected = (DATA / "runs.scores.jsonl").read_text()
    scored = "".join(headrace("score", spec, str(RUNS)).stdout for spec in ("outcome@1", TABLES))
    assert [json.loads(line) for line in scored.splitlines()] == [json.loads(line) for line in expected.splitlines()]


def test_every_built_in_spec_is_listed_and_its_components_are_described() -> None:
    listed = headrace("list")
    assert listed.exit_code == 0
    for label, spec in OURS.items():
        assert label in listed.output
        shown = headrace("show", label)
        assert shown.exit_code == 0
        assert "(no docstring)" not in shown.output
        for term in spec.terms:
            assert f"  {term.name}" in shown.output


def test_weights_are_shown_by_policy_version() -> None:
    shown = headrace("show", "swarm@1").output
    assert "parallel linear 0.3 → 0 until version 200 Assigned sub-agents as a share" in " ".join(shown.split())
    assert [line.split() for line in shown.splitlines()[-3:]] == [
        ["weight", "at", "version", "0", "100", "200"],
        ["parallel", "0.3", "0.15", "0"],
        ["finish", "0.2", "0.1", "0"],
    ]


def test_specs_of_packages_are_listed_and_those_that_cannot_be_loaded_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "table_rewards-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: table-rewards\nVersion: 1.0\n")
    entries = (DATA / "user_rewards" / "pyproject.toml").read_text().split('[project.entry-points."headrace.rewards"]')
    offered = entries[1].split("\n\n")[0].replace('"', "")
    (metadata / "entry_points.txt").write_text(f"[headrace.rewards]{offered}\ngone = no_such_package:SPEC\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(DATA / "user_rewards")
    listed = headrace("list").output
    assert "outcome, expected_tools, guest_came, tool_errors   (entry point tables = table_rewards:TABLES)" in listed
    assert "gone" in listed
    assert "cannot be loaded" in listed
    sys.modules.pop("table_rewards", None)


def test_a_sound_reward_passes_with_warnings() -> None:
    done = headrace("check", TABLES, str(RUNS))
    assert done.exit_code == 0, done.output
    assert "tables@1 on 5 trajectories" in done.output
    assert "ERROR" not in done.output
    assert "WARN   total: 2 totals are too few" in done.output
    assert done.output.endswith("tables@1: 0 errors, 3 warnings\n")
    assert "runs.jsonl:3: left out: " in done.stderr


def test_the_errors_of_a_broken_reward_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    done = headrace("check", f"{file}:SPEC", str(RUNS), "--json")
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    problems = {(finding["component"], finding["problem"]) for finding in report["findings"]}
    assert {
        ("unordered", "not_deterministic"),
        ("recent", "reads_clock"),
        ("recent", "no_docstring"),
        ("recent", "no_annotation"),
    } <= problems
    assert report["wrong"] == 2
    assert ("recent", "not_deterministic") not in problems
    output = headrace("check", f"{file}:SPEC", str(RUNS), "--one-process").output
    assert "ERROR  recent: gave " in output
    assert "unordered: gave" not in output, "only another process shows it"


def test_a_schedule_is_compared_with_the_length_of_the_run() -> None:
    done = headrace("check", TABLES, str(RUNS), "--one-process", "--versions", "50")
    assert done.exit_code == 1
    assert "its weight is still 0.25 at version 50, the last of the run: it reaches 0 only at 100" in " ".join(
        done.output.split()
    )


def test_records_of_trajectories_are_accepted_like_runs(tmp_path: Path) -> None:
    file = tmp_path / "trajectories.jsonl"
    made = [attempt(f"t{n}", outcome=float(n % 2)) for n in range(12)]
    file.write_text("\n".join([*(each.model_dump_json() for each in made), "", '{"trajectory_id": 7}']))
    reported: list[str] = []
    samples = file_samples([file], agent="any", report=lambda _, bad: reported.append(f"{bad.number}: {bad.reason}"))
    assert [sample.trajectory for sample in samples] == made
    assert len(reported) == 1
    assert reported[0].startswith("14: trajectory_id: ")
    assert headrace("check", "outcome@1", str(file), "--one-process").exit_code == 0


@pytest.mark.skipif(
    not AIRLINE.exists() and "CI" not in os.environ,
    reason="the recorded airline runs are not beside this checkout (shared/data)",
)
def test_the_airline_runs_have_fourteen_groups_without_variance() -> None:
    done = headrace("check", "outcome@1", str(AIRLINE), "--one-process")
    assert done.exit_code == 0, done.output
    assert "groups: 25, of which 14 have no variance and thus no gradient" in done.output
    assert [line.split() for line in done.output.splitlines() if line.startswith("  outcome")] == [
        ["outcome", "1", "0", "0.31", "1"]
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show", "serach@1"], "Error: no reward 'serach@1': choose from outcome@1"),
        (["check", "nowhere.py:SPEC", str(RUNS)], "there is no file nowhere.py"),
    ],
)
def test_missing_arguments_are_reported_without_a_traceback(arguments: list[str], problem: str) -> None:
    done = headrace(*arguments)
    assert done.exit_code == 1
    assert problem in done.output
    assert "Traceback" not in done.output


@pytest.mark.kafka
def test_the_newest_trajectories_in_kafka_are_checked_with_their_feedback(kafka: str) -> None:
    made = [attempt(f"t{n}", outcome=float(n % 2)) for n in range(20)]

    def given(id: str, trajectory_id: str, value: float) -> Message:
        fact = FeedbackGiven(signal="accepted", value=value)
        return record_message(fact, id=id, key=trajectory_id, source="/test", time_ms=START_MS, subject=trajectory_id)

    async def fill() -> None:
        async with open_producer(kafka) as producer:
            for trajectory in made:
                await (await send(producer, TRAJECTORIES, trajectory_message(trajectory)))
            await producer.send_and_wait(TRAJECTORIES.name, key=b"x", value=b"broken")
            for message in [given("f1", "t19", 1.0), given("f1", "t19", 1.0), given("f2", "t19", 0.0)]:
                await (await send(producer, FEEDBACK, message))

    asyncio.run(fill())
    newest = asyncio.run(kafka_samples(kafka, 6))
    assert [sample.trajectory.trajectory_id for sample in newest] == ["t15", "t16", "t17", "t18", "t19"]
    assert [(given.id, given.value) for given in newest[-1].feedback] == [("f1", 1.0), ("f2", 0.0)]
    assert [given for sample in newest[:-1] for given in sample.feedback] == []
    done = headrace("check", "outcome@1", "--kafka", kafka, "--one-process")
    assert done.exit_code == 0, done.output
    assert "outcome@1 on 20 trajectories" in done.output
