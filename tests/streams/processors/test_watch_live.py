"""The monitors on Faust against a real broker: killed with ``kill -9``, they write what an undisturbed run writes.

trajectories, rewards, rejected, feedback ──observe──▶ observations ──watch──▶ monitors, alerts
                                         killed, again and again
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from headrace.deploy.system.children import Child, end_of
from headrace.deploy.watching.plant import STEP_MS, Plan, planted_steps
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.topics import ALERTS, FEEDBACK, MONITORS, OBSERVATIONS, REJECTED, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode, record_message
from headrace.streams.grouping.group import output_message
from headrace.streams.processors.observe import restore_observe
from headrace.streams.processors.watch import restore_watch
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Operator, Start
from headrace.streams.scoring.score import reward_message
from headrace.streams.watch.planted.attempts import Attempt
from headrace.streams.watch.planted.hacks import HACKS
from headrace.streams.watch.planted.observations import feedback, feedback_id, rejection, reward, trajectory
from tests.streams.test_workers import records, until, worker

pytestmark = pytest.mark.kafka

HACKED = Plan(HACKS["marked-answer"], honest=26, steps=20)
"""All of it in one partition: its versions are observed in order, so its alert does not depend on chance."""
HONEST = Plan(None, honest=12, steps=0)
"""Spread over the partitions, each of which ``observe`` commits by itself."""
READ_BY_OBSERVE = (TRAJECTORIES, REWARDS, REJECTED, FEEDBACK)
WRITTEN_BY_WATCH = (MONITORS, ALERTS)


def planted(plan: Plan) -> Iterator[tuple[Topic, Message]]:
    """What assemble, score, group and people would have said of a run, in order."""
    for step in planted_steps(plan, time.time_ns() // 1_000_000 - (plan.honest + plan.steps) * STEP_MS):
        run, at = step.run, step.time_ms
        for attempt in (replace(each, id=f"{each.id}-{run}") for each in step.attempts):
            yield TRAJECTORIES, about(attempt, derived_id("t", attempt.id), trajectory(attempt, run, at), at)
            yield REWARDS, reward_message(reward(attempt, run, at))
            if attempt.rejected is not None and not attempt.evaluates:
                yield output_message(rejection(attempt, run), at)
            if attempt.feedback and not attempt.evaluates:
                yield FEEDBACK, about(attempt, feedback_id(attempt), feedback(attempt), at)


def about(attempt: Attempt, id: str, record: Record, time_ms: int) -> Message:
    return record_message(record, id=id, key=attempt.id, source="/t", time_ms=time_ms, subject=attempt.id)


def produce(bootstrap: str, messages: Iterable[tuple[Topic, Message]], partition: int | None = None) -> None:
    async def run() -> None:
        async with open_producer(bootstrap) as producer:
            await asyncio.gather(*[await send(producer, topic, message, partition) for topic, message in messages])

    asyncio.run(run())


def written(bootstrap: str, topic: Topic) -> list[KafkaRecord]:
    """The committed records of ``topic``, by partition in the order of the log."""
    return sorted(records(bootstrap, topic, ""), key=lambda each: (each.partition, each.offset))


Told: TypeAlias = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""All of a record but its place in the log."""


def told(found: Iterable[KafkaRecord]) -> list[Told]:
    return [(each.key, each.value, sorted(each.headers), each.timestamp) for each in found]


def undisturbed(operator: Operator, found: Iterable[KafkaRecord]) -> list[Outgoing]:
    """What ``operator`` writes of the records ``found`` in one piece."""
    for each in found:
        operator.process(
            StoredRecord(
                each.topic, each.partition, each.offset, each.timestamp, each.key, each.value, list(each.headers)
            )
        )
    return operator.flush().outgoing


def told_by(made: Iterable[Outgoing], topic: Topic) -> list[Told]:
    return [
        (each.message.key, each.message.value, sorted(each.message.headers), each.timestamp_ms)
        for each in made
        if each.topic is topic
    ]


def of_quarter(quarter: int, messages: list[tuple[Topic, Message]]) -> list[tuple[Topic, Message]]:
    """Of ``messages``, the first to the fourth quarter: 0 to 3."""
    return messages[quarter * len(messages) // 4 : (quarter + 1) * len(messages) // 4]


def test_kill_9_in_the_middle_leaves_what_an_undisturbed_run_writes(kafka: str, tmp_path: Path) -> None:
    """Both in one process, as in a stack, and each in one of its own, which are killed at different times. A quarter of
    the input comes before each of them starts, so that no kill is after the last record, however slow a machine is."""
    hacked, honest = list(planted(HACKED)), list(planted(HONEST))
    to_observe = len(hacked) + len(honest)

    def give(quarter: int) -> None:
        produce(kafka, of_quarter(quarter, hacked), partition=2)
        produce(kafka, of_quarter(quarter, honest))

    def until_killed(running: Child, topic: Topic, beyond: int) -> None:
        until(lambda: len(written(kafka, topic)) > beyond, f"{beyond} records of {topic.name}", running.log)
        running.kill_command()
        assert running.wait(30) != 0

    both, options = ["observe", "watch"], {"batch": 25}
    give(0)
    with worker(kafka, tmp_path, processors=both, **options) as running:
        until_killed(running, MONITORS, 10)
    give(1)
    observed = len(written(kafka, OBSERVATIONS))
    with worker(kafka, tmp_path, processors=both, **options) as running:
        until_killed(running, OBSERVATIONS, observed + 500)
    give(2)
    observed, judged = len(written(kafka, OBSERVATIONS)), len(written(kafka, MONITORS))
    with (
        worker(kafka, tmp_path / "a", processors=both[:1], **options) as observes,
        worker(kafka, tmp_path / "b", processors=both[1:], **options) as watches,
    ):
        until_killed(watches, MONITORS, judged + 5)
        until_killed(observes, OBSERVATIONS, observed + 100)
    give(3)
    with worker(kafka, tmp_path, processors=both, **options) as running:
        until(lambda: len(written(kafka, OBSERVATIONS)) >= to_observe, "all is observed", running.log)
        in_one_piece = undisturbed(restore_watch(Rules(), Start())[0], observations := written(kafka, OBSERVATIONS))
        for topic in WRITTEN_BY_WATCH:
            expected = told_by(in_one_piece, topic)
            until(lambda t=topic, e=expected: len(written(kafka, t)) >= len(e), topic.name, running.log)
        running.terminate()
        assert running.wait(30) == 0, end_of(running.log)

    read = [each for topic in READ_BY_OBSERVE for each in written(kafka, topic)]
    by_record = undisturbed(restore_observe(Rules(), Start())[0], read)
    assert sorted(told(observations)) == sorted(told_by(by_record, OBSERVATIONS))
    for topic in WRITTEN_BY_WATCH:
        assert told(written(kafka, topic)) == told_by(in_one_piece, topic), topic.name
    opened = [decode(each.headers, each.value)[1] for each in written(kafka, ALERTS)]
    assert any(isinstance(each, Alert) and each.kind == "monitor_marked" for each in opened)
