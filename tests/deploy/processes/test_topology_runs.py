"""The real processes read and write the topics of the topology, in one process or one process per processor."""

import asyncio
import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.deploy.processes.registry import workers as processes
from headrace.deploy.system.children import Child, Command
from headrace.deploy.system.notify import ReadySocket
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.step import Step
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, FEEDBACK, REJECTED, STEPS, TOPICS, TRAINING
from headrace.schemas.wire import record_message
from headrace.streams.lag import measure_lag
from headrace.streams.topology import TOPOLOGY
from headrace.streams.watch.window import LARGEST
from headrace.streams.workers import consumer_group
from headrace.streams.workers_config import PROCESSORS
from tests.streams.builders import session

pytestmark = pytest.mark.kafka

GROUPS = {"assemble": "assemble", **{name: consumer_group(name) for name in PROCESSORS}}
REWARDS = Path(__file__).parents[2] / "streams" / "replayed_rewards.py"


async def feed(kafka: str, run: str) -> None:
    """Two different trajectories of a group, a rejected one, an unreadable event, feedback, a step, and as many
    successes at tasks that cannot be solved as complete a window of the monitors, which then alarm.
    """
    start = {"group_id": run, "group_size": 2}
    histories = [
        session(f"{run}-1", "ask", start=start, outcome=1.0),
        session(f"{run}-2", "ask", start=start, outcome=0.0),
        session(f"{run}-3", "ask", start={"group_id": None, "group_size": None}),
        [replace(session(f"{run}-4", "ask")[0], value=None)],
        *(
            session(f"{run}-w{number}", "ask", start={"group_id": None, "group_size": None, "task": {"tripwire": True}})
            for number in range(LARGEST + 2)
        ),
    ]
    async with open_producer(kafka) as producer:
        for record in (record for history in histories for record in history):
            await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=list(record.headers))
        given = FeedbackGiven(signal="score", value=1.0)
        message = record_message(given, id=run, key=f"{run}-1", source="/t", time_ms=1, subject=f"{run}-1")
        await (await send(producer, FEEDBACK, message))
        trained = Step(run=run, step=1, version=1, groups=[], config_sha256="", data_sha256="", metrics={})
        message = record_message(trained, id=f"{run}-step", key=run, source="/t", time_ms=1, subject=run)
        await (await send(producer, STEPS, message))


async def written(kafka: str) -> dict[str, set[str]]:
    """Returns for each processor the topics with records whose source is its name, without ticks."""
    found: dict[str, set[str]] = defaultdict(set)
    for topic in TOPICS:
        async for record in read_to_end(kafka, topic, decided=True):
            headers = dict(record.headers)
            if headers.get("ce_type") != b"headrace.clock.ticked.v1":
                found[(headers.get("ce_source") or b"").decode()].add(topic.name)
    return found


async def decided(kafka: str, names: set[str]) -> bool:
    """Whether each trajectory has a fate."""
    values = [
        record.value or b""
        for topic in (TRAINING, REJECTED)
        async for record in read_to_end(kafka, topic, decided=True)
    ]
    return all(any(name.encode() in value for value in values) for name in names)


async def behind(kafka: str) -> bool:
    """Whether any processor has not consumed a record."""
    return any(lag.records for lag in await measure_lag(kafka, GROUPS.values()))


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(("streams",), marks=pytest.mark.nightly, id="one process"),
        pytest.param(("assemble", *PROCESSORS), id="one each"),
    ],
)
async def test_the_processes_read_and_write_the_topics_of_the_topology(
    kafka: str, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    run = "-".join(workers)
    children = []
    try:
        for name in workers:
            with ReadySocket() as ready_socket:
                env = {
                    **ready_socket.env,
                    "HEADRACE_KAFKA": kafka,
                    "HEADRACE_DATA": str(tmp_path / name),
                    "HEADRACE_MEMBER": "one",
                }
                options: dict[str, object] = {"rewards": {"other": f"{REWARDS}:VOTES"}}
                process = name
                if name not in processes():  # a processor that has no process of its own
                    process, options = "workers", options | {"processors": [name]}
                env["HEADRACE_OPTIONS"] = json.dumps({"workers": options})
                command = Command((sys.executable, "-m", "headrace.deploy.cli", "worker", process), env)
                children.append(Child(command, tmp_path / f"{name}.log"))
                await asyncio.wait_for(ready_socket.ready(), 90)
        await feed(kafka, run)
        async with asyncio.timeout(60):
            while not await decided(kafka, {f"{run}-1", f"{run}-3"}) or await behind(kafka):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        lags = await measure_lag(kafka, GROUPS.values())
        sources = await written(kafka)
    finally:
        for child in children:
            child.stop()
    for processor in TOPOLOGY:
        read = {lag.topic for lag in lags if lag.group == GROUPS[processor.name]}
        assert read == {topic.name for topic in processor.reads}, processor.name
        wrote = sources[f"/streams/{processor.name}"] - {DEAD_LETTERS.name}
        assert wrote == {topic.name for topic in processor.writes}, processor.name
    assert DEAD_LETTERS.name in sources["/streams/assemble"] | sources["/streams/dead-letters"]
