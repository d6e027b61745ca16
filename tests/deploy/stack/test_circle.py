"""The whole circle on the whole local stack, every part the real one, and most of them killed in the middle of the run.

Same counts, nothing trained twice, a ledger that adds up; loopback only, bounded memory, no process left. The agent is
a program on OpenAI's client behind the gateway: each of its calls must be exact. (`make demo` in CI runs the reference
agent.) Kafka, vLLM and the gateway, which are killed in tests of their own, stay up here.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.deploy.demo.circle import DemoPlan, Phases, run_circle
from headrace.deploy.demo.exactness import Exactness
from headrace.deploy.demo.memory import Peak, peak_memory
from headrace.deploy.demo.run import demo_settings, fresh_folder
from headrace.deploy.demo.watch import RunWatcher, watch_run
from headrace.deploy.processes.drawing import nodes
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack.stack import Stack, running_stack
from headrace.deploy.stack.state import State
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.step import Step
from headrace.schemas.topics import ALERTS, DEAD_LETTERS, STEPS, TOPICS
from headrace.schemas.wire import decode
from headrace.streams.clickhouse.database import open_client
from headrace.streams.ledger.ledger import read_ledger
from headrace.streams.topology import TOPOLOGY

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse, pytest.mark.vllm, pytest.mark.slow]

KILLED = ("assemble", "workers", "sink", "trainer", "follower", "clickhouse", "dashboard")
MAX_RESIDENT = 8 * 1024**3
PLAN = DemoPlan(seed=5, steps=len(KILLED) + 2, heldout_tasks=24, groups_per_step=4, through_gateway=True)

COUNTS = """
SELECT
    (SELECT uniqExact(trajectory_id) FROM events WHERE type = 'headrace.trajectory.started.v1') AS started,
    (SELECT count() FROM trajectories FINAL) AS assembled,
    (SELECT count() FROM rewards_latest) AS scored,
    (SELECT count() FROM step_members FINAL) AS trained,
    (SELECT count() FROM rejected FINAL) AS rejected
"""


async def kill_one_after_the_other(stack: Stack, watch: RunWatcher) -> None:
    """Kill one part with SIGKILL after each step, while the agent keeps working."""
    for step, name in enumerate(KILLED, start=1):
        await watch.until(lambda records, step=step: step in records.steps, what=f"step {step}", timeout_s=240)
        stack.kill_part(name)


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 90) -> bool:
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110 - a table has no event to wait for
            await asyncio.sleep(0.5)
    return True


def processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def listening(members: set[psutil.Process]) -> set[str]:
    """Returns the interfaces with listening processes."""
    return {
        connection.laddr.ip
        for member in members
        for connection in member.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


async def test_training_completes_although_every_worker_is_killed(tmp_path: Path) -> None:
    before, others = processes(), Peak()
    others.measure()  # this process, with what other tests have imported
    settings = demo_settings(PLAN, str(tmp_path))
    fresh_folder(settings.data)
    async with peak_memory() as peak, running_stack(settings) as stack:
        assert {name: part.state for name, part in stack.parts.items()} == {
            part.name: State.READY for part in stack_processes() if part.wanted(settings)
        }
        assert listening(processes() - before) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        async with watch_run(stack.addresses["kafka"], settings.run) as watch:
            killing = asyncio.create_task(kill_one_after_the_other(stack, watch))
            summary = await run_circle(stack, PLAN, Phases(), peak, tmp_path / "reward.png", print)
            await killing

        await the_log_tells_one_story(stack)
        assert summary.steps == PLAN.steps
        assert summary.weights_published == PLAN.steps + 1
        assert summary.mixed_version_trajectories > 0
        assert_exact(summary.exactness)
        assert summary.monitors is not None
        # Nine steps are fewer windows than a baseline has: only lengths of prompts are compared at all, and too few to
        # alarm. Whether honest learning alarms is tested in tests/experiments/test_watched_learning.py.
        assert summary.monitors.windows > 0
        assert summary.monitors.judged > 0
        assert summary.monitors.alarms == []
        assert 0 < summary.peak_memory_bytes - others.bytes < MAX_RESIDENT

        async def all_serve_again() -> bool:
            return all(part.state is State.READY for part in stack.parts.values())

        assert await eventually(all_serve_again)
        assert {name for name, part in stack.parts.items() if part.restarts} == set(KILLED)
        await the_addresses_answer(stack)
        members = processes() - before
    assert not any(member.is_running() for member in members)


def assert_exact(found: Exactness | None) -> None:
    assert found is not None
    assert found.continuing > 4 * PLAN.heldout_tasks
    assert (found.retokenised, found.unknown_prefixes) == (0, 0)
    assert found.echoes == {"equal": found.calls}


async def the_log_tells_one_story(stack: Stack) -> None:
    """Check that every trajectory has one fate, every step exists once, and ClickHouse has the same content."""
    kafka = stack.addresses["kafka"]
    ledger = await read_ledger(kafka)
    assert ledger.adds_up, ledger
    assert ledger.rejected_by["group"]["evaluation"] == 4 * PLAN.heldout_tasks

    steps = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, STEPS, decided=True)]
    trained = Counter(
        name for step in steps if isinstance(step, Step) for group in step.groups for name in group.trajectory_ids
    )
    assert [step.step for step in steps if isinstance(step, Step)] == list(range(1, PLAN.steps + 1))
    assert set(trained.values()) == {1}

    declared = declared_writes()
    for name, topics in (await written_by(kafka, declared)).items():
        assert topics <= declared[name], f"{name} writes topics that it does not declare"

    client = await asyncio.to_thread(
        open_client, stack.addresses["clickhouse"], secrets=stack.settings.clickhouse_secrets
    )
    expected = (ledger.started, ledger.started, ledger.started, ledger.trained, ledger.rejected)

    async def clickhouse_holds_the_same() -> bool:
        rows = (await asyncio.to_thread(client.query, COUNTS)).result_rows
        return tuple(rows[0]) == expected

    assert await eventually(clickhouse_holds_the_same)


def declared_writes() -> dict[str, set[str]]:
    """Returns the topics that each processor, process or the agents declare to write."""
    found = {part.name: {topic.name for topic in part.writes} for part in nodes()}
    for processor in TOPOLOGY:
        written = (*processor.writes, *processor.ticks, DEAD_LETTERS, ALERTS)
        found[processor.name] = {topic.name for topic in written}
    return found


async def written_by(kafka: str, declared: Collection[str]) -> dict[str, set[str]]:
    """Returns for each name in ``declared`` the topics with records whose source it is."""
    found: dict[str, set[str]] = defaultdict(set)
    for topic in TOPICS:
        async for record in read_to_end(kafka, topic, decided=True):
            headers = {name: (value or b"").decode() for name, value in record.headers}
            words = headers.get("ce_source", "").replace("/", " ").split()
            name = next((word for word in words if word in declared), "agents")
            found[name].add(topic.name)
    return found


async def the_addresses_answer(stack: Stack) -> None:
    """Check that another shell shows every address, and that each is correct."""
    asked = CliRunner().invoke(cli, ["status", "--json", "--data", str(stack.settings.data)])
    shown = json.loads(asked.stdout)
    assert {name: shown[name] for name in ("kafka", "clickhouse", "vllm", "gateway", "dashboard")} == dict(
        stack.addresses
    )
    async with httpx.AsyncClient(timeout=30) as client:
        metrics = [part["metrics"] for part in shown["parts"].values() if part["metrics"]]
        for url in (
            shown["dashboard"],
            shown["clickhouse"] + "/ping",
            shown["vllm"] + "/health",
            shown["gateway"] + "/health",
            *metrics,
        ):
            assert (await client.get(url, follow_redirects=True)).status_code == httpx.codes.OK, url
