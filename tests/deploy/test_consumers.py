"""The example consumers read the same log and print the same lines; those whose program is missing are skipped."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.schemas.envelope import ID
from headrace.schemas.examples import EXAMPLES, RUN, TRAJECTORY
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.schemas.topics import ALERTS, REWARDS, TRAJECTORIES
from headrace.schemas.wire import Message
from tests.needs import needs
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.notifying.builders import message as alert_message

pytestmark = pytest.mark.kafka

CONSUMERS = Path(__file__).parents[2] / "deploy" / "consumers"
PAGE = (CONSUMERS / "README.md").read_text()
KCAT = dict(re.findall(r"```sh (kcat-[\w-]+)\n(.*?)```", PAGE, re.S))
LONG = 3000
EXPECTED = [
    f"{TRAJECTORY} 5 tokens, mean log-prob -0.4875",
    f"long {LONG} tokens, mean log-prob -0.7500",
    "tokenless 0 tokens, mean log-prob none",
]


def long_attempt() -> Trajectory:
    """Returns a trajectory whose arrays are compressed."""
    segment = Segment(
        token_ids=range(2 * LONG),
        loss_mask=[0] * LONG + [1] * LONG,
        logprobs=[-0.5, -1.0] * (LONG // 2),
        version_spans=[],
    )
    return attempt("long").model_copy(update={"segments": [segment]})


@pytest.fixture(scope="module")
def log(kafka: str) -> str:
    """Three trajectories in two partitions, one of them written twice and one compressed, and an aborted one."""

    async def fill() -> None:
        example = EXAMPLES[Trajectory.TYPE].message
        tokenless = trajectory_message(attempt("tokenless").model_copy(update={"segments": []}))
        messages = [(example, 0), (example, 0), (trajectory_message(long_attempt()), 3), (tokenless, 3)]
        async with open_producer(kafka, transactional_id="test") as producer:

            async def send(message: Message, partition: int) -> None:
                await producer.send(
                    TRAJECTORIES.name, message.value, message.key, headers=message.headers, partition=partition
                )

            async with producer.transaction():
                for message, partition in messages:
                    await send(message, partition)
                reward = EXAMPLES[Reward.TYPE].message
                await producer.send(REWARDS.name, reward.value, reward.key, headers=reward.headers)
                for alert in (EXAMPLES[Alert.TYPE].message, alert_message("e-1")):
                    await producer.send(ALERTS.name, alert.value, alert.key, headers=alert.headers)
            await producer.begin_transaction()
            await send(trajectory_message(attempt("aborted")), 0)
            await producer.abort_transaction()

    asyncio.run(fill())
    return kafka


def lines_of(*argv: str, **environment: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"\x1b\[\d*m", "", done.stdout).strip().splitlines()  # Maven prints resets of colours


def test_one_of_the_arrays_is_compressed() -> None:
    assert b'"zstd:' in trajectory_message(long_attempt()).value


@pytest.mark.parametrize("program", ["with_aiokafka.py", "with_confluent_kafka.py"])
def test_python_prints_every_committed_trajectory_once(log: str, program: str) -> None:
    assert lines_of(sys.executable, str(CONSUMERS / program), log) == EXPECTED


@needs("javac")
def test_java_prints_the_same(log: str, tmp_path: Path) -> None:
    project = tmp_path / "java"
    shutil.copytree(CONSUMERS / "java", project, ignore=shutil.ignore_patterns("target"))
    command = re.search(r"    mvn (.*)\n", PAGE)
    assert command is not None
    arguments = command[1].replace("deploy/consumers/java", str(project)).replace("localhost:9092", log)
    assert lines_of("mvn", "-B", *arguments.split()) == EXPECTED


@needs("kcat")
def test_kcat_prints_keys_headers_and_rewards(log: str) -> None:
    shown = {name: lines_of("bash", "-euo", "pipefail", "-c", text, HEADRACE_KAFKA=log) for name, text in KCAT.items()}
    assert shown.keys() == {"kcat-headers", "kcat-rewards", "kcat-alerts"}
    headers = shown["kcat-headers"]
    assert [line.split()[1] for line in headers].count(TRAJECTORY) == 2
    assert sum(f"{ID}={EXAMPLES[Trajectory.TYPE].envelope.id}" in line for line in headers) == 2
    assert len(headers) == 4
    assert shown["kcat-rewards"] == [f"{TRAJECTORY} search@1 0 1.83"]
    assert f'"{RUN}"' in KCAT["kcat-rewards"]
    assert sorted(shown["kcat-alerts"]) == [
        f"critical canary_mismatch {RUN} no episode ",
        "warning monitor_talks r opened t-1,t-2",
    ]


def test_every_file_is_on_the_page() -> None:
    for file in CONSUMERS.rglob("*.*"):
        if "target" not in file.parts and file.name != "README.md":
            assert f"({file.relative_to(CONSUMERS)})" in PAGE
