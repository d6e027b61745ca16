"""Feedback and judges on a real broker: windows, revisions, kill -9, a suspended worker, each reward written once."""

import asyncio
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from headrace.deploy.system.children import end_of
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import FEEDBACK, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode, encode
from headrace.streams.faust_shell.faust_app import MEMBER_LOST_S
from headrace.streams.workers import run_workers
from headrace.streams.workers_config import WorkersConfig
from tests.clocks import with_producers_time
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.judged_rewards import WINDOW_MS
from tests.streams.test_workers import records, until, worker

START_MS = time.time_ns() // 1_000_000
"""The current time: the broker soon deletes records with a timestamp before its retention."""

SPECS = Path(__file__).parents[1] / "judged_rewards.py"
ONLY_SCORE = {"processors": ["score"], "trust_producers_time": True}


@pytest.fixture(scope="module", autouse=True)
def times_as_given(request: pytest.FixtureRequest) -> None:
    """These tests set the timestamps of records themselves."""
    with_producers_time(request.getfixturevalue("kafka"), FEEDBACK)


def produce(bootstrap: str, topic: Topic, timed: list[tuple[Message, int]], partition: int | None = None) -> None:
    """Write messages with the timestamps given with them, Unix milliseconds."""

    async def run() -> None:
        async with open_producer(bootstrap) as producer:
            sent = [
                await producer.send(
                    topic.name, message.value, message.key, partition, timestamp_ms=time_ms, headers=message.headers
                )
                for message, time_ms in timed
            ]
            await asyncio.gather(*sent)

    asyncio.run(run())


def ended(name: str, at_ms: int = START_MS, **fields: Any) -> tuple[Message, int]:
    return trajectory_message(attempt(name, ended_ms=at_ms, group=None, **fields)), at_ms


def given(name: str, at_ms: int, value: float = 1.0) -> tuple[Message, int]:
    """Feedback whose ID follows from its content: the same feedback twice counts once."""
    fact = FeedbackGiven(signal="accepted", value=value)
    envelope = Envelope(f"{name}/{at_ms}/{value}", fact.TYPE, "/test", at_ms, name)
    return encode(fact, key=name, envelope=envelope), at_ms


def rewards(bootstrap: str, prefix: str) -> dict[tuple[str, int], Reward]:
    """Every reward by trajectory and revision; fails if one was written twice."""
    made = [decode(record.headers, record.value)[1] for record in records(bootstrap, REWARDS, prefix)]
    found = {(each.trajectory_id, each.revision): each for each in made if isinstance(each, Reward)}
    assert len(found) == len(made)
    return found


def totals(bootstrap: str, prefix: str) -> dict[str, dict[int, float | None]]:
    """Trajectory → revision → total."""
    found: dict[str, dict[int, float | None]] = defaultdict(dict)
    for (name, revision), reward in rewards(bootstrap, prefix).items():
        found[name][revision] = reward.total
    return dict(found)


@pytest.mark.kafka
def test_feedback_within_the_window_counts_and_later_feedback_makes_a_revision(kafka: str, tmp_path: Path) -> None:
    options = ONLY_SCORE | {"rewards": {"*": f"{SPECS}:LIKED", "hasty": f"{SPECS}:HASTY"}}
    within, after = START_MS + WINDOW_MS, START_MS + WINDOW_MS + 1
    with worker(kafka, tmp_path, **options) as running:
        produce(kafka, FEEDBACK, [given("win-early", START_MS - 9, 0.25)], 1)
        produce(kafka, TRAJECTORIES, [ended("win-early"), ended("win-none"), ended("win-late")], 1)
        produce(kafka, FEEDBACK, [given("win-early", within, 0.5), given("win-late", after, 2.0)], 1)
        # Stream time of both topics advances and closes the windows.
        produce(kafka, TRAJECTORIES, [ended("win-next", after + 10)], 1)
        produce(kafka, FEEDBACK, [given("win-unknown", after + 10)], 1)
        expected = {"win-early": {0: 0.75}, "win-none": {0: 0.0}, "win-late": {0: 0.0, 1: 2.0}}
        until(lambda: expected.items() <= totals(kafka, "win-").items(), "windows are closed", running.log)
        # The same feedback again, as sent by a host that retries, and more.
        produce(kafka, FEEDBACK, [given("win-late", after, 2.0), given("win-late", after + 20, 4.0)], 1)
        until(lambda: 2 in totals(kafka, "win-late").get("win-late", {}), "a revision is made", running.log)
        # No record follows this one: silence closes its window.
        produce(kafka, TRAJECTORIES, [ended("win-last", after + 30, agent="hasty")], 1)
        until(lambda: totals(kafka, "win-last") == {"win-last": {0: 0.0}}, "silence closes a window", running.log)
        running.terminate()
        assert running.wait(30) == 0, end_of(running.log)
    assert totals(kafka, "win-late") == {"win-late": {0: 0.0, 1: 2.0, 2: 6.0}}
    assert [len(rewards(kafka, "win-late")["win-late", revision].feedback) for revision in range(3)] == [0, 1, 2]


@pytest.mark.kafka
def test_kill_9_in_the_middle_of_open_windows_makes_the_same_rewards(kafka: str, tmp_path: Path) -> None:
    options = ONLY_SCORE | {"rewards": {"*": f"{SPECS}:LIKED"}, "batch": 10}
    count, after = 200, START_MS + WINDOW_MS + 1
    names = [f"cut-{number}" for number in range(count)]
    with worker(kafka, tmp_path, **options) as first:
        for partition in range(4):
            mine = names[partition::4]
            produce(kafka, TRAJECTORIES, [ended(name) for name in mine], partition)
            produce(kafka, FEEDBACK, [given(name, START_MS + 5) for name in mine[::2]], partition)
            produce(kafka, TRAJECTORIES, [ended(f"later-{partition}", after + 10)], partition)
            produce(kafka, FEEDBACK, [given(name, after, 2.0) for name in mine[::3]], partition)
            produce(kafka, FEEDBACK, [given(f"later-{partition}", after + 10)], partition)
        until(lambda: len(rewards(kafka, "cut-")) > 20, "some rewards are out", first.log)
        first.kill_command()
        assert first.wait(30) != 0
    expected: dict[str, dict[int, float | None]] = {}
    for partition in range(4):
        for number, name in enumerate(names[partition::4]):
            first_total = float(number % 2 == 0)
            expected[name] = {0: first_total} | ({1: first_total + 2.0} if number % 3 == 0 else {})
    with worker(kafka, tmp_path, **options) as second:
        until(lambda: totals(kafka, "cut-") == expected, "all windows are closed", second.log)


@pytest.mark.kafka
def test_a_worker_suspended_beyond_its_session_writes_nothing_when_it_resumes(kafka: str, tmp_path: Path) -> None:
    options = ONLY_SCORE | {"rewards": {"*": f"{SPECS}:LIKED", "plain": "outcome@1"}, "batch": 20, "member": None}
    after = START_MS + WINDOW_MS + 1
    names = [f"zombie-{number}" for number in range(400)]

    def attempts(some: list[str]) -> list[tuple[Message, int]]:
        return [ended(name, agent=("helper", "plain")[number % 2]) for number, name in enumerate(some)]

    with worker(kafka, tmp_path / "a", **options) as sleeper:
        produce(kafka, TRAJECTORIES, attempts(names[:200]))
        until(lambda: len(rewards(kafka, "zombie-")) > 20, "some are scored", sleeper.log)
        os.kill(sleeper.pid, signal.SIGSTOP)
        time.sleep(MEMBER_LOST_S)
        with worker(kafka, tmp_path / "b", **options) as heir:
            produce(kafka, FEEDBACK, [given(name, START_MS + 5) for name in names[:200]])
            produce(kafka, TRAJECTORIES, attempts(names[200:]))
            for partition in range(4):
                produce(kafka, TRAJECTORIES, [ended(f"later-{partition}", after + 10)], partition)
                produce(kafka, FEEDBACK, [given(f"later-{partition}", after + 10)], partition)
            until(lambda: len(rewards(kafka, "zombie-")) == len(names), "the heir has scored all", heir.log)
            os.kill(sleeper.pid, signal.SIGCONT)
            produce(kafka, FEEDBACK, [given(name, after, 2.0) for name in names[:100:2]])
            until(lambda: len(rewards(kafka, "zombie-")) == len(names) + 50, "revisions are made", heir.log)
        assert sleeper.poll() is None, end_of(sleeper.log)
    found = totals(kafka, "zombie-")
    assert all(found[name] == {0: 1.0, 1: 3.0} for name in names[:100:2])
    assert all(found[name] == {0: 1.0} for name in names[1:200:2])


@contextmanager
def moody_judge(pause_s: float = 0.0) -> Iterator[tuple[str, list[str]]]:
    """A judge that never gives the same answer twice in a row: its address and the questions."""
    asked: list[str] = []

    class Judge(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"])
            time.sleep(pause_s)
            text = str(len(asked) % 5 + 1)
            body = json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode()
            with suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.kafka
def test_a_judge_that_changes_its_mind_is_asked_again_after_kill_9_and_no_reward_ever_changes(
    kafka: str, tmp_path: Path
) -> None:
    names = [f"moody-{number}" for number in range(120)]
    with moody_judge(pause_s=0.05) as (url, asked):
        options = ONLY_SCORE | {"rewards": {"*": f"{SPECS}:JUDGED"}, "judge_url": url, "judge_batch": 8}
        with worker(kafka, tmp_path, **options) as first:
            produce(kafka, TRAJECTORIES, [ended(name, answer=name) for name in names])
            until(lambda: len(rewards(kafka, "moody-")) > 20, "some are judged", first.log)
            first.kill_command()
            assert first.wait(30) != 0
        with worker(kafka, tmp_path, **options) as second:
            until(lambda: len(rewards(kafka, "moody-")) == len(names), "all are judged", second.log)
            before = rewards(kafka, "moody-")
            asked_before = len(asked)
            produce(kafka, FEEDBACK, [given(names[0], START_MS + 5)])
            until(lambda: (names[0], 1) in rewards(kafka, names[0]), "a revision is made", second.log)
            second.terminate()
            assert second.wait(30) == 0, end_of(second.log)
    assert len(asked) == asked_before, "a revision rests on the verdicts that are there"
    assert all(0.0 <= (reward.total or 0.0) <= 1.0 and reward.unscored is None for reward in before.values())
    revised = rewards(kafka, names[0])[names[0], 1]
    assert revised.components["helpful"] == before[names[0], 0].components["helpful"]
    assert before[names[0], 0].components["helpful"].details.keys() == {"task", "user", "disagreement"}


@pytest.mark.kafka
def test_an_unavailable_judge_leaves_a_label_and_a_hanging_one_does_not_delay_shutdown(
    kafka: str, tmp_path: Path
) -> None:
    options = ONLY_SCORE | {"rewards": {"*": f"{SPECS}:HASTY", "judged": f"{SPECS}:JUDGED"}, "judge_wait_s": 2}
    with worker(kafka, tmp_path, **options, judge_url="http://127.0.0.1:1") as running:
        produce(kafka, TRAJECTORIES, [ended("away-1", agent="judged", answer="a")], 3)
        until(lambda: bool(rewards(kafka, "away-1")), "it is labelled", running.log)
        running.terminate()
        assert running.wait(30) == 0, end_of(running.log)
    made = rewards(kafka, "away-1")["away-1", 0]
    assert (made.total, made.unscored) in {(None, "judge_error"), (None, "judge_timeout")}
    with (
        moody_judge(pause_s=60) as (url, asked),
        worker(kafka, tmp_path, **{**options, "judge_wait_s": 300}, judge_url=url) as hanging,
    ):
        produce(kafka, TRAJECTORIES, [ended("away-2", agent="judged", answer="a")], 3)
        until(lambda: bool(asked), "the judge is asked", hanging.log)
        hanging.terminate()
        assert hanging.wait(30) == 0, end_of(hanging.log)
    assert not rewards(kafka, "away-2")


@pytest.mark.kafka
def test_feedback_with_another_partition_count_than_trajectories_is_refused_with_the_fix(
    kafka: str, tmp_path: Path
) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        await admin.create_partitions({FEEDBACK.name: NewPartitions(total_count=5)})
        while len((await admin.describe_topics([FEEDBACK.name]))[0]["partitions"]) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the broker lists the change later than it acknowledges it
        await admin.close()

    asyncio.run(run())
    config = WorkersConfig(bootstrap=kafka, data_dir=tmp_path, rewards={"*": f"{SPECS}:LIKED"}, processors=("score",))
    with pytest.raises(TopicsError, match="feedback has 5 partitions and trajectories 4"):
        run_workers(config, ready=lambda: None)
