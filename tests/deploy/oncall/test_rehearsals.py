"""Three rehearsals on a real broker: from the alert to the cause, by the commands of the alert's runbook.

Each plants a cause, lets ``oncall`` (or a monitor) raise the alert, and then uses only what the alert and its runbook
say.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from aiokafka import TopicPartition
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.oncall.runbook import runbook
from headrace.deploy.watching.plant import Plan, alarms, planted_steps
from headrace.schemas.kafka.clients import open_consumer, open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, EVENTS, REWARDS
from headrace.schemas.wire import Message, UnreadableRecord, decode
from headrace.streams.dead_letters.build import dead_letter_message
from headrace.streams.oncall.conditions import Limits
from headrace.streams.oncall.oncall import OnCallConfig, run_oncall
from headrace.streams.processors.watch import episode_message
from headrace.streams.scoring.score import reward_message
from headrace.streams.watch.planted.attempts import Attempt, honest_step
from headrace.streams.watch.planted.drifts import DRIFTS
from headrace.streams.watch.planted.hacks import hacked_step
from headrace.streams.watch.planted.observations import reward

pytestmark = pytest.mark.kafka

LIMITS = Limits(hold_s=0.5, window_s=3.0)
SOON_S = 40.0


async def alerts_of(kafka: str, kind: str) -> list[Alert]:
    found = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, ALERTS, decided=True)]
    return [each for each in found if isinstance(each, Alert) and each.kind == kind]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await holds():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.2)


async def rehearse(
    kafka: str, kind: str, cause: Callable[[], Awaitable[None]], repair: Callable[[], Awaitable[None]]
) -> tuple[Alert, Alert]:
    """Run ``oncall`` while the cause begins and is repaired; returns the alerts that opened and resolved."""
    stop, ready = asyncio.Event(), asyncio.Event()
    config = OnCallConfig(kafka, every_s=0.3, ledger_every_s=1.0, limits=LIMITS)
    running = asyncio.create_task(run_oncall(config, stop=stop, ready=ready.set))
    try:
        await asyncio.wait_for(ready.wait(), SOON_S)
        await cause()

        async def told() -> bool:
            return bool(await alerts_of(kafka, kind)) or running.done()

        await until(told)
        await repair()

        async def resolved() -> bool:
            return len(await alerts_of(kafka, kind)) > 1 or running.done()

        await until(resolved)
    finally:
        stop.set()
        await running
    opened, ended = await alerts_of(kafka, kind)
    assert [each.episode.state for each in (opened, ended) if each.episode] == [
        EpisodeState.OPENED,
        EpisodeState.RESOLVED,
    ]
    return opened, ended


def said(kafka: str, command: str) -> str:
    """What a command of a runbook prints; it must be one that the runbooks name."""
    done = CliRunner().invoke(cli, [*command.split()[1:], "--kafka", kafka])
    assert done.exit_code == 0, done.output
    return done.output


def in_runbook(alert: Alert, command: str) -> str:
    """Check that the alert's runbook names ``command``."""
    assert f"`{command}`" in runbook(alert.runbook).replace("\n", " ")
    return command


async def test_lag_grows(kafka: str) -> None:
    """A process is dead: its group stays where it is, in one partition of two."""
    slow, place = "headrace-slow", TopicPartition(REWARDS.name, 2)

    async def commit(offset: int) -> None:
        async with open_consumer(kafka, group=slow) as consumer:
            consumer.assign([place])
            await consumer.commit({place: offset})

    async def cause() -> None:
        long_ago = round(1000 * (time.time() - 1000))
        message = reward_message(reward(honest_step_of(0), "lagging", long_ago))
        async with open_producer(kafka) as producer:
            for _ in range(3):
                await (
                    await producer.send(
                        REWARDS.name, message.value, message.key, 2, timestamp_ms=long_ago, headers=message.headers
                    )
                )
        await commit(0)

    opened, _ = await rehearse(kafka, "oncall_lag", cause, lambda: commit(3))
    assert opened.details["subject"] == slow
    assert opened.details["value"] > 900
    assert (opened.details["topic"], opened.details["partition"], opened.details["records"]) == (REWARDS.name, 2, 3)

    # One group, one partition, and the position does not move: a dead process. After the repair nothing is behind.
    command = in_runbook(opened, "headrace topology --lag")
    await commit(0)
    tables = [await asyncio.to_thread(said, kafka, command) for _ in range(2)]
    behind = [[line.split() for line in table.splitlines() if slow in line] for table in tables]
    assert [row[:4] for row in behind[0]] == [row[:4] for row in behind[1]]
    assert [row[3] for row in behind[0]] == ["3"]


def honest_step_of(version: int) -> Attempt:
    return honest_step(Random(1), version)[0]


async def test_dead_letters_rise(kafka: str) -> None:
    """A program writes to the topic without the SDK, and its records are no JSON."""
    producer_name = "/agents/by-hand"

    async def cause() -> None:
        headers = [("ce_source", producer_name.encode()), ("ce_type", b"headrace.tool.called.v1")]
        async with open_producer(kafka) as producer:
            await (await send(producer, EVENTS, Message(b"t-1", b"{broken", headers)))
            async for record in read_to_end(kafka, EVENTS):
                try:
                    decode(record.headers, record.value)
                except UnreadableRecord as error:
                    letter = dead_letter_message(record, error)  # as the assembler makes it
                    await (await send(producer, DEAD_LETTERS, letter))

    async def repair() -> None:
        await asyncio.sleep(0)

    opened, _ = await rehearse(kafka, "oncall_dead_letters", cause, repair)
    assert opened.details["subject"] == EVENTS.name
    ((name, count),) = [(name, value) for name, value in opened.details.items() if name.startswith("cause")]
    assert (name.endswith(f" from {producer_name}"), count) == (True, 1), "the alert names the producer already"

    listed = await asyncio.to_thread(said, kafka, in_runbook(opened, "headrace dead-letters list --open"))
    (place,) = re.findall(r"\b0:\d+\b", listed.splitlines()[0])[:1]
    shown = await asyncio.to_thread(said, kafka, f"headrace dead-letters show {place}")
    assert producer_name in shown
    assert "{broken" in shown


async def test_the_reward_drops_at_version_40(kafka: str) -> None:
    """From version 40 on the policy no longer solves its tasks: not the judge, not the tasks, not the rate of drops."""
    plan = Plan(DRIFTS["worse-policy"], honest=40, ramp=2, steps=12, seed=3)
    steps = list(planted_steps(plan, 1_700_000_000_000))
    opened: list[Alert] = []
    async with open_producer(kafka) as producer:
        for step, alerts in alarms(iter(steps)):
            for alert in alerts:
                opened.append(alert)
                await (await send(producer, ALERTS, episode_message(alert, step.time_ms)))
        random = Random(f"{DRIFTS['worse-policy'].name}/3")  # the same attempts, as records
        for number, step in enumerate(steps):
            if step.step < 0:
                attempts = honest_step(random, number)
            else:
                attempts = hacked_step(random, DRIFTS["worse-policy"], number, step.share, begun=plan.honest)
            for attempt in attempts:
                if step.step in (-1, 4, 5, 6, 7, 8):
                    message = reward_message(reward(attempt, plan.run, step.time_ms))
                    await (await send(producer, REWARDS, message))
    first = next(each for each in opened if each.kind == "monitor_reward")
    assert first.runbook == "reward-drop"
    assert first.episode is not None
    assert first.episode.since_version in range(40, 43)

    # Which monitors alarm together? The reward, and neither the judge's disagreement nor another mix of tasks.
    listed = await asyncio.to_thread(said, kafka, in_runbook(first, "headrace watch list --full"))
    alarming = {line.split("  ")[2] for line in listed.splitlines() if plan.run in line}
    assert "reward" in alarming
    assert not {"disagreement", "source_mix", "tenant_mix", "prompt_tokens", "drop_reason"} & alarming
    # An example: which term pays nothing?
    example = first.episode.examples[0]
    assert example in listed
    shown = await asyncio.to_thread(said, kafka, f"headrace tail rewards --trajectory {example} --json")
    assert re.search(r'"answer": ?\{"value": ?0(\.0)?,', shown)
