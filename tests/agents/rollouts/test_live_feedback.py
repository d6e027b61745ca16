"""Records in the log lead a running sampler: its levels, its places, and its metrics."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace.agents import backpressure
from headrace.agents.open_groups import ZeroVariance
from headrace.agents.rollouts import rollout_metrics
from headrace.agents.rollouts.attempts import Agent, PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.agents.rollouts.journal import Place, place_in
from headrace.agents.rollouts.rollout_metrics import SamplingReport
from headrace.agents.rollouts.sampler import READS, run_rollouts
from headrace.schemas.events import TrajectoryEnded, TrajectoryStarted
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.consumer import ReportingConsumer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.model import Record
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.topics import BUDGET, EVENTS, REJECTED, REWARDS
from headrace.schemas.wire import decode
from tests.agents.rollouts.test_feedback import SOMEWHERE, reward
from tests.agents.rollouts.toy import ToyTasks, episode, toy_engine
from tests.agents.test_backpressure import write
from tests.agents.test_open_groups import granting

pytestmark = pytest.mark.kafka

SIZE = 2


async def finished(bootstrap: str, run: str) -> dict[str, tuple[Place, list[str]]]:
    """Return the groups of the run whose attempts have all ended: place and trajectories."""
    members: dict[str, list[str]] = defaultdict(list)
    starts: dict[str, TrajectoryStarted] = {}
    async for record in read_to_end(bootstrap, EVENTS):
        envelope, event = decode(record.headers, record.value)
        if isinstance(event, TrajectoryStarted) and event.run == run:
            starts[envelope.subject] = event
        if isinstance(event, TrajectoryEnded) and (start := starts.get(envelope.subject)) and start.group_id:
            members[start.group_id].append(envelope.subject)
    found = {}
    for group, ids in members.items():
        place = place_in(starts[ids[0]].task)
        assert place is not None
        if len(ids) == SIZE:
            found[group] = place, ids
    return found


async def judge(bootstrap: str, run: str, total: Callable[[Place], float], reason: Reason) -> None:
    """Score every finished group, and reject it; as score and group would."""
    judged: set[str] = set()
    while True:
        for group, (place, ids) in (await finished(bootstrap, run)).items():
            if group in judged:
                continue
            judged.add(group)
            await write(bootstrap, REWARDS, *(reward(each, total(place), group=group) for each in ids))
            records: list[Record] = [
                Rejection(trajectory_id=each, trajectory=SOMEWHERE, stage=Stage.GROUP, reason=reason, group_id=group)
                for each in ids
            ]
            await write(bootstrap, REJECTED, *records)
        await asyncio.sleep(0.1)


async def sampled(bootstrap: str, run: str, url: str, stop: asyncio.Event, **settings: Any) -> SamplingReport:
    config = RolloutConfig(bootstrap, url, run, group_size=SIZE, concurrency=8, **settings)
    agent = Agent("toy", "toy-1", episode)
    async with PolicyAttempts(agent, bootstrap, url, run=run, concurrency=8) as attempts:
        return await run_rollouts(config, ToyTasks(), attempts, stop=stop)


async def test_passed_groups_lead_to_harder_tasks_and_failed_ones_back(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(rollout_metrics, "get_meter", MeterProvider([reader]).get_meter)
    curriculum = CurriculumSettings(window=2, review=0)
    async with toy_engine(0.0) as (_, url):
        judging = asyncio.create_task(
            judge(kafka, "levels", lambda at: 0.0 if at.level == 2 else 2.0, Reason.ALL_EQUAL)
        )
        report = await asyncio.wait_for(
            sampled(kafka, "levels", url, asyncio.Event(), curriculum=curriculum, max_groups=2, tasks=14), 90
        )
        judging.cancel()
    # It rises to "hard", where everything fails, falls back and rises again.
    assert report.levels[:4] == ("easy", "middle", "hard", "middle")
    assert set(report.pass_rates) == {"easy", "middle", "hard"}
    assert (report.pass_rates["middle"], report.pass_rates["hard"]) == (1.0, 0.0)
    assert report.groups == 14
    assert report.fates == {"zero_variance_all_equal": report.fates["zero_variance_all_equal"]}
    names = {at.level for at, _ in (await finished(kafka, "levels")).values()}
    assert names == {0, 1, 2}
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for r in data.resource_metrics for s in r.scope_metrics for metric in s.metrics}
    assert {f"headrace.rollouts.{name}" for name in ("groups", "attempts", "passes", "fates", "waited")} <= set(found)
    assert set(rollout_metrics.GAUGES) <= set(found)
    assert sum(point.value for point in found["headrace.rollouts.groups"].data.data_points) == 14


@pytest.mark.parametrize(("zero_variance", "groups"), [(ZeroVariance.REFILL, 12), (ZeroVariance.DROP, 8)])
async def test_groups_without_a_gradient_are_refilled_or_wait_for_the_next_version(
    kafka: str, zero_variance: ZeroVariance, groups: int
) -> None:
    run = f"zero-{zero_variance}"
    stop = asyncio.Event()
    budget = granting(8).model_copy(update={"run": run})
    await write(kafka, BUDGET, budget)
    async with toy_engine(0.0) as (_, url):
        sampling = asyncio.create_task(sampled(kafka, run, url, stop, zero_variance=zero_variance))
        async with asyncio.timeout(60):
            while len(first := await finished(kafka, run)) < 8:  # noqa: ASYNC110 - a topic has no event to wait for
                await asyncio.sleep(0.1)
        # Four of eight groups have no gradient; four remain, which fill the trainer's next step of four.
        dropped = [each for _, ids in list(first.values())[:4] for each in ids]
        records: list[Record] = [
            Rejection(trajectory_id=each, trajectory=SOMEWHERE, stage=Stage.GROUP, reason=Reason.ALL_FAIL)
            for each in dropped
        ]
        await write(kafka, REJECTED, *records)
        await asyncio.sleep(2)
        assert len(await finished(kafka, run)) == groups
        await write(kafka, BUDGET, budget.model_copy(update={"version": 2}))
        async with asyncio.timeout(60):
            while len(await finished(kafka, run)) < 12:  # noqa: ASYNC110 - a topic has no event to wait for
                await asyncio.sleep(0.1)
        stop.set()
        assert (await asyncio.wait_for(sampling, 60)).groups == 12


async def test_a_running_sampler_follows_the_topics_that_it_declares(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[set[str]] = []

    @asynccontextmanager
    async def opened(*args: Any, **options: Any) -> AsyncIterator[ReportingConsumer]:
        async with open_consumer(*args, **options) as consumer:
            try:
                yield consumer
            finally:
                followed.append({place.topic for place in consumer.assignment()})

    monkeypatch.setattr(backpressure, "open_consumer", opened)
    async with toy_engine(0.0) as (_, url):
        await asyncio.wait_for(sampled(kafka, "declared", url, asyncio.Event(), max_groups=2, tasks=1), 60)
    assert followed == [{topic.name for topic in READS}]


async def test_missing_feedback_stalls_nothing(kafka: str) -> None:
    async with toy_engine(0.0) as (_, url):
        report = await asyncio.wait_for(
            sampled(kafka, "silent", url, asyncio.Event(), curriculum=CurriculumSettings(), max_groups=20, tasks=20), 60
        )
    assert (report.groups_by_level, report.levels, report.pass_rates) == ({"easy": 20}, ("easy",), {})
