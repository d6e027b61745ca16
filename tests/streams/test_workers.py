"""Score and group on Faust against a real broker: nothing is lost or decided twice, whatever happens to them."""

import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.deploy.system.children import Child, Command, end_of
from headrace.schemas.envelope import SUBJECT, from_headers
from headrace.schemas.events import Purpose
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, REJECTED, REWARDS, TRAINING, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode
from headrace.streams.dead_letters.build import original_bytes
from headrace.streams.faust_shell.faust_app import new_app
from headrace.streams.grouping.group import GroupState, group, output_message
from headrace.streams.scoring.score import reward_message, score
from headrace.streams.workers_config import WorkersConfig
from tests.streams.attempts import attempt, rewarded, trajectory_message

WORKER = """
import json, logging, sys
from pathlib import Path
from headrace.streams.scoring import score_intake
from headrace.streams import workers
logging.basicConfig(level="INFO", stream=sys.stderr)
bootstrap, folder, options, raises_on = sys.argv[1:]
if raises_on:
    honest = score_intake.score_or_label
    def score(trajectory, reference, **options):
        if trajectory.trajectory_id == raises_on:
            raise RuntimeError("planted")
        return honest(trajectory, reference, **options)
    score_intake.score_or_label = score
config = workers.WorkersConfig(bootstrap=bootstrap, data_dir=Path(folder), **json.loads(options))
sys.exit(workers.run_workers(config, ready=lambda: print("READY", flush=True)))
"""


@contextmanager
def worker(
    bootstrap: str, folder: Path, *, raises_on: str = "", member: str | None = "local", **options: object
) -> Iterator[Child]:
    """A worker process that is ready; killed at the end if it still runs."""
    log = folder / f"worker-{time.monotonic_ns()}.log"
    argv = (sys.executable, "-c", WORKER, bootstrap, str(folder), json.dumps(options | {"member": member}), raises_on)
    child = Child(Command(argv), log)
    try:
        until(lambda: b"READY" in log.read_bytes() or child.poll() is not None, "the worker is ready", log)
        yield child
    finally:
        child.kill()


def until(happened: Callable[[], bool], what: str, log: Path, within_s: float = 240) -> None:
    """Wait until ``happened``; fails with the end of the worker's log."""
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}\n{end_of(log)}"
        time.sleep(0.1)


def produce(bootstrap: str, topic: Topic, messages: list[Message], partition: int | None = None) -> None:
    async def run() -> None:
        async with open_producer(bootstrap) as producer:
            await asyncio.gather(*[await send(producer, topic, message, partition) for message in messages])

    asyncio.run(run())


def records(bootstrap: str, topic: Topic, prefix: str) -> list[KafkaRecord]:
    """Everything in ``topic`` about trajectories and groups whose id starts with ``prefix``."""

    async def run() -> list[KafkaRecord]:
        return [record async for record in read_to_end(bootstrap, topic)]

    return [
        record
        for record in asyncio.run(run())
        if (dict(record.headers).get(SUBJECT) or b"").startswith(prefix.encode())
    ]


def by_id(found: list[KafkaRecord]) -> dict[str, bytes]:
    """Record id → payload; fails where two records of one id differ."""
    payloads: dict[str, bytes] = {}
    for record in found:
        value = record.value or b""
        assert payloads.setdefault(from_headers(record.headers).id, value) == value
    return payloads


def trajectories(prefix: str, groups: int, size: int) -> list[Trajectory]:
    """Groups that train, carry no gradient or have defects, evaluations and attempts without a group; interleaved."""
    made = []
    for member in range(size):
        for number in range(groups):
            name = f"{prefix}{number}"
            outcome = float(member % 2) if number % 3 else float(number % 2)
            defects = [Defect.NO_LOGPROBS] if (number + member) % 7 == 0 else []
            made.append(attempt(f"{name}-{member}", group=name, size=size, outcome=outcome, defects=defects))
    made += [attempt(f"{prefix}e{number}", purpose=Purpose.EVALUATE) for number in range(10)]
    made += [attempt(f"{prefix}n{number}", group=None) for number in range(10)]
    return made


def oracle(bootstrap: str, prefix: str) -> dict[Topic, dict[str, bytes]]:
    """The output of score and group for the trajectories in the log: record ID → payload, by topic."""
    expected: dict[Topic, dict[str, bytes]] = defaultdict(dict)
    states: dict[str | None, GroupState | None] = {}
    for record in records(bootstrap, TRAJECTORIES, prefix):
        _, trajectory = decode(record.headers, record.value)
        assert isinstance(trajectory, Trajectory)
        reward = score(trajectory, Reference(partition=record.partition, offset=record.offset))
        message = reward_message(reward)
        expected[REWARDS][from_headers(message.headers).id] = message.value
        states[reward.group_id], outputs = group(states.get(reward.group_id), reward)
        for output in outputs:
            topic, message = output_message(output, 0)
            expected[topic][from_headers(message.headers).id] = message.value
    return expected


def test_a_worker_refuses_processors_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name some of score, "):
        WorkersConfig(bootstrap="b", data_dir=tmp_path, processors=("scores",))


def test_a_reward_with_judges_needs_an_endpoint_where_it_is_scored(tmp_path: Path) -> None:
    rewards = {"helper": f"{Path(__file__).parent / 'judged_rewards.py'}:JUDGED"}
    with pytest.raises(ValueError, match="judge_url is not set, and judged@1 must ask judges"):
        WorkersConfig(bootstrap="b", data_dir=tmp_path, rewards=rewards)
    WorkersConfig(bootstrap="b", data_dir=tmp_path, rewards=rewards, judge_url="http://127.0.0.1:1")
    WorkersConfig(bootstrap="b", data_dir=tmp_path, rewards=rewards, processors=("group",))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rewards": {"helper": "nobody@9"}}, "no reward 'nobody@9'"),
        ({"judge_batch": 0}, "judge_batch"),
        ({"judge_wait_s": 0}, "judge_wait_s"),
        ({"judge_key_file": Path("nowhere")}, "judge_key_file names nowhere"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        WorkersConfig(bootstrap="b", data_dir=tmp_path, **wrong)


def test_resuming_a_flowing_queue_clears_no_record(tmp_path: Path) -> None:
    app = new_app("flowing", "127.0.0.1:1", tmp_path, batch=10)
    queue = app.FlowControlQueue(maxsize=9, clear_on_resume=True)
    app.flow_control.resume()
    queue.put_nowait("a record of a source partition")
    app.flow_control.resume()
    assert queue.qsize() == 1
    app.flow_control.suspend()
    app.flow_control.resume()
    assert queue.qsize() == 0


def test_a_rebalance_does_not_deadlock_with_a_waiting_batch(tmp_path: Path) -> None:
    """Group once deadlocked after a freeze: its batch waited for a stable consumer group, and Faust for the batch."""
    assert new_app("asked", "127.0.0.1:1", tmp_path, batch=10).conf.stream_wait_empty is False


@pytest.mark.kafka
def test_trajectories_become_training_groups_and_rejections(kafka: str, tmp_path: Path) -> None:
    produce(kafka, TRAJECTORIES, [trajectory_message(each) for each in trajectories("flow", 30, 4)])
    expected = oracle(kafka, "flow")
    assert expected[TRAINING]
    assert expected[REJECTED]
    with worker(kafka, tmp_path) as running:
        for topic, payloads in expected.items():
            until(lambda t=topic, p=payloads: by_id(records(kafka, t, "flow")) == p, topic.name, running.log)
        running.terminate()
        assert running.wait(30) == 0, end_of(running.log)


@pytest.mark.kafka
def test_uncommitted_trajectories_are_never_scored(kafka: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with open_producer(kafka, transactional_id="test-abort") as producer:
            for commit, name in ((False, "txn-aborted"), (True, "txn-committed")):
                await producer.begin_transaction()
                await (await send(producer, TRAJECTORIES, trajectory_message(attempt(name)), 0))
                await (producer.commit_transaction() if commit else producer.abort_transaction())

    asyncio.run(run())
    with worker(kafka, tmp_path) as running:
        until(lambda: bool(records(kafka, REWARDS, "txn-committed")), "the committed one is scored", running.log)
        assert not records(kafka, REWARDS, "txn-aborted")


@pytest.mark.kafka
@pytest.mark.parametrize("member", ["local", None])
def test_kill_9_in_the_middle_loses_nothing_and_decides_nothing_twice(
    kafka: str, tmp_path: Path, member: str | None
) -> None:
    prefix = f"kill-{member}-"
    batch = [trajectory_message(each) for each in trajectories(prefix, 500, 4)]
    with worker(kafka, tmp_path, member=member, batch=25) as first:
        produce(kafka, TRAJECTORIES, batch)
        until(lambda: len(records(kafka, TRAINING, prefix)) > 20, "some groups are out", first.log)
        assert len(records(kafka, TRAINING, prefix)) < len(oracle(kafka, prefix)[TRAINING]), "killed too late"
        first.kill_command()
        assert first.wait(30) != 0
    with worker(kafka, tmp_path, member=member) as second:
        expected = oracle(kafka, prefix)
        for topic, payloads in expected.items():
            until(
                lambda t=topic, p=payloads: by_id(records(kafka, t, prefix)).keys() >= p.keys(), topic.name, second.log
            )
            assert by_id(records(kafka, topic, prefix)) == payloads


@pytest.mark.kafka
def test_unreadable_records_become_dead_letters_and_the_worker_continues(kafka: str, tmp_path: Path) -> None:
    good = trajectory_message(attempt("poison-good", group=None))
    bad_trajectory = Message(b"k", b"{broken", good.headers)
    bad_reward = Message(b"k", b'{"trajectory_id": 7}', reward_message(rewarded("poison-reward")).headers)
    foreign = Message(b"k", reward_message(rewarded("poison-foreign")).value, good.headers[:2])
    with worker(kafka, tmp_path) as running:
        produce(kafka, TRAJECTORIES, [bad_trajectory, foreign], partition=2)
        produce(kafka, REWARDS, [bad_reward], partition=2)
        produce(kafka, TRAJECTORIES, [good], partition=2)
        until(lambda: bool(records(kafka, REJECTED, "poison-good")), "the good one is decided", running.log)

        def dead_letters() -> list[DeadLetter]:
            async def run() -> list[DeadLetter]:
                found = [decode(r.headers, r.value)[1] async for r in read_to_end(kafka, DEAD_LETTERS)]
                return [letter for letter in found if isinstance(letter, DeadLetter) and letter.partition == 2]

            return asyncio.run(run())

        until(lambda: len(dead_letters()) >= 3, "three dead letters", running.log)
        found = {(letter.topic, letter.error): original_bytes(letter) for letter in dead_letters()}
    assert found == {
        ("trajectories", DeadLetterError.BAD_JSON): bad_trajectory.value,
        ("trajectories", DeadLetterError.BAD_HEADERS): foreign.value,
        ("rewards", DeadLetterError.INVALID): bad_reward.value,
    }


@pytest.mark.kafka
def test_an_exception_for_one_record_is_a_dead_letter_and_an_alert_and_the_others_are_scored(
    kafka: str, tmp_path: Path
) -> None:
    messages = [trajectory_message(attempt(f"raise-{number}", group=None)) for number in range(50)]
    with worker(kafka, tmp_path, raises_on="raise-25") as running:
        produce(kafka, TRAJECTORIES, messages)
        until(lambda: len(by_id(records(kafka, REWARDS, "raise-"))) == 49, "all others are scored", running.log)
        assert b"planted" in running.log.read_bytes()
    assert not records(kafka, REWARDS, "raise-25")

    async def reported() -> list[Any]:
        read = [
            decode(r.headers, r.value)[1] for topic in (DEAD_LETTERS, ALERTS) async for r in read_to_end(kafka, topic)
        ]
        return [each for each in read if isinstance(each, Alert) or each.error is DeadLetterError.RAISED]

    letter, alert = asyncio.run(reported())
    assert original_bytes(letter) == messages[25].value
    assert "planted" in alert.message


@pytest.mark.kafka
def test_silence_expires_an_incomplete_group_across_a_restart(kafka: str, tmp_path: Path) -> None:
    produce(kafka, TRAJECTORIES, [trajectory_message(attempt("idle-1", group="idle-g", size=2))])
    with worker(kafka, tmp_path, group_timeout_s=600) as first:
        until(lambda: bool(records(kafka, REWARDS, "idle-1")), "it is scored", first.log)
        first.terminate()
        assert first.wait(30) == 0
    with worker(kafka, tmp_path, group_timeout_s=1) as second:
        until(lambda: bool(records(kafka, REJECTED, "idle-1")), "it is given up", second.log)
    (found,) = records(kafka, REJECTED, "idle-1")
    _, rejection = decode(found.headers, found.value)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.INCOMPLETE_GROUP


@pytest.mark.kafka
def test_two_workers_share_the_work_and_one_takes_over(kafka: str, tmp_path: Path) -> None:
    batch = [trajectory_message(each) for each in trajectories("pair", 200, 4)]
    with worker(kafka, tmp_path / "a", member=None) as leaving:
        produce(kafka, TRAJECTORIES, batch[:300])
        until(lambda: len(records(kafka, REWARDS, "pair")) > 200, "some are scored", leaving.log)
        with worker(kafka, tmp_path / "b", member=None) as staying:
            produce(kafka, TRAJECTORIES, batch[300:500])
            leaving.terminate()
            assert leaving.wait(30) == 0, end_of(leaving.log)
            produce(kafka, TRAJECTORIES, batch[500:])
            expected = oracle(kafka, "pair")
            for topic, payloads in expected.items():
                until(
                    lambda t=topic, p=payloads: by_id(records(kafka, t, "pair")).keys() >= p.keys(),
                    topic.name,
                    staying.log,
                )
                assert by_id(records(kafka, topic, "pair")) == payloads
    counts = Counter(from_headers(record.headers).id for record in records(kafka, TRAINING, "pair"))
    assert len(counts) == len(expected[TRAINING])
