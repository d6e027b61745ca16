"""Histogram as an operator: rewards in, a histogram of each task's rewards out."""

from collections.abc import Mapping
from itertools import islice

from headrace.schemas.ids import derived_id
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.task_rewards import TaskRewards
from headrace.schemas.topics import TASK_REWARDS
from headrace.schemas.wire import Message, record_message
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside, read_state
from headrace.streams.typed_record import typed

FORGET_MS = 7 * 24 * 3_600_000
"""Stream time after which a task without a new reward is forgotten, in milliseconds. It bounds the state."""


def add(histogram: TaskRewards | None, reward: Reward, partition: int, time_ms: int) -> TaskRewards:
    """``histogram`` with ``reward``, a record of ``partition`` with the timestamp ``time_ms``, added."""
    value = reward.total or 0.0
    tenths = list(histogram.tenths) if histogram else [0] * 10
    tenths[min(9, max(0, int(10 * value)))] += 1
    return TaskRewards(
        task_id=reward.task_id or "",
        partition=partition,
        count=(histogram.count if histogram else 0) + 1,
        total=(histogram.total if histogram else 0.0) + value,
        squares=(histogram.squares if histogram else 0.0) + value * value,
        tenths=tenths,
        last_ms=max(time_ms, histogram.last_ms if histogram else 0),
    )


class HistogramOperator(Operator):
    """One partition of ``rewards``."""

    def __init__(self, histograms: Mapping[str, TaskRewards]) -> None:
        """``histograms`` by task, the one with the oldest last reward first."""
        self._histograms = dict(histograms)
        self._effects = Effects()

    def process(self, record: LogRecord) -> None:
        """Add a reward to its task's histogram. A revision is of a reward that has been added."""
        _, reward = typed(record, Reward)
        task = reward.task_id
        if not task or reward.total is None or reward.revision:
            return
        histogram = add(self._histograms.pop(task, None), reward, record.partition, record.timestamp)
        self._histograms[task] = histogram
        self._effects.outgoing.append(Outgoing(TASK_REWARDS, _message(histogram), record.timestamp))
        self._effects.state[task.encode()] = histogram.model_dump_json().encode()
        self._effects.counts["added"] += 1

    @property
    def waits(self) -> bool:
        """Whether any task may be forgotten later."""
        return bool(self._histograms)

    def advance(self, now_ms: int, at_most: int) -> None:
        """Forget tasks whose last reward is too old."""
        oldest = list(islice(self._histograms.items(), at_most))
        for task in [task for task, each in oldest if each.last_ms + FORGET_MS <= now_ms]:
            del self._histograms[task]
            self._effects.state[task.encode()] = None

    def flush(self) -> Effects:
        """Histograms and state."""
        effects, self._effects = self._effects, Effects()
        return effects


def restore_histogram(rules: Rules, start: Start) -> tuple[HistogramOperator, list[SetAside]]:
    """The operator of a partition of ``rewards``, and entries of its state that cannot be read."""
    stored, aside = read_state(start.stored, lambda key, value: (key.decode(), TaskRewards.model_validate_json(value)))
    return HistogramOperator(dict(stored.values())), aside


def _message(histogram: TaskRewards) -> Message:
    task, partition = histogram.task_id, histogram.partition
    return record_message(
        histogram,
        id=derived_id(TaskRewards.TYPE, task, partition, histogram.count, histogram.last_ms),
        key=f"{partition}:{task}",
        source="/streams/histogram",
        time_ms=histogram.last_ms,
        subject=task,
    )
