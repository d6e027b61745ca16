"""The runtime folds records into operators and commits their effects, whatever the processor is."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from headrace.schemas.envelope import from_headers
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import ALERTS, REWARDS, STEPS, TRAINING, Topic
from headrace.schemas.wire import decode
from headrace.streams.alerts import alert_message
from headrace.streams.drive import drive
from headrace.streams.raw import LogRecord, Outgoing, StoredRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Effects, Operator, Processor, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.runtime.state import SetAside, read_state
from headrace.streams.scoring.score import reward_message
from headrace.streams.topology import TOPOLOGY
from headrace.streams.typed_record import typed
from tests.streams.attempts import START_MS, rewarded
from tests.streams.test_drive import group_of

HOUR_MS = 3_600_000


class TaskHistogram(Operator):
    """How many rewards each task had, reported every hour of stream time, some tasks at a time."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = Counter(counts)
        self.due: set[str] = set()
        self.reported_ms = 0
        self.effects = Effects()

    def process(self, record: LogRecord) -> None:
        _, reward = typed(record, Reward)
        if reward.task_id == "broken":
            raise ValueError("a fault of ours")
        task = reward.task_id or "none"
        self.counts[task] += 1
        self.effects.state[task.encode()] = json.dumps(self.counts[task]).encode()
        self.effects.counts["counted"] += 1

    @property
    def waits(self) -> bool:
        return bool(self.counts)

    def is_due(self, now_ms: int) -> bool:
        return bool(self.due) or now_ms >= self.reported_ms + HOUR_MS

    def advance(self, now_ms: int, at_most: int) -> None:
        if now_ms >= self.reported_ms + HOUR_MS:
            self.reported_ms, self.due = now_ms, set(self.counts)
        for task in sorted(self.due)[:at_most]:
            self.due.discard(task)
            text = f"{self.counts[task]} rewards"
            message = alert_message(
                "histogram", text, source="/t", subject=task, time_ms=now_ms, about=(task, now_ms), details={}
            )
            self.effects.outgoing.append(Outgoing(ALERTS, message, now_ms))

    def flush(self) -> Effects:
        effects, self.effects = self.effects, Effects()
        return effects


def restore(rules: Rules, start: Start) -> tuple[TaskHistogram, list[SetAside]]:
    stored, aside = read_state(start.stored, lambda key, value: (key.decode(), int(json.loads(value))))
    return TaskHistogram(dict(stored.values())), aside


def graph(rewards: Reward) -> Alert:
    raise AssertionError("the histogram has no function at its heart")


HISTOGRAM = Processor(
    "histogram", reads=(REWARDS,), run=graph, writes=(ALERTS,), about="Rewards by task.", restore=restore
)


@pytest.mark.parametrize(
    ("reads", "named"), [((REWARDS, STEPS), "reads rewards with 4, steps with 1: "), ((), "reads no topic: ")]
)
def test_a_processor_over_topics_with_different_partitions_cannot_be_declared(
    reads: tuple[Topic, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=f"'histogram' {named}.*same number of partitions"):
        replace(HISTOGRAM, reads=reads)
    assert replace(HISTOGRAM, reads=(REWARDS, TRAINING)).reads == (REWARDS, TRAINING)


def came(offset: int, task: str, partition: int = 0, **fields: object) -> StoredRecord:
    reward = rewarded(f"{task}-{offset}").model_copy(update={"task_id": task})
    message = reward_message(reward)
    record = {"timestamp": START_MS, "value": message.value} | fields
    return StoredRecord(REWARDS.name, partition, offset, key=message.key, headers=message.headers, **record)  # type: ignore[arg-type]


def at_work(*, at_most: int = 500) -> tuple[Runtime, TaskHistogram, MemoryPartition]:
    runtime, operator, partition = Runtime(HISTOGRAM.source, at_most=at_most), TaskHistogram({}), MemoryPartition()
    runtime.assign(0, operator, partition)
    return runtime, operator, partition


def payloads(outgoing: Iterable[Outgoing]) -> list[object]:
    return [decode(each.message.headers, each.message.value)[1] for each in outgoing]


def test_effects_are_committed_with_the_next_offset() -> None:
    runtime, _, partition = at_work()
    run_to_end(runtime.process([came(4, "a"), came(5, "b"), came(7, "a")]))
    assert partition.offsets == {"rewards": 8}
    assert partition.state == {b"b": b"1", b"a": b"2"}
    assert (runtime.counts, runtime.read) == ({"counted": 3}, {"rewards": 3})


def test_an_unreadable_or_raising_record_is_a_dead_letter_and_the_partition_continues() -> None:
    runtime, operator, partition = at_work()
    records = [came(0, "a", value=b"{"), came(1, "broken"), came(2, "a", timestamp=-1), came(3, "a")]
    run_to_end(runtime.process(records))
    made = payloads(partition.written())
    dead_letters = [each for each in made if isinstance(each, DeadLetter)]
    assert [(each.offset, each.error) for each in dead_letters] == [
        (0, DeadLetterError.BAD_JSON),
        (1, DeadLetterError.RAISED),
        (2, DeadLetterError.BAD_TIME),
    ]
    assert [each.kind for each in made if isinstance(each, Alert)] == ["record_raised"]
    assert (operator.counts, partition.offsets) == ({"a": 1}, {"rewards": 4})


def test_an_operator_that_ends_as_a_program_does_costs_only_its_record() -> None:
    runtime, operator, partition = at_work()

    def leaves(record: LogRecord) -> None:
        if record.offset == 1:
            raise SystemExit(0)
        TaskHistogram.process(operator, record)

    with patch.object(operator, "process", leaves):
        run_to_end(runtime.process([came(0, "a"), came(1, "a"), came(2, "a")]))
    errors = [each.error for each in payloads(partition.written()) if isinstance(each, DeadLetter)]
    assert errors == [DeadLetterError.RAISED]
    assert (operator.counts, partition.offsets) == ({"a": 2}, {"rewards": 3})


def test_a_strict_runtime_raises_what_an_operator_raises() -> None:
    runtime = Runtime(HISTOGRAM.source, strict=True)
    runtime.assign(0, TaskHistogram({}), MemoryPartition())
    with pytest.raises(ValueError, match="a fault of ours"):
        run_to_end(runtime.process([came(0, "broken")]))


def test_work_due_by_stream_time_is_committed_in_portions() -> None:
    runtime, _, partition = at_work(at_most=2)
    run_to_end(runtime.process([came(number, task) for number, task in enumerate("abcde")]))
    commits = []

    async def counted(offsets: Mapping[str, int], state: object, outgoing: Iterable[Outgoing]) -> None:
        commits.append((dict(offsets), [from_headers(each.message.headers).subject for each in outgoing]))

    partition.commit = counted  # type: ignore[method-assign, assignment]
    run_to_end(runtime.advance({0: START_MS, 1: START_MS}))
    assert commits == [({}, ["a", "b"]), ({}, ["c", "d"]), ({}, ["e"])]
    run_to_end(runtime.advance({0: START_MS + HOUR_MS - 1}))
    assert len(commits) == 3, "nothing is due, and nothing is committed"


def test_the_hook_completes_the_fold_before_it_is_flushed() -> None:
    class Doubling:
        async def complete(self, operators: Mapping[int, TaskHistogram]) -> None:
            for operator in operators.values():
                operator.effects.state[b"hooked"] = json.dumps(sum(operator.counts.values())).encode()

    runtime, partition = Runtime(HISTOGRAM.source, Doubling()), MemoryPartition()
    runtime.assign(3, TaskHistogram({}), partition)
    run_to_end(runtime.process([came(0, "a", partition=3), came(1, "b", partition=3)]))
    assert partition.state[b"hooked"] == b"2"


async def test_a_commit_that_fails_is_raised_once_all_partitions_are_done() -> None:
    runtime, good = Runtime(HISTOGRAM.source), MemoryPartition()

    class Failing(MemoryPartition):
        async def commit(self, *_: object) -> None:
            await asyncio.sleep(0)
            raise OSError("broker away")

    class Slow(MemoryPartition):
        async def commit(
            self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
        ) -> None:
            await asyncio.sleep(0.05)
            await good.commit(offsets, state, outgoing)

    runtime.assign(0, TaskHistogram({}), Failing())
    runtime.assign(1, TaskHistogram({}), Slow())
    with pytest.raises(OSError, match="broker away"):
        await runtime.process([came(0, "a"), came(0, "a", partition=1)])
    assert good.offsets == {"rewards": 1}


def test_an_operator_resumes_from_its_state() -> None:
    runtime, _, partition = at_work()
    run_to_end(runtime.process([came(0, "a"), came(1, "a")]))
    stored = {key: StoredRecord("state", 0, 0, 0, key, value, ()) for key, value in partition.state.items()}
    stored[b"odd"] = StoredRecord("state", 0, 1, 0, b"odd", b"{", ())
    operator, aside = HISTOGRAM.restore(Rules(), Start(stored))
    assert isinstance(operator, TaskHistogram)
    assert (operator.counts, [each.record.key for each in aside]) == ({"a": 2}, [b"odd"])


def test_a_users_processor_is_driven_with_the_others() -> None:
    records = drive((*TOPOLOGY, HISTOGRAM), group_of(1.0, 0.0), until_ms=START_MS * 2)
    assert [each.message for each in records["alerts"] if isinstance(each, Alert)] == ["2 rewards"]


def test_work_that_needs_an_event_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="waited for something"):
        run_to_end(asyncio.sleep(0))
