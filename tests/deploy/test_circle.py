"""The whole circle on real parts, its workers killed one by one in the middle: same counts, and the ledger adds up."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.deploy.demo.circle import Phases, Plan, go_round
from headrace.deploy.demo.memory import Peak
from headrace.deploy.demo.run import demo_settings, fresh_folder
from headrace.deploy.demo.watch import Watch, watching
from headrace.deploy.stack import Stack, running_stack
from headrace.deploy.state import State
from headrace.schemas.log import read_to_end
from headrace.schemas.records import Step
from headrace.schemas.topics import STEPS
from headrace.schemas.wire import decode
from headrace.streams.database import open_client
from headrace.streams.ledger import read_ledger

pytestmark = [pytest.mark.kafka, pytest.mark.clickhouse, pytest.mark.vllm, pytest.mark.slow]

KILLED = ("assemble", "workers", "sink", "trainer", "follower")
PLAN = Plan(seed=5, steps=len(KILLED) + 2, heldout_tasks=24, groups_per_step=4)

COUNTS = """
SELECT
    (SELECT uniqExact(trajectory_id) FROM events WHERE type = 'headrace.trajectory.started.v1') AS started,
    (SELECT count() FROM trajectories FINAL) AS assembled,
    (SELECT count() FROM rewards FINAL) AS scored,
    (SELECT count() FROM step_members FINAL) AS trained,
    (SELECT count() FROM rejected FINAL) AS rejected
"""


async def kill_one_after_the_other(stack: Stack, watch: Watch) -> None:
    """``kill -9`` of one part after each step, while the agent goes on."""
    for step, name in enumerate(KILLED, start=1):
        await watch.until(lambda seen, step=step: step in seen.steps, what=f"step {step}", timeout_s=240)
        stack.kill_part(name)


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 90) -> bool:
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110 - a table has no event to wait for
            await asyncio.sleep(0.5)
    return True


async def test_the_circle_closes_though_every_worker_is_killed(tmp_path: Path) -> None:
    settings = demo_settings(PLAN, str(tmp_path))
    fresh_folder(settings.data)
    async with running_stack(settings) as stack:
        kafka, clickhouse = stack.addresses["kafka"], stack.addresses["clickhouse"]
        async with watching(kafka, settings.run) as watch:
            killing = asyncio.create_task(kill_one_after_the_other(stack, watch))
            summary = await go_round(stack, PLAN, Phases(), Peak(), tmp_path / "reward.png", print)
            await killing

        ledger = await read_ledger(kafka)
        assert ledger.adds_up, ledger
        assert ledger.rejected_by["group"]["evaluation"] == 4 * PLAN.heldout_tasks
        assert {name: part.restarts for name, part in stack.parts.items() if name in KILLED} == dict.fromkeys(KILLED, 1)
        assert all(part.state is State.READY for part in stack.parts.values())

        steps = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, STEPS)]
        trained = Counter(
            name for step in steps if isinstance(step, Step) for group in step.groups for name in group.trajectory_ids
        )
        assert [step.step for step in steps if isinstance(step, Step)] == list(range(1, PLAN.steps + 1))
        assert set(trained.values()) == {1}
        assert summary.steps == PLAN.steps
        assert summary.weights_published == PLAN.steps + 1
        assert summary.mixed_version_trajectories > 0

        client = await asyncio.to_thread(open_client, clickhouse)
        expected = (ledger.started, ledger.started, ledger.started, ledger.trained, ledger.rejected)

        async def clickhouse_holds_the_same() -> bool:
            rows = (await asyncio.to_thread(client.query, COUNTS)).result_rows
            return tuple(rows[0]) == expected

        assert await eventually(clickhouse_holds_the_same)
