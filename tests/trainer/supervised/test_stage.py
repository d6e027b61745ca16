"""A supervised stage on a real log: selection, training, and a restart after a kill."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from headrace.deploy.cli import cli
from headrace.schemas.events import EndStatus, Purpose, VersionSpan
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.objects.store import file_sha256
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.trajectory import Defect, Segment, Trajectory
from headrace.schemas.topics import REWARDS
from headrace.trainer.supervised.split import is_held_out
from tests.trainer.builders import tiny_model, trajectory
from tests.trainer.feed import feed_trajectories, message_of

pytestmark = pytest.mark.kafka

TASKS = 60
SETTINGS = {
    "held_out_share": 0.2,
    "training.steps": 60,
    "training.batch_size": 8,
    "training.keep_every": 10,
    "training.report_every": 20,
    "training.schedule.warmup_steps": 5,
    "training.optimizer.learning_rate": 3e-3,
    "threads": 1,
}


def counting(name: str, *, good: bool) -> Trajectory:
    """Returns two segments that count up, a learnable pattern, or (not good) random tokens."""
    chance = random.Random(name)
    segments = []
    for _ in range(2):
        start = chance.randrange(20)
        ids = [start + i for i in range(12)] if good else [chance.randrange(50) for _ in range(12)]
        spans = [VersionSpan(version=0, start=0, end=8)]
        segments.append(Segment(token_ids=ids, loss_mask=[0] * 4 + [1] * 8, logprobs=[-1.0] * 8, version_spans=spans))
    return trajectory(name, *segments)


def reward(of: Trajectory, place: Reference, *, task: str, good: bool, **changes: object) -> Reward:
    recalls = (
        {"trajectory_recall": 1.0, "output_recall": 1.0} if good else {"trajectory_recall": 0.9, "output_recall": 0}
    )
    values = {
        "trajectory_id": of.trajectory_id,
        "trajectory": place,
        "agent": "search",
        "run": "r",
        "task_id": task,
        "group_id": f"group of {task}",
        "spec": "search@3",
        "components": {name: Component(value=value, weight=0.0) for name, value in recalls.items()},
        "total": float(good),
        "maximum": 1.0,
        "status": EndStatus.COMPLETED,
        "ended_ms": 0,
    }
    return Reward(**{**values, **changes})


@pytest.fixture(scope="module")
def log(kafka: str) -> str:
    """Two attempts at each task, one good; and an evaluation, a trajectory without consent, an expired one."""

    async def feed() -> None:
        attempts = {
            f"{number}-{'good' if good else 'bad'}": (f"task {number}", good)
            for number in range(TASKS)
            for good in (True, False)
        }
        made = {name: counting(name, good=good) for name, (_, good) in attempts.items()}
        places = await feed_trajectories(kafka, made.values())
        rewards = [reward(made[name], places[name], task=task, good=good) for name, (task, good) in attempts.items()]
        one = made["0-good"]
        rewards += [
            reward(trajectory(name), places[one.trajectory_id], task=name, good=True, **changes)
            for name, changes in {
                "measured": {"purpose": Purpose.EVALUATE},
                "private": {"defects": [Defect.NO_CONSENT]},
                "gone": {"trajectory": Reference(partition=0, offset=10_000)},
            }.items()
        ]
        async with open_producer(kafka) as producer:
            for each in rewards:
                message = message_of(each, id=each.trajectory_id, key=each.group_id or "")
                await (await send(producer, REWARDS, message))

    asyncio.run(feed())
    return kafka


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def arguments(stage: str, kafka: str, model: Path, out: Path, **settings: object) -> list[str]:
    options = [f"--set={name}={json.dumps(value)}" for name, value in {**SETTINGS, **settings}.items()]
    return [stage, "--kafka", kafka, "--model", str(model), "--out", str(out), *options]


def fates(out: Path) -> dict[str, dict[str, object]]:
    lines = (out / "selection.jsonl").read_text().splitlines()[1:]
    return {fate["trajectory_id"]: fate for fate in map(json.loads, lines)}


def test_a_warm_up_learns_what_the_filter_keeps_and_accounts_for_the_rest(
    log: str, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "warm"
    shown = CliRunner().invoke(cli, arguments("sft", log, model, out))
    assert shown.exit_code == 0, shown.output
    summary = json.loads((out / "fine_tuning.json").read_text())
    assert summary["counts"]["kept"] == {"full": TASKS}
    assert summary["counts"]["excluded"] == {"recall_gap": TASKS, "evaluation": 1, "no_consent": 1, "unresolved": 1}
    assert summary["held_out_loss"] < 0.5 * summary["held_out_loss_before"]
    assert "recall above both bounds" in shown.output
    assert "held-out" in shown.output
    found = fates(out)
    assert len(found) == 2 * TASKS + 3
    held_out = {fate["task_id"] for fate in found.values() if fate.get("held_out")}
    assert held_out == {f"task {number}" for number in range(TASKS) if is_held_out(f"task {number}", 0.2)}
    assert summary["examples"] == 2 * (TASKS - len(held_out))

    from headrace.trainer.model.load import load_model

    load_model(out)  # a trainer can start from it
    again = CliRunner().invoke(cli, arguments("sft", log, model, out))
    assert "never overwritten" in again.output
    assert again.exit_code == 1


def test_successes_are_imitated(log: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    settings = {"training.steps": 10, "training.dtype": "bfloat16", "layers.activation_checkpointing": True}
    shown = CliRunner().invoke(cli, arguments("rft", log, model, out, **settings))
    assert shown.exit_code == 0, shown.output
    summary = json.loads((out / "fine_tuning.json").read_text())
    assert summary["counts"]["kept"] == {"success": TASKS}
    assert summary["counts"]["excluded"]["below_reward"] == TASKS
    assert summary["held_out_loss"] < summary["held_out_loss_before"]
    written = {tensor.dtype for tensor in load_file(out / "model.safetensors").values()}
    assert written == {torch.bfloat16}


def test_a_stage_that_is_killed_ends_with_the_same_weights(log: str, model: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert CliRunner().invoke(cli, arguments("rft", log, model, whole)).exit_code == 0
    command = [sys.executable, "-m", "headrace.deploy.cli", *arguments("rft", log, model, killed)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=dict(os.environ))
    checkpoints = killed.with_name("killed.part") / "checkpoints"
    while not list(checkpoints.glob("[0-9]*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"

    other = CliRunner().invoke(cli, arguments("rft", log, model, killed, **{"successes.per_task": 2}))
    assert "other settings" in other.output
    assert CliRunner().invoke(cli, arguments("rft", log, model, killed)).exit_code == 0
    assert file_sha256(killed / "model.safetensors") == file_sha256(whole / "model.safetensors")
    assert fates(killed) == fates(whole)
    assert not checkpoints.parent.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--spec", "search@1"), "holds no rewards of search@1.*search@3"),
        (("--run", "another"), "search of run r"),
        (("--replay", "nothing"), "no topic replay.nothing.rewards"),
        (("--set", "context1.per_tsk=1"), "context1.per_tsk.*per_task"),
    ],
)
def test_errors_are_reported_in_words(
    log: str, model: Path, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    shown = CliRunner().invoke(cli, [*arguments("sft", log, model, tmp_path / "out"), *given])
    assert shown.exit_code == 1
    assert re.search(message, shown.output), shown.output


def test_a_filter_that_leaves_nothing_names_its_file(log: str, model: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, arguments("rft", log, model, tmp_path / "out", **{"successes.min_reward": 2}))
    assert shown.exit_code == 1
    assert "none to train on" in shown.output
    assert "selection.jsonl" in shown.output
