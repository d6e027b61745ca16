"""The assembler on a real broker: whatever is killed, each record is committed once and matches a batch over the log.

All tests share one broker and one consumer group, and so one history: each looks at what it added, and the comparison
with the batch is over everything since the beginning.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from headrace.deploy.system.ports import free_port
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.offsets import committed_offsets
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.operator_error import TopicsError
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, PARTITIONS, STEPS, TRAJECTORIES, Topic
from headrace.schemas.trace import continued
from headrace.streams.assembly import assembler
from headrace.streams.assembly.assembler import AssemblerConfig, Statuses, run_assembler
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.assembly.partition_runner import PartitionTakenOver
from headrace.streams.assembly.recovery import parse_commit_metadata
from headrace.streams.assembly.runner_status import RunnerStatus
from headrace.streams.native.shapes import NativeLag
from headrace.streams.raw import StoredRecord
from tests.streams.builders import session, with_header
from tests.streams.oracle import expected

pytestmark = pytest.mark.kafka

T = TypeVar("T")

WORKER = """
import asyncio, json, sys
from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
config = AssemblerConfig(**json.loads(sys.argv[1]))
asyncio.run(run_assembler(config, stop=asyncio.Event(), ready=lambda: print("ready", flush=True)))
"""


def config(bootstrap: str, **changes: Any) -> AssemblerConfig:
    settings = {"member": "one", "commit_interval_s": 0.05, "idle_timeout_s": 3.0, "hole_grace_s": 1.0} | changes
    return AssemblerConfig(bootstrap, **settings)


@asynccontextmanager
async def assembling(settings: AssemblerConfig) -> AsyncIterator[asyncio.Task[None]]:
    """An assembler in this process, ready; stopped at the end, and its failure raised."""
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(run_assembler(settings, stop=stop, ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done(), task
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def until(look: Callable[[], Awaitable[T]], found: Callable[[T], bool], seconds: float = 60) -> T:
    """Poll until the expected value is found; fails with the last one."""
    deadline = time.monotonic() + seconds
    while not found(seen := await look()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {str(seen)[:2000]}"
        await asyncio.sleep(0.2)
    return seen


async def produce(
    bootstrap: str, records: Iterable[StoredRecord], partition: int | None = None, time_ms: int | None = None
) -> list[Any]:
    """Send ``records`` unchanged, including null values and missing headers; returns their offsets. ``time_ms`` is
    their timestamp; by default they have none of their own.
    """
    async with open_producer(bootstrap) as producer:
        sent = [
            await producer.send(
                EVENTS.name,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=partition,
                timestamp_ms=time_ms,
            )
            for record in records
        ]
        return [await result for result in sent]


async def everything(bootstrap: str, topic: Topic) -> list[KafkaRecord]:
    return [record async for record in read_to_end(bootstrap, topic)]


async def trajectories(bootstrap: str, prefix: str) -> dict[str, Trajectory]:
    """The assembled trajectories whose ID starts with ``prefix``; fails if one is present twice."""
    found = [
        Trajectory.model_validate_json(record.value or b"")
        for record in await everything(bootstrap, TRAJECTORIES)
        if (record.key or b"").startswith(prefix.encode())
    ]
    by_id = {trajectory.trajectory_id: trajectory for trajectory in found}
    assert len(by_id) == len(found), "a trajectory was assembled twice"
    return by_id


Written = dict[int, list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]]]


async def written(bootstrap: str) -> Written:
    """``trajectories``: key, value, headers and time of every record, by partition."""
    found: Written = {}
    for record in await everything(bootstrap, TRAJECTORIES):
        entry = (record.key, record.value, list(record.headers), record.timestamp)
        found.setdefault(record.partition, []).append(entry)
    return found


async def folded(bootstrap: str) -> dict[int, list[KafkaRecord]]:
    """The records of ``events`` that the assembler has folded, by partition: a tick may follow its last commit."""
    log: dict[int, list[KafkaRecord]] = {}
    for record in await everything(bootstrap, EVENTS):
        log.setdefault(record.partition, []).append(record)
    for partition, records in log.items():
        place = TopicPartition(EVENTS.name, partition)
        commits = await committed_offsets(bootstrap, "assemble", [place])
        checkpoint = parse_commit_metadata(commits[place].metadata)
        assert checkpoint is not None
        log[partition] = [record for record in records if record.offset < checkpoint.next]
    return log


def batch(log: dict[int, list[KafkaRecord]], limits: FoldLimits) -> tuple[Written, set[tuple[int, int]]]:
    """The result of one pass over the log: trajectories by partition, and offsets of dead letters."""
    assemblies: dict[int, PartitionAssembly] = {}
    for partition, records in log.items():
        assemblies[partition] = PartitionAssembly.resume(limits, None, [], position=0, output_end=0)
        for record in records:
            assemblies[partition].take(record)
    found: Written = {}
    dead = set()
    for partition, assembly in assemblies.items():
        for topic, message, timestamp_ms in assembly.pending:
            if topic is TRAJECTORIES:
                entry = (message.key, message.value, message.headers, timestamp_ms)
                found.setdefault(partition, []).append(entry)
            else:
                letter = DeadLetter.model_validate_json(message.value)
                dead.add((letter.partition, letter.offset))
    return found, dead


async def dead_letters(bootstrap: str) -> list[DeadLetter]:
    return [DeadLetter.model_validate_json(record.value or b"") for record in await everything(bootstrap, DEAD_LETTERS)]


def interleaved(histories: Sequence[Sequence[StoredRecord]], chance: random.Random) -> list[StoredRecord]:
    """All records; each history in order, the histories mixed."""
    left = [list(history) for history in histories]
    mixed = []
    while left:
        history = chance.choice(left)
        mixed.append(history.pop(0))
        if not history:
            left.remove(history)
    return mixed


async def test_events_become_committed_trajectories_in_the_partition_they_came_from(kafka: str) -> None:
    names = [f"plain-{number}" for number in range(40)]
    records = interleaved([session(name, "ask", "tool", "prune", "answer") for name in names], random.Random(1))
    async with assembling(config(kafka)):
        places = await produce(kafka, records)
        found = await until(lambda: trajectories(kafka, "plain-"), lambda seen: len(seen) == len(names))
    assert set(found) == set(names)
    partitions = {(record.key or b"").decode(): place.partition for record, place in zip(records, places, strict=True)}
    for record in await everything(kafka, TRAJECTORIES):
        trajectory = found[(record.key or b"").decode()]
        assert record.partition == trajectory.first.partition == partitions[trajectory.trajectory_id]
        assert (trajectory.defects, len(trajectory.segments), trajectory.events) == ([], 2, 7)


async def test_bad_records_are_dead_letters_with_offset_error_and_every_byte_and_the_rest_continues(kafka: str) -> None:
    good = session("bad-good", "ask", "answer")
    one = session("bad-one", "ask", "tool", "answer")
    broken = replace(one[2], value=b'{"call_id": "c1", \xff\x00')
    null = replace(session("bad-null", "ask")[1], value=None)
    unknown = with_header(session("bad-unknown", "ask")[1], "ce_type", b"com.example.v1")
    huge = replace(session("bad-huge", "ask")[1], value=b"x" * (2 * 1024 * 1024))
    bare = replace(session("bad-bare", "ask")[1], headers=[])
    bad = {
        DeadLetterError.BAD_JSON: broken,
        DeadLetterError.NULL_VALUE: null,
        DeadLetterError.UNKNOWN_TYPE: unknown,
        DeadLetterError.OVERSIZE: huge,
        DeadLetterError.BAD_HEADERS: bare,
    }
    records = [*good[:1], *one[:2], *bad.values(), *one[3:], *good[1:]]
    before = {(letter.partition, letter.offset) for letter in await dead_letters(kafka)}
    async with assembling(config(kafka)):
        places = await produce(kafka, records)
        await until(lambda: dead_letters(kafka), lambda seen: len(seen) == len(before) + len(bad))
        found = await until(lambda: trajectories(kafka, "bad-"), lambda seen: {"bad-good", "bad-one"} <= set(seen))
    stood = {id(record): place for record, place in zip(records, places, strict=True)}
    found_letters = {letter.error: letter for letter in await dead_letters(kafka)}
    assert set(found_letters) == set(bad)
    for error, record in bad.items():
        letter, place = found_letters[error], stood[id(record)]
        assert (letter.topic, letter.partition, letter.offset) == (EVENTS.name, place.partition, place.offset)
        assert (letter.value is None) == (record.value is None)
        assert letter.value is None or b64decode(letter.value) == record.value
        assert b64decode(letter.key or "") == record.key
        assert [(name, b64decode(value or "")) for name, value in letter.headers] == list(record.headers)
        assert letter.message
    assert found["bad-good"].defects == []
    assert (found["bad-one"].defects, found["bad-one"].unreadable) == ([Defect.BAD_EVENT], [2])


async def test_the_assembler_reports_its_positions(kafka: str) -> None:
    asked: list[Statuses] = []
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(run_assembler(config(kafka), stop=stop, ready=ready.set, watch=asked.append))
    await asyncio.wait_for(ready.wait(), 60)
    whole, begun = session("stand-1", "ask", "answer"), session("stand-2", "ask")[:-1]
    null = replace(session("stand-3", "ask")[1], value=None)
    await produce(kafka, [*whole[:2], *whole, null, *begun], partition=0)

    async def look() -> RunnerStatus:
        return next(status for status in asked[0]() if status.partition == 0)

    status = await until(look, lambda seen: seen.open_trajectories == 2 and seen.position == seen.log_end)
    assert len(asked[0]()) == PARTITIONS
    assert (status.trajectories, status.duplicates, status.late) == (1, 2, 0)
    assert (status.held_events, status.dead_letters) == (len(begun), {DeadLetterError.NULL_VALUE: 1})
    assert status.held_bytes > sum(len(record.value or b"") for record in begun)
    assert status.oldest_open_ms is not None
    assert status.oldest_open_ms <= status.stream_ms
    assert status.commits >= 1
    assert status.commits_failed == 0
    assert 0 < status.last_commit_s <= status.all_commits_s
    stop.set()
    await running
    assert asked[0]() == []


async def test_a_trajectory_continues_the_trace_of_its_first_event(kafka: str) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    records = session("trace-1", "ask", "answer")
    records[1:3] = [
        with_header(record, "traceparent", f"00-{trace}-00f067aa0ba902b{number}-01".encode())
        for number, record in enumerate(records[1:3])
    ]
    async with assembling(config(kafka)):
        await produce(kafka, records)
        await until(lambda: trajectories(kafka, "trace-1"), bool)
    (found,) = [record for record in await everything(kafka, TRAJECTORIES) if record.key == b"trace-1"]
    headers = dict(found.headers)
    assert headers["traceparent"].decode() == continued(f"00-{trace}-00f067aa0ba902b0-01", headers["ce_id"].decode())


async def test_ticks_close_unfinished_trajectories_of_an_idle_partition(kafka: str) -> None:
    async with assembling(config(kafka)):
        await produce(kafka, session("idle-1", "ask", "tool")[:-1])
        found = await until(lambda: trajectories(kafka, "idle-"), bool)
    assert found["idle-1"].defects == [Defect.NO_END]


async def test_a_trajectory_sent_again_after_a_restart_is_a_duplicate(kafka: str) -> None:
    records = session("again-1", "ask", "answer")
    async with assembling(config(kafka)):
        await produce(kafka, records)
        await until(lambda: trajectories(kafka, "again-1"), bool)
    async with assembling(config(kafka)):
        await produce(kafka, records)
        await produce(kafka, session("again-2", "ask", "answer"), partition=None)
        await until(lambda: trajectories(kafka, "again-2"), bool)
    assert set(await trajectories(kafka, "again-")) == {"again-1", "again-2"}


async def test_a_group_member_that_joins_and_leaves_changes_nothing(kafka: str) -> None:
    histories = [session(f"move-{number}", "ask", "tool", "answer") for number in range(60)]
    records = interleaved(histories, random.Random(2))
    async with assembling(config(kafka)):
        await produce(kafka, records[:150])
        async with assembling(replace(config(kafka), member="two")):
            await produce(kafka, records[150:300])
        await produce(kafka, records[300:])
        await until(lambda: trajectories(kafka, "move-"), lambda seen: len(seen) == len(histories))


async def test_a_fenced_assembler_ends_with_the_reason(kafka: str) -> None:
    async def fence() -> None:
        async with assembling(config(kafka)) as task:
            partition = (await produce(kafka, session("fence-1", "ask")[:1]))[0].partition
            async with open_producer(kafka, transactional_id=f"headrace-assemble-{partition}"):
                await produce(kafka, session("fence-2", "ask"), partition=partition)
                await asyncio.wait({task}, timeout=30)

    with pytest.raises(PartitionTakenOver, match=r"another process with the group 'assemble'"):
        await fence()
    async with assembling(config(kafka)):
        await until(lambda: trajectories(kafka, "fence-"), lambda seen: len(seen) == 2)


async def test_topics_whose_partitions_do_not_match_are_refused(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "TRAJECTORIES", STEPS)
    with pytest.raises(TopicsError, match="events has 4 partitions and steps 1"):
        await run_assembler(config(kafka), stop=asyncio.Event(), ready=lambda: None)


async def test_a_start_without_the_extension_module_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembler, "SPEEDUPS", None)
    with pytest.raises(KafkaConnectionError):
        await run_assembler(AssemblerConfig(f"127.0.0.1:{free_port()}"), stop=asyncio.Event(), ready=lambda: None)
    assert "was not built" in caplog.text


async def test_types_unknown_to_the_extension_module_are_reported_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembler, "LAG", NativeLag(types=frozenset({"headrace.memory.written.v1"})))
    with pytest.raises(KafkaConnectionError):
        await run_assembler(AssemblerConfig(f"127.0.0.1:{free_port()}"), stop=asyncio.Event(), ready=lambda: None)
    assert caplog.text.count("it does not know the event type headrace.memory.written.v1") == 1


@pytest.mark.parametrize("name", ["commit_interval_s", "idle_timeout_s", "max_open_bytes"])
def test_a_setting_that_cannot_work_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name.removesuffix("_s")):
        replace(AssemblerConfig("localhost:9092"), **{name: 0})  # type: ignore[arg-type]  # mypy sees every field


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_an_interval_that_never_ends_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="commit_interval_s must be a number above 0"):
        AssemblerConfig("localhost:9092", commit_interval_s=seconds)


async def test_repeated_kill_9_loses_and_duplicates_nothing(kafka: str) -> None:
    chance = random.Random(3)
    histories = [session(f"kill-{number}", *["ask", "tool"] * chance.randrange(1, 5)) for number in range(600)]
    kept = [[record for record in history if chance.random() > 0.002] for history in histories]
    spoiled = [[replace(r, value=None) if chance.random() < 0.002 else r for r in history] for history in kept]
    records = interleaved([history for history in spoiled if history], chance)
    records += chance.sample(records, 50)

    # One part for each worker: a single worker could process everything before it is killed.
    part = len(records) // 6 + 1
    command = [sys.executable, "-c", WORKER, json.dumps(asdict(config(kafka)))]
    in_the_middle = 0
    for start in range(0, len(records), part):
        producing = asyncio.create_task(produce(kafka, records[start : start + part]))
        worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
        before, deadline = len(await trajectories(kafka, "kill-")), time.monotonic() + 60
        await asyncio.sleep(chance.random() * 0.5)
        if (start // part) % 2:  # on a busy machine the worker would never have written anything yet
            while len(await trajectories(kafka, "kill-")) == before and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        worker.kill()
        await worker.wait()
        await producing
        in_the_middle += 0 < len(await trajectories(kafka, "kill-")) < len(histories)
    assert in_the_middle > 1, "the run was over before it was killed: make it longer"
    async with assembling(config(kafka)):
        names = {history[0].key.decode() for history in spoiled if history and history[0].key}
        await until(lambda: trajectories(kafka, "kill-"), lambda seen: set(seen) == names)
    limits = config(kafka).limits

    async def look() -> tuple[dict[int, list[KafkaRecord]], Written]:
        return await folded(kafka), await written(kafka)

    # The last transaction's markers may come a moment after it.
    log, found = await until(look, lambda seen: batch(seen[0], limits)[0] == seen[1])
    _, dead = batch(log, limits)
    oracle = expected(log, limits)
    assert {partition: [value for _, value, _, _ in rows] for partition, rows in found.items()} == oracle.trajectories
    assert set(oracle.letters) == dead
    assert sorted((letter.partition, letter.offset) for letter in await dead_letters(kafka)) == sorted(dead)
