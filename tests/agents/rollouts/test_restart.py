"""A killed sampler continues where it was: no member twice, groups complete, whatever moment it is killed at."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.agents.outbox import SPOOL_AFTER_S
from headrace.agents.rollouts.journal import LABEL, Place, place_in
from headrace.agents.rollouts.tasks import TASKS_PER_SEED
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import EndStatus, ModelCalled, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message, decode, encode
from tests.agents.rollouts.toy import GROUP_SIZE, TURNS, toy_engine
from tests.conftest import RunningKafka

pytestmark = pytest.mark.kafka

TASKS = 8
FIRST = TASKS_PER_SEED
"""Number of the first task."""
MEMBERS = TASKS * GROUP_SIZE


@dataclass(slots=True)
class Logged:
    """A trajectory in the log."""

    numbers: list[int] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def without_repetitions(self) -> "Logged":
        first = sorted({self.ids.index(each) for each in self.ids})
        return Logged(
            [self.numbers[at] for at in first], [self.events[at] for at in first], [self.ids[at] for at in first]
        )

    @property
    def started(self) -> TrajectoryStarted:
        assert isinstance(self.events[0], TrajectoryStarted)
        return self.events[0]

    @property
    def place(self) -> Place:
        place = place_in(self.started.task)
        assert place is not None
        return place

    @property
    def status(self) -> EndStatus | None:
        return self.events[-1].status if isinstance(self.events[-1], TrajectoryEnded) else None


async def logged(bootstrap: str, run: str) -> dict[str, Logged]:
    found: dict[str, Logged] = defaultdict(Logged)
    async for record in read_to_end(bootstrap, EVENTS):
        envelope, event = decode(record.headers, record.value)
        assert envelope.sequence is not None
        found[envelope.subject].numbers.append(envelope.sequence)
        found[envelope.subject].events.append(event)
        found[envelope.subject].ids.append(envelope.id)
    return {name: each for name, each in found.items() if each.started.run == run}


async def start_sampler(bootstrap: str, url: str, run: str, mode: str) -> Process:
    arguments = ("-m", "tests.agents.rollouts.toy", bootstrap, url, run, mode, str(TASKS))
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=PIPE)


async def killed_after(bootstrap: str, url: str, run: str, mode: str, ended: int) -> None:
    """Run a sampler, and kill it with SIGKILL when so many attempts have ended and others are running."""
    process = await start_sampler(bootstrap, url, run, mode)
    try:
        async with asyncio.timeout(60):
            while True:
                statuses = [each.status for each in (await logged(bootstrap, run)).values()]
                if statuses.count(EndStatus.COMPLETED) >= ended and None in statuses:
                    break
                assert process.returncode is None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def completed(bootstrap: str, url: str, run: str, mode: str) -> dict[str, Any]:
    process = await start_sampler(bootstrap, url, run, mode)
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0
    report: dict[str, Any] = json.loads(output)
    return report


def assert_every_member_once(found: dict[str, Logged]) -> None:
    members: dict[str, list[int]] = defaultdict(list)
    tasks: dict[str, set[str]] = defaultdict(set)
    for each in found.values():
        assert each.numbers == list(range(len(each.numbers))), "events are repeated, or missing"
        assert isinstance(each.events[-1], TrajectoryEnded)
        assert each.started.group_id is not None
        tasks[each.started.task_id].add(each.started.group_id)
        if each.status is not EndStatus.RESTARTED:
            assert each.status is EndStatus.COMPLETED
            assert sum(isinstance(event, ModelCalled) for event in each.events) == TURNS
            members[each.started.group_id].append(each.place.member)
    assert all(sorted(numbers) == list(range(GROUP_SIZE)) for numbers in members.values()), members
    assert len(tasks) == len(members) == TASKS, "a task was attempted by two groups, or by none"
    assert all(len(groups) == 1 for groups in tasks.values())


async def test_a_killed_sampler_completes_its_groups_and_continues_its_attempts(kafka: str) -> None:
    async with toy_engine(0.15) as (engine, url):
        for ended in (5, 14):
            await killed_after(kafka, url, "resumed", "resume", ended)
        before = await logged(kafka, "resumed")
        left = {name for name, each in before.items() if each.status is None}
        report = await completed(kafka, url, "resumed", "resume")
        after = await logged(kafka, "resumed")
    assert_every_member_once(after)
    assert left
    assert len(after) == MEMBERS, "an attempt was made again"
    assert {each.status for each in after.values()} == {EndStatus.COMPLETED}
    for name, each in before.items():
        assert after[name].events[: len(each.events)] == each.events, "what the log had was changed"
    assert report["restored"]["resumed"] == len(left)
    assert report["restored"]["kept"] == len(before) - len(left)
    assert report["is_exhausted"]
    # Only what was in flight at a kill, or not sent yet, is asked again.
    assert MEMBERS * TURNS <= engine.answers < 1.5 * MEMBERS * TURNS


async def test_an_attempt_that_cannot_be_continued_is_labelled_and_replaced(kafka: str) -> None:
    async with toy_engine(0.15) as (_, url):
        await killed_after(kafka, url, "replaced", "replace", 6)
        before = await logged(kafka, "replaced")
        left = {name: each for name, each in before.items() if each.status is None}
        report = await completed(kafka, url, "replaced", "replace")
        after = await logged(kafka, "replaced")
    assert_every_member_once(after)
    restarted = {name for name, each in after.items() if each.status is EndStatus.RESTARTED}
    assert restarted == set(left)
    assert len(after) == MEMBERS + len(left)
    assert report["restored"]["replaced"] == len(left)
    assert report["attempts"] == {"made": MEMBERS - report["restored"]["kept"]}


async def test_a_sampler_that_had_finished_makes_nothing_again(kafka: str) -> None:
    async with toy_engine(0.0) as (engine, url):
        first = await completed(kafka, url, "finished", "resume")
        answers = engine.answers
        again = await completed(kafka, url, "finished", "resume")
    assert (first["groups"], first["attempts"]) == (TASKS, {"made": MEMBERS})
    assert (again["groups"], again["attempts"], again["restored"]) == (0, {}, {"kept": MEMBERS})
    assert engine.answers == answers == MEMBERS * TURNS


def foreign_start(name: str, *, task: str, group_size: int = GROUP_SIZE, age_s: float = 3600, **label: Any) -> Message:
    place = {"sampler": "sampler", "number": FIRST, "epoch": 0, "member": 0, "level": None, "curriculum": None}
    fact = TrajectoryStarted(
        task_id=task, group_id=name, group_size=group_size, agent="toy", run="odd", task={LABEL: place | label}
    )
    time_ms = time.time_ns() // 1_000_000 - round(age_s * 1000)
    return encode(fact, key=name, envelope=Envelope(f"{name}/0", fact.TYPE, "test", time_ms, name, 0))


async def test_odd_starts_in_the_log_keep_no_sampler_from_starting(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        for message in (
            foreign_start("no-such-number", task="gone", number=10**40),
            foreign_start("no-such-level", task="gone", level=50),
            foreign_start("task-has-changed", task="renamed"),
            foreign_start("of-another-clock", task="renamed", age_s=-(10**6)),
            foreign_start("huge", task="renamed", age_s=0, group_size=2**31 - 1),
            foreign_start("no-such-member", task="renamed", age_s=0, member=GROUP_SIZE),
            foreign_start("no-number", task="renamed", age_s=0, number=True),
        ):
            await (await send(producer, EVENTS, message))
    async with toy_engine(0.0) as (_, url):
        report = await completed(kafka, url, "odd", "resume")
    assert report["restored"] == {"abandoned": 4}
    assert report["groups"] == TASKS - 1, "somebody has attempted the first task"


async def test_what_a_killed_sampler_left_on_disk_while_kafka_was_away_is_not_made_again(
    running_kafka: RunningKafka,
) -> None:
    kafka = running_kafka.bootstrap
    async with toy_engine(0.3) as (_, url):
        process = await start_sampler(kafka, url, "spooled", "resume")
        try:
            async with asyncio.timeout(60):
                while sum(len(each.events) for each in (await logged(kafka, "spooled")).values()) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            running_kafka.freeze()
            await asyncio.sleep(SPOOL_AFTER_S + 1)
        finally:
            process.kill()
            running_kafka.freeze(False)
            await process.wait()
        await running_kafka.stays_listed()
        before = await logged(kafka, "spooled")
        report = await completed(kafka, url, "spooled", "resume")
        after = await logged(kafka, "spooled")
    assert report["restored"].get("kept", 0) > len(before), "attempts that had ended were on disk only"
    # What was in flight is on disk, too, and is sent twice, with the same ids: the assembler drops the second.
    assert_every_member_once({name: each.without_repetitions() for name, each in after.items()})
    assert len(after) == MEMBERS
