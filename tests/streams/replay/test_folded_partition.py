"""Ranges of ``events`` on a real broker, folded in this process and in others."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import IO

import msgspec
import psutil
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from headrace.schemas.bounds import MAX_TIME_MS
from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.kafka.reading import RangeExpired
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.side_topics import OffsetRange
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, TRAJECTORIES
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.replay.fold_process import LENGTH_BYTES, FoldTask, RangeToFold
from headrace.streams.replay.fold_processes import FoldedPartitions, FoldFailed, fold_partitions
from headrace.streams.replay.folded_partition import fold_span, is_full
from headrace.streams.replay.input import find_spans
from headrace.streams.replay.portion_codec import to_bytes
from headrace.streams.replay.sink import ReplayRefused
from headrace.streams.replay.trajectories import Portion, Rederivation
from tests.streams.assembly.test_assembler import produce
from tests.streams.assembly.test_unreadable_batch import BOMB, inflating
from tests.streams.builders import T0, log, session

LIMITS = FoldLimits()
FOLD_PROCESS = (sys.executable, "-m", "headrace.streams.replay.fold_process")


async def span_of(kafka: str, partition: int) -> OffsetRange:
    """All of a partition of ``events``."""
    return (await find_spans(kafka, EVENTS, None, None))[partition]


async def folded(kafka: str, span: OffsetRange) -> list[Portion]:
    return [portion async for portion in fold_span(kafka, span, LIMITS)]


def items(portions: Sequence[Portion]) -> list[Outgoing]:
    return [item for portion in portions for item in portion.items if isinstance(item, Outgoing)]


def names(portions: Sequence[Portion]) -> list[str]:
    return [item.message.key.decode() for item in items(portions) if item.topic is TRAJECTORIES]


def test_lists_are_folded_as_single_records_are() -> None:
    records = log([record for name in ("a", "b") for record in session(name, "ask", "tool", "answer", time_ms=T0)])
    whole, single = (Rederivation(3, LIMITS, begins_log=True) for _ in range(2))
    list(whole.take(records))
    for record in records:
        list(single.take([record]))
    assert whole.finish() == single.finish()


def test_the_first_portion_says_when_the_range_begins() -> None:
    fold = Rederivation(3, LIMITS, begins_log=False)
    records: list[StoredRecord] = log([*session("a", "ask", time_ms=T0)])
    list(fold.take(records[:2]))
    first = fold.portion()
    list(fold.take(records[2:]))
    second = fold.finish()
    assert (first.begin_ms, first.records, first.is_last) == (records[0].timestamp, 2, False)
    assert (second.begin_ms, second.is_last) == (None, True)
    assert first.end_ms == records[1].timestamp


def test_only_the_first_portion_has_the_beginning_however_small_the_lists_are() -> None:
    fold = Rederivation(3, LIMITS, begins_log=True)
    records: list[StoredRecord] = log([*session("a", "ask", "tool", "answer", time_ms=T0)])
    begins = []
    for record in records:
        list(fold.take([record]))
        begins.append(fold.portion().begin_ms)
    assert begins == [records[0].timestamp, *[None] * (len(records) - 1)]


def test_a_time_beyond_all_bounds_does_not_end_the_range() -> None:
    fold = Rederivation(3, LIMITS, begins_log=True)
    records = log([*session("a", "ask", time_ms=T0)])
    list(fold.take([*records, replace(records[-1], timestamp=MAX_TIME_MS)]))
    assert fold.finish().end_ms == records[-1].timestamp


def test_a_portion_ends_with_its_bytes() -> None:
    fold = Rederivation(3, LIMITS, begins_log=True)
    text = {"task": {"question": "x" * 700_000}}
    records = log([each for n in range(9) for each in session(f"s{n}", "ask", "answer", start=text, time_ms=T0)])
    portions = [fold.portion() for _ in fold.take(records) if is_full(fold)]
    portions.append(fold.finish())
    assert sum(len(portion.items) for portion in portions) == 9
    assert max(sum(len(item.message.value) for item in items([portion])) for portion in portions) < 3 * 1024 * 1024
    assert len(portions) >= 3


@pytest.mark.kafka
async def test_a_batch_that_cannot_be_decompressed_is_skipped_with_the_dead_letter_that_live_writes(kafka: str) -> None:
    await produce(kafka, session("before", "ask", "answer"), partition=0)
    offset = await inflating(kafka, value=BOMB)
    await produce(kafka, session("behind", "ask", "answer"), partition=0)
    found = await folded(kafka, await span_of(kafka, 0))
    assert names(found) == ["before", "behind"]
    (letter,) = [
        DeadLetter.model_validate_json(each.message.value) for each in items(found) if each.topic is DEAD_LETTERS
    ]
    assert (letter.offset, letter.error) == (offset, DeadLetterError.OVERSIZE)
    assert f"offsets {offset} to {offset}" in letter.message


@pytest.mark.kafka
async def test_a_span_ends_before_its_stop(kafka: str) -> None:
    begin = (await span_of(kafka, 1)).stop
    await produce(kafka, [*session("in", "ask"), *session("out", "ask")], partition=1)
    length = len(session("in", "ask"))
    found = await folded(kafka, OffsetRange(partition=1, start=begin, stop=begin + length, begins_log=True))
    assert names(found) == ["in"]
    assert [portion.is_last for portion in found] == [False] * (len(found) - 1) + [True]
    assert sum(portion.records for portion in found) == length


@pytest.mark.kafka
async def test_processes_fold_what_this_process_folds(kafka: str) -> None:
    for partition in range(4):
        made = [record for number in range(300) for record in session(f"p{partition}-{number}", "ask", "answer")]
        await produce(kafka, made, partition=partition)
    spans = await find_spans(kafka, EVENTS, None, None)
    expected = {number: items(await folded(kafka, span)) for number, span in spans.items()}
    received: dict[int, list[Portion]] = {number: [] for number in spans}
    async with fold_partitions(kafka, spans, LIMITS) as partitions:
        left = set(spans)
        while left:
            for portion in await partitions.read(sorted(left)):
                received[portion.partition].append(portion)
                if portion.is_last:
                    left.discard(portion.partition)
    assert {number: items(portions) for number, portions in received.items()} == expected
    assert all(len(portions) > 1 for portions in received.values())


@pytest.mark.kafka
async def test_a_process_that_is_killed_ends_the_replay_with_a_message(kafka: str) -> None:
    span = await span_of(kafka, 0)
    # It waits for records that are never written.
    endless = span.model_copy(update={"stop": span.stop + 1_000_000})
    before = set(psutil.Process().children())
    async with fold_partitions(kafka, {0: endless}, LIMITS) as partitions:
        (child,) = set(psutil.Process().children()) - before
        await asyncio.sleep(1)
        child.kill()
        with pytest.raises(FoldFailed, match=r"folds events\[0\] ended with status -9"):
            await anext(forever(partitions))


@pytest.mark.kafka
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_process_that_is_stopped_while_it_writes_a_portion_then_writes_the_rest(kafka: str, unbuffered: str) -> None:
    text = {"task": {"question": "x" * 500_000}}
    made = [each for number in range(8) for each in session(f"large{number}{unbuffered}", "ask", start=text)]
    begin = asyncio.run(span_of(kafka, 3)).stop
    asyncio.run(produce(kafka, made, partition=3))
    span = replace_start(asyncio.run(span_of(kafka, 3)), begin)
    frames = [to_bytes(portion) for portion in asyncio.run(folded(kafka, span))]
    task = FoldTask(kafka, LIMITS, [RangeToFold(3, span.start, span.stop, span.begins_log)])
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(FOLD_PROCESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n" + b"3\n" * len(frames))
        process.stdin.flush()
        for frame in frames:
            while unread(process.stdout) < min(len(frame), 32 * 1024):
                time.sleep(0.01)
            time.sleep(0.2)  # now the pipe is full, where the frame is larger
            process.send_signal(signal.SIGSTOP)
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
            process.send_signal(signal.SIGCONT)
            length = int.from_bytes(process.stdout.read(LENGTH_BYTES))
            assert process.stdout.read(length) == frame
        process.stdin.close()
    assert max(map(len, frames)) > 2 * 1024 * 1024


def unread(pipe: IO[bytes]) -> int:
    """Number of bytes in ``pipe``."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


@pytest.mark.kafka
async def test_records_that_retention_deleted_meanwhile_are_named(kafka: str) -> None:
    begin = (await span_of(kafka, 2)).stop
    await produce(kafka, session("gone", "ask"), partition=2)
    span = replace_start(await span_of(kafka, 2), begin)
    async with open_admin(kafka) as admin:
        await admin.delete_records({TopicPartition(EVENTS.name, 2): RecordsToDelete(before_offset=begin + 2)})
    with pytest.raises(RangeExpired, match=rf"events\[2\] no longer has offset {begin}.*--from"):
        await folded(kafka, span)
    async with fold_partitions(kafka, {2: span}, LIMITS) as partitions:
        with pytest.raises(ReplayRefused, match="retention deleted it"):
            await partitions.read([2])


async def forever(partitions: FoldedPartitions) -> AsyncIterator[None]:
    """Reads partition 0 for as long as it can be read."""
    while True:
        await partitions.read([0])
    yield


def replace_start(span: OffsetRange, start: int) -> OffsetRange:
    return span.model_copy(update={"start": start})


@pytest.mark.parametrize("tasks", [0, 1])
def test_a_fold_process_ends_with_its_input(tasks: int) -> None:
    limits = replace(LIMITS, idle_timeout_ms=1000)
    task = FoldTask("127.0.0.1:1", limits, [RangeToFold(0, 0, 10, True)])  # no broker listens there
    given = (msgspec.json.encode(task) + b"\n0\n") * tasks
    done = subprocess.run(FOLD_PROCESS, input=given, capture_output=True, timeout=60, check=True)
    assert done.stdout == b""
