"""Group on Faust against a real broker: each group is decided and written once, whatever happens to the workers."""

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

from headrace.deploy.system.children import end_of
from headrace.schemas.envelope import from_headers
from headrace.schemas.events import Purpose
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.rollouts import RolloutCounts, rollouts_in
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, REJECTED, REWARDS, TRAINING, Topic
from headrace.schemas.wire import decode
from headrace.streams.faust_shell.faust_app import MEMBER_LOST_S
from headrace.streams.faust_shell.worker import state_topic
from headrace.streams.grouping.group import output_message
from headrace.streams.grouping.group_policy import parse_policies
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from headrace.streams.runtime.owned_partition import create_state_topic
from headrace.streams.runtime.state import KIND
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import rewarded
from tests.streams.test_workers import produce, records, until, worker

pytestmark = pytest.mark.kafka

POLICIES = {
    "pairs": {"by": "cohort", "size": 2, "baseline": "leave_one_out"},
    "alone": {"by": "cohort", "baseline": "running", "warmup": 3},
}


def rewards(prefix: str, groups: int, size: int = 4) -> list[Reward]:
    """Groups by ID that train, carry no gradient or have defects; their members are not adjacent."""
    made = []
    for member in range(size):
        for number in range(groups):
            total = float(member % 2) if number % 3 else float(number % 2)
            defects = [Defect.NO_LOGPROBS] if (number + member) % 7 == 0 else []
            made.append(
                rewarded(f"{prefix}{number}-{member}", total, group=f"{prefix}{number}", size=size, defects=defects)
            )
    made += [rewarded(f"{prefix}e{number}", purpose=Purpose.EVALUATE) for number in range(10)]
    return made


def singles(prefix: str, count: int, cohorts: int = 3) -> list[Reward]:
    """Single attempts of some cohorts under two specs, some of them twice."""
    made = []
    for number in range(count):
        reward = rewarded(f"{prefix}{number}", float(number % 7 < 3), group=None, size=None)
        named = {"cohort_key": f"{prefix}{number % cohorts}", "spec": f"{('pairs', 'alone')[number % 2]}@1"}
        made.append(reward.model_copy(update=named))
    return [*made, *made[::5]]


def last_of_all(prefix: str) -> list[Reward]:
    """A group in each partition, whose training record carries the counts of the rollouts decided before it."""
    names = {crc32(name.encode()) % REWARDS.partitions: name for name in (f"{prefix}{n}" for n in range(100))}
    assert len(names) == REWARDS.partitions
    return [rewarded(f"{name}-{n}", float(n), group=name, size=2) for name in names.values() for n in (0, 1)]


def rollouts_written(bootstrap: str, run: str) -> RolloutCounts:
    """The sum of the rollout counts in the training records of ``run``."""
    written = RolloutCounts()
    for record in records(bootstrap, TRAINING, ""):
        _, group = decode(record.headers, record.value)
        if isinstance(group, TrainingGroup) and group.run == run:
            written = written.plus(rollouts_in(record.headers) or RolloutCounts())
    return written


def rollouts_decided(bootstrap: str, run: str) -> RolloutCounts:
    """The same counts from all committed fates."""
    payloads = [
        decode(each.headers, each.value)[1] for topic in (TRAINING, REJECTED) for each in records(bootstrap, topic, "")
    ]
    groups = [each for each in payloads if isinstance(each, TrainingGroup) and each.run == run]
    rejected = [each for each in payloads if isinstance(each, Rejection) and each.run == run]
    found = [member.reward for group in groups for member in group.members]
    found += [each.reward for each in rejected if each.reward is not None and each.reason is not Reason.EVALUATION]
    success, fail, equal = (
        len({each.group_id or each.trajectory_id for each in rejected if each.reason is reason})
        for reason in (Reason.ALL_SUCCESS, Reason.ALL_FAIL, Reason.ALL_EQUAL)
    )
    return RolloutCounts(
        scored=len(found), reward_sum=sum(found), groups=len(groups) + success + fail + equal,
        all_success=success, all_fail=fail, all_equal=equal,
    )  # fmt: skip


def put(bootstrap: str, made: list[Reward]) -> None:
    """Send each cohort and each group to one partition, as score does."""
    for partition in range(REWARDS.partitions):
        keys = [(each.group_id or each.cohort_key or "").encode() for each in made]
        ours = [each for each, key in zip(made, keys, strict=True) if crc32(key) % REWARDS.partitions == partition]
        produce(bootstrap, REWARDS, [reward_message(each) for each in ours], partition)


def expected(bootstrap: str, prefix: str) -> dict[Topic, Counter[bytes]]:
    """The result of the pure fold over the rewards in the log, each partition by itself."""
    folds = {
        partition: Groups(GroupLimits(), policies=parse_policies(POLICIES), sources=REWARDS.partitions)
        for partition in range(REWARDS.partitions)
    }
    found: dict[Topic, Counter[bytes]] = {TRAINING: Counter(), REJECTED: Counter()}
    for record in records(bootstrap, REWARDS, prefix):
        _, reward = decode(record.headers, record.value)
        assert isinstance(reward, Reward)
        changes = GroupChanges()
        folds[record.partition].add(reward, record.timestamp, changes)
        for each in changes.outputs:
            topic, message = output_message(each.record, each.time_ms)
            found[topic][message.value] += 1
    return found


def announced(bootstrap: str, topic: Topic, prefix: str) -> Counter[bytes]:
    """The committed records of ``topic`` about ``prefix``, record by record."""
    counts: Counter[bytes] = Counter()
    for record in records(bootstrap, topic, ""):
        _, payload = decode(record.headers, record.value)
        name = (
            payload.members[0].trajectory_id
            if isinstance(payload, TrainingGroup)
            else from_headers(record.headers).subject
        )
        if name.startswith(prefix):
            counts[record.value or b""] += 1
    return counts


def check(bootstrap: str, prefix: str, log: Path) -> None:
    """Assert that every decision is present exactly once."""
    for topic, outputs in expected(bootstrap, prefix).items():
        until(lambda t=topic, o=outputs: announced(bootstrap, t, prefix).keys() >= o.keys(), topic.name, log)
        assert announced(bootstrap, topic, prefix) == outputs


def test_groups_and_cohorts_match_the_fold(kafka: str, tmp_path: Path) -> None:
    put(kafka, [*rewards("flow-", 30), *singles("flow-s", 60)])
    with worker(kafka, tmp_path, processors=["group"], group_policies=POLICIES) as running:
        check(kafka, "flow-", running.log)
        running.terminate()
        assert running.wait(30) == 0, end_of(running.log)
    assert any(b'"baseline":"leave_one_out"' in value for value in announced(kafka, TRAINING, "flow-"))
    assert any(b'"baseline":"running"' in value for value in announced(kafka, TRAINING, "flow-"))


def test_kill_9_in_the_middle_writes_nothing_twice(kafka: str, tmp_path: Path) -> None:
    made = [
        each.model_copy(update={"run": "kill"})
        for each in [*rewards("kill-", 400), *singles("kill-s", 300), *last_of_all("kill-end")]
    ]
    options = {"processors": ["group"], "group_policies": POLICIES}
    with worker(kafka, tmp_path, batch=20, **options) as first:
        put(kafka, made)
        until(lambda: len(announced(kafka, TRAINING, "kill-")) > 20, "some groups are out", first.log)
        first.kill_command()
        assert first.wait(30) != 0
    assert announced(kafka, TRAINING, "kill-") != expected(kafka, "kill-")[TRAINING], "killed too late"
    with worker(kafka, tmp_path, **options) as second:
        check(kafka, "kill-", second.log)
    written, decided = rollouts_written(kafka, "kill"), rollouts_decided(kafka, "kill")
    assert written == decided
    assert min(written.all_success, written.all_fail) > 20


def test_a_worker_suspended_beyond_its_session_writes_nothing_when_it_resumes(kafka: str, tmp_path: Path) -> None:
    options = {"processors": ["group"], "group_policies": POLICIES, "member": None}
    made = [*singles("zombie-s", 600), *rewards("zombie-", 300)]
    with worker(kafka, tmp_path / "a", batch=20, **options) as sleeper:
        put(kafka, made[: len(made) // 2])
        until(lambda: len(announced(kafka, REJECTED, "zombie-")) > 20, "some fates are out", sleeper.log)
        os.kill(sleeper.pid, signal.SIGSTOP)
        time.sleep(MEMBER_LOST_S)
        with worker(kafka, tmp_path / "b", **options) as heir:
            put(kafka, made[len(made) // 2 :])
            check(kafka, "zombie-", heir.log)
            os.kill(sleeper.pid, signal.SIGCONT)
            put(kafka, rewards("zombie-more", 50))
            check(kafka, "zombie-", heir.log)
        assert sleeper.poll() is None, end_of(sleeper.log)


def test_unreadable_state_stops_no_partition(kafka: str, tmp_path: Path) -> None:
    """The state was written by hand or by another version of the code, into a partition that a worker acquires."""

    async def plant() -> None:
        state = await create_state_topic(kafka, state_topic("group"), partitions=REWARDS.partitions, about="Of group.")
        async with open_producer(kafka) as producer:
            for partition in range(REWARDS.partitions):
                await (await producer.send(state.name, b'{"kind":"group","total":NaN}', b'["group","odd"]', partition))

    asyncio.run(plant())
    with worker(kafka, tmp_path, processors=["group"], group_policies=POLICIES) as running:
        put(kafka, rewards("aside-", 10))
        check(kafka, "aside-", running.log)
        assert running.poll() is None, end_of(running.log)
    dead_letters = [decode(each.headers, each.value)[1] for each in records(kafka, DEAD_LETTERS, "")]
    places = {
        each.partition for each in dead_letters if isinstance(each, DeadLetter) and each.topic == state_topic("group")
    }
    assert places == set(range(REWARDS.partitions))
    alerts = [decode(each.headers, each.value)[1] for each in records(kafka, ALERTS, "")]
    assert {each.kind for each in alerts if isinstance(each, Alert)} >= {KIND}
