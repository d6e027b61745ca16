"""Blind rehearsals on a real broker: one of several causes begins, and a reader who is not told which decides it.

    a cause ──▶ oncall or a monitor ──▶ the alert ──▶ the commands of its runbook ──▶ the reader's decision

The reader is a function of the alert and of what the commands print. It takes the steps of the runbook's page, and
nothing else, so that a page by which two causes cannot be told apart fails here.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest
from aiokafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.deploy.oncall.runbook import runbook
from headrace.deploy.watching.plant import Plan, alarms, planted_steps
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.step import Step
from headrace.schemas.topics import ALERTS, REWARDS, STEPS
from headrace.schemas.wire import record_message
from headrace.streams.oncall.oncall import OnCallConfig, run_oncall
from headrace.streams.processors.watch import episode_message
from headrace.streams.scoring.score import reward_message
from headrace.streams.watch.planted.attempts import Attempt
from headrace.streams.watch.planted.drifts import DRIFTS
from headrace.streams.watch.planted.hacks import Hack
from headrace.streams.watch.planted.observations import reward
from tests.deploy.oncall.test_rehearsals import LIMITS, alerts_of, honest_step_of, in_runbook, said, until

pytestmark = [pytest.mark.kafka, pytest.mark.nightly]

GROUPS = ("one", "two", "three")
"""Consumer groups; those of each rehearsal have a prefix of their own."""
BEHIND_S = 300.0
"""As in the runbook: the limit of the alert."""


class Positions:
    """Where consumer groups are in the partitions of ``rewards``, and how records come in."""

    def __init__(self, kafka: str, prefix: str) -> None:
        self._kafka = kafka
        self._prefix = prefix
        self._at: dict[str, list[int]] = {}

    async def come(self, count: int, *, old: bool = False) -> None:
        """``count`` records for each partition; ``old``: of twenty minutes ago."""
        at_ms = round(1000 * (time.time() - (1200 if old else 0)))
        message = reward_message(reward(honest_step_of(0), "lagging", at_ms))
        async with open_producer(self._kafka) as producer:
            for partition in range(REWARDS.partitions):
                sent = [
                    await producer.send(
                        REWARDS.name, message.value, message.key, partition, timestamp_ms=at_ms, headers=message.headers
                    )
                    for _ in range(count)
                ]
                await asyncio.gather(*sent)

    async def ends(self) -> list[int]:
        async with open_consumer(self._kafka) as consumer:
            found = await consumer.end_offsets([*map(place, range(REWARDS.partitions))])
        return [found[place(partition)] for partition in range(REWARDS.partitions)]

    async def commit(self, group: str, offsets: list[int]) -> None:
        self._at[group] = offsets
        async with open_consumer(self._kafka, group=f"{self._prefix}-{group}") as consumer:
            consumer.assign([place(partition) for partition in range(REWARDS.partitions)])
            await consumer.commit({place(partition): offset for partition, offset in enumerate(offsets)})

    def forget(self) -> None:
        """Delete the groups."""
        client = AdminClient({"bootstrap.servers": self._kafka})
        for deleted in client.delete_consumer_groups([f"{self._prefix}-{group}" for group in self._at]).values():
            deleted.result()

    async def move(self, group: str, *by: int) -> None:
        """The group processes ``by`` records of each partition."""
        await self.commit(group, [at + more for at, more in zip(self._at[group], by, strict=True)])


def place(partition: int) -> TopicPartition:
    return TopicPartition(REWARDS.name, partition)


async def dead(positions: Positions) -> None:
    """The only process of a group is gone; more comes in."""
    await positions.come(1)


async def stuck(positions: Positions) -> None:
    """A group hangs at a record of partition 2, and processes the others."""
    await positions.come(1)
    await positions.move(GROUPS[0], 1, 1, 0, 1)


async def overloaded(positions: Positions) -> None:
    """A group processes all the time, and more comes in than it can process."""
    await positions.come(3)
    await positions.move(GROUPS[0], 1, 1, 1, 1)


async def broker(positions: Positions) -> None:
    """Nothing is served as it should be: every group gets a record now and then."""
    await positions.come(2)
    for group in GROUPS:
        await positions.move(group, 1, 0, 0, 1)


CAUSES: Mapping[str, tuple[Callable[[Positions], Awaitable[None]], int]] = {
    "its process is dead, or hangs": (dead, 1),
    "a record, or the process that has it": (stuck, 1),
    "more comes in than it can process": (overloaded, 1),
    "the broker or the machine": (broker, len(GROUPS)),
}
"""What the page calls a cause → what happens again and again, and how many groups are behind."""


@asynccontextmanager
async def happening(
    positions: Positions, cause: Callable[[Positions], Awaitable[None]], groups: int
) -> AsyncIterator[None]:
    """A ``with`` block in which the first ``groups`` groups are behind for ``cause``, and the others are not."""
    begun = await positions.ends()
    await positions.come(400, old=True)
    behind = GROUPS[:groups]
    for group in GROUPS:
        await positions.commit(group, begun if group in behind else await positions.ends())

    async def again() -> None:
        while True:
            await cause(positions)
            for group in GROUPS[groups:]:
                await positions.commit(group, await positions.ends())
            await asyncio.sleep(0.2)

    going_on = asyncio.create_task(again())
    try:
        yield
    finally:
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
        await asyncio.to_thread(positions.forget)  # they would be behind in the next rehearsal


async def opened(kafka: str) -> list[Alert]:
    alerts = await alerts_of(kafka, "oncall_lag")
    return [each for each in alerts if each.episode and each.episode.state is EpisodeState.OPENED]


async def alerted(kafka: str) -> Alert:
    """Run ``oncall`` until it raises another alert about lag."""
    known = len(await opened(kafka))
    stop, ready = asyncio.Event(), asyncio.Event()
    config = OnCallConfig(kafka, every_s=0.3, ledger_every_s=1.0, limits=LIMITS)
    running = asyncio.create_task(run_oncall(config, stop=stop, ready=ready.set))

    async def told() -> bool:
        return len(await opened(kafka)) > known or running.done()

    try:
        await until(told)
    finally:
        stop.set()
        await running
    return (await opened(kafka))[known]


async def behind(kafka: str, command: str) -> dict[str, dict[int, int]]:
    """What the table of the command says of groups that are behind: group → partition → position."""
    found: dict[str, dict[int, int]] = {}
    for line in (await asyncio.to_thread(said, kafka, command)).splitlines()[1:]:
        group, _, partition, _, seconds, position = line.split()
        if float(seconds) > BEHIND_S:
            found.setdefault(group, {})[int(partition)] = int(position)
    return found


async def decision(kafka: str, alert: Alert) -> str:
    """The steps 1 to 4 of the page, by a reader who knows the alert and what the command prints twice."""
    command = in_runbook(alert, "headrace topology --lag")
    before = await behind(kafka, command)
    if len(before) > 1:
        return "the broker or the machine"
    await asyncio.sleep(10)
    after = await behind(kafka, command)
    ((group, then),) = before.items()
    assert group == alert.details["subject"]
    moves = [after[group].get(partition, position + 1) > position for partition, position in then.items()]
    if not any(moves):
        return "its process is dead, or hangs"
    return "more comes in than it can process" if all(moves) else "a record, or the process that has it"


@pytest.mark.parametrize("number", range(len(CAUSES)))
async def test_why_a_group_is_behind_is_decided_by_the_page(kafka: str, number: int) -> None:
    called, (cause, groups) = list(CAUSES.items())[number]
    async with happening(Positions(kafka, f"headrace-{number}"), cause, groups):
        alert = await alerted(kafka)
        assert alert.runbook == "lag"
        decided = await decision(kafka, alert)
    assert decided == called
    page = runbook("lag").replace("\n", " ")
    assert called in page


def _other_tasks(random: Random, attempt: Attempt) -> None:
    DRIFTS["worse-policy"].plays(random, attempt)
    DRIFTS["longer-prompts"].plays(random, attempt)


def _strict_judge(random: Random, attempt: Attempt) -> None:
    attempt.judged *= 0.3


def _broken_check(random: Random, attempt: Attempt) -> None:
    attempt.solved = False


DROPS: Mapping[str, tuple[Hack, bool]] = {
    "training": (Hack("blind-1", "A step went wrong.", DRIFTS["worse-policy"].plays, False), True),
    "other tasks": (Hack("blind-2", "Harder tasks with longer prompts.", _other_tasks, False), False),
    "the judge": (Hack("blind-3", "The judge gives less.", _strict_judge, False), False),
    "not the weights": (Hack("blind-4", "Right answers are no longer found.", _broken_check, False), False),
}
"""What the page calls a cause → what happens from version 40 on, and whether that step of the trainer went wrong."""
BEGUN = 40


async def record(kafka: str, plan: Plan, jump: bool) -> Alert:
    """Write what the processes write of ``plan``: alerts, the rewards of their examples, steps. Returns the first alert
    about a drop of the reward."""
    attempts: dict[str, tuple[Attempt, str, int]] = {}
    told: list[Alert] = []
    async with open_producer(kafka) as producer:
        for step, alerts in alarms(planted_steps(plan, 1_700_000_000_000)):
            attempts |= {each.id: (each, plan.run, step.time_ms) for each in step.attempts}
            told += alerts
            for alert in alerts:
                await (await send(producer, ALERTS, episode_message(alert, step.time_ms)))
                for example in alert.episode.examples if alert.episode else ():
                    await (
                        await send(
                            producer, REWARDS, reward_message(reward(attempts[example][0], plan.run, step.time_ms))
                        )
                    )
        for number in range(1, BEGUN + plan.steps):
            wrong = jump and number == BEGUN
            metrics = {"grad_norm": 60.0 if wrong else 1.0 + number % 3 / 10, "kl_k3": 4.0 if wrong else 0.02}
            made = Step(
                run=plan.run, step=number, version=number, groups=[], config_sha256="", data_sha256="", metrics=metrics
            )  # fmt: skip
            message = record_message(
                made, id=f"{plan.run}-{number}", key=plan.run, source="/t", time_ms=1_700_000_000_000, subject=plan.run
            )
            await (await send(producer, STEPS, message))
    return next(each for each in told if each.runbook == "reward-drop")


async def why_it_dropped(kafka: str, alert: Alert) -> str:
    """The steps 1 to 3 of the page, by a reader who knows the alert and what the commands print."""
    assert alert.episode is not None
    listed = await asyncio.to_thread(said, kafka, in_runbook(alert, "headrace watch list --all --full"))
    alarming = {line.split("  ")[2] for line in listed.splitlines() if f"  {alert.run}/" in line}
    if {"source_mix", "prompt_tokens"} & alarming:
        return "other tasks"
    if "component:judged" in alarming and "reward" not in alarming:
        return "the judge"
    since, norms = alert.episode.since_version or 0, list[float]()
    command = in_runbook(alert, "headrace tail steps --where step=VERSION").replace("VERSION", "{}")
    for version in range(since - 5, since + 1):
        printed = await asyncio.to_thread(said, kafka, f"{command.format(version)} --json --where run={alert.run}")
        (found,) = [json.loads(line)["data"] for line in printed.splitlines()]
        norms.append(found["metrics"]["grad_norm"])
    if max(norms) > 10 * sorted(norms)[len(norms) // 2]:
        return "training"
    shown = await asyncio.to_thread(
        said, kafka, f"headrace tail rewards --trajectory {alert.episode.examples[0]} --json"
    )
    assert '"answer"' in shown
    return "not the weights"


@pytest.mark.parametrize("number", range(len(DROPS)))
async def test_why_the_reward_dropped_at_version_40_is_decided_by_the_page(kafka: str, number: int) -> None:
    called, (change, jump) = list(DROPS.items())[number]
    alert = await record(kafka, Plan(change, honest=BEGUN, ramp=2, steps=12, seed=3), jump)
    assert alert.episode is not None
    assert alert.episode.since_version in range(BEGUN - 1, BEGUN + 4)
    assert await why_it_dropped(kafka, alert) == called
    assert called in runbook("reward-drop").replace("\n", " ")
