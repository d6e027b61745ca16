"""The demo's run with a system of the tests, on a real Kafka. A script takes the place of processors, trainer and vLLM:
it is about what the demo samples and shows, not about learning (``tests/deploy/stack/test_circle.py``)."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.rollouts.attempts import Agent, PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.demo import circle
from headrace.deploy.demo.circle import Phases, plan_of, run_circle
from headrace.deploy.demo.memory import Peak
from headrace.deploy.demo.quick_system import QUICK
from headrace.deploy.demo.summary import Figure, Summary, render
from headrace.deploy.demo.system import Arm, System
from headrace.deploy.processes.registry import stack_processes
from headrace.deploy.stack.stack import Stack
from headrace.schemas.events import Purpose, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.weights import Applied
from headrace.schemas.topics import APPLIED, EVENTS, REJECTED, REWARDS, STEPS
from headrace.schemas.wire import decode
from tests.agents.rollouts.test_feedback import SOMEWHERE, reward
from tests.agents.rollouts.toy import ToyTask, ToyTasks, episode, toy_engine
from tests.agents.test_backpressure import write

pytestmark = pytest.mark.kafka

SIZE = 2
STEPS_WANTED = 3


def toy_attempts(config: RolloutConfig) -> PolicyAttempts[ToyTask]:
    agent = Agent("toy", "toy-1", episode)
    return PolicyAttempts(agent, config.bootstrap, config.vllm_url, run=config.run, concurrency=8)


TOY = System(
    name="toy",
    about="three turns a task",
    tasks=ToyTasks(),
    attempts=toy_attempts,
    agents=("toy",),
    base=Path("nowhere"),
    base_model=QUICK.base_model,  # not made here
    plan={"group_size": SIZE, "groups_per_step": 2, "steps": STEPS_WANTED, "heldout_tasks": 3, "concurrency": 8},
    arms={"easy": Arm("one easy level first", plan={"curriculum": CurriculumSettings(window=1, review=0)})},
    figures=lambda rewards: {"turns": sum(each.turns for each in rewards) / len(rewards)},
)


def applied(run: str, version: int) -> Applied:
    return Applied(run=run, engine="toy", version=version, download_s=0, swap_s=0, canary_max_error=0)


async def process_and_train(kafka: str, run: str, steps: int) -> None:
    """Score every attempt, held-out ones better with each version; train each finished group in a step of its own, and
    reject those that come after ``steps``, because their attempts earned the same."""
    scored: set[str] = set()
    version = 0
    await write(kafka, APPLIED, applied(run, 0))
    while True:
        groups: dict[str, list[str]] = defaultdict(list)
        starts: dict[str, TrajectoryStarted] = {}
        async for record in read_to_end(kafka, EVENTS):
            envelope, event = decode(record.headers, record.value)
            name = envelope.subject
            if isinstance(event, TrajectoryStarted) and event.run == run:
                starts[name] = event
            elif isinstance(event, TrajectoryEnded) and name in starts:
                start = starts[name]
                groups[start.group_id or ""].append(name)
                if name not in scored:
                    scored.add(name)
                    total = 2.0 if start.purpose is Purpose.TRAIN else 2.0 * version / STEPS_WANTED
                    fields = {"run": run, "purpose": start.purpose, "turns": 3 + version}
                    await write(kafka, REWARDS, reward(name, total, group=start.group_id or "", **fields))
        whole = [group for group, ids in groups.items() if group and len(ids) == SIZE]
        for group in whole[steps:] if version == steps else ():
            for name in groups[group]:
                rejected = Rejection(
                    trajectory_id=name, trajectory=SOMEWHERE, stage=Stage.GROUP, reason=Reason.ALL_FAIL, run=run,
                    group_id=group,
                )  # fmt: skip
                await write(kafka, REJECTED, rejected)
        if version < min(steps, len(whole)):
            trained = TrainedGroup(
                group_id=whole[version], group=SOMEWHERE, trajectory_ids=groups[whole[version]],
                trajectories=[SOMEWHERE] * SIZE,
            )  # fmt: skip
            version += 1
            metrics = {"staleness_max": 0.0, "loss": 0.1}
            step = Step(
                run=run, step=version, version=version, groups=[trained], config_sha256="", data_sha256="",
                metrics=metrics,
            )  # fmt: skip
            await write(kafka, STEPS, step)
            await write(kafka, APPLIED, applied(run, version))
        await asyncio.sleep(0.1)


async def toy_run(kafka: str, folder: Path, run: str, steps: int) -> tuple[Summary, list[str]]:
    """Returns the summary of a run whose groups vary until ``steps``, and what it reported."""
    plan = plan_of(TOY, "easy", seed=3)
    said: list[str] = []
    processes = {process.name: process for process in stack_processes()}
    async with toy_engine(0.0) as (_, url):
        update: dict[str, Any] = {"kafka": kafka, "vllm": url, "run": run}
        settings = load_settings(data=str(folder)).model_copy(update=update)
        stack = Stack(settings, (), (processes["kafka"], processes["vllm"]), lambda _: None, lambda _: None)
        training = asyncio.create_task(process_and_train(kafka, run, steps))
        summary = await asyncio.wait_for(
            run_circle(stack, plan, Phases(), Peak(), folder / "reward.png", said.append), 150
        )
        training.cancel()
    return summary, said


async def test_a_run_whose_attempts_no_longer_differ_is_evaluated_after_its_last_step(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circle, "_DRAIN_S", 0.0)
    monkeypatch.setattr(circle, "_EXHAUSTED", 2)
    summary, said = await toy_run(kafka, tmp_path, "toy-exhausted", steps=1)
    assert summary.steps == 1
    assert summary.heldout.sampled_after == pytest.approx(1 / STEPS_WANTED)
    assert any("step   1 was the last" in line for line in said)


async def test_a_run_of_any_system_shows_its_figures_and_what_was_sampled(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circle, "_DRAIN_S", 0.0)  # nothing assembles here: all trajectories stay pending
    summary, _ = await toy_run(kafka, tmp_path, "toy-demo", STEPS_WANTED)
    assert (summary.system, summary.arm, summary.steps) == ("toy", "easy", STEPS_WANTED)
    assert (summary.heldout.sampled_before, summary.heldout.sampled_after) == (0.0, 1.0)
    assert (summary.heldout.greedy_before, summary.heldout.greedy_after) == (0.0, 1.0)
    assert summary.figures == {"turns": Figure(before=3.0, after=6.0)}
    sampling = summary.sampling
    assert sampling is not None
    assert sampling.groups >= STEPS_WANTED
    assert sampling.attempts == {"made": sampling.groups * SIZE}
    assert sampling.levels[0] == "easy"
    text = render(summary)
    assert "turns  3.000 → 6.000" in text
    assert f"Groups sampled {sampling.groups}, one task each" in text
    starts = [
        event
        async for record in read_to_end(kafka, EVENTS)
        if isinstance(event := decode(record.headers, record.value)[1], TrajectoryStarted) and event.run == "toy-demo"
    ]
    evaluated = Counter(start.task_id for start in starts if start.purpose is Purpose.EVALUATE)
    assert evaluated == {f"toy-heldout-{number}": 4 for number in range(3)}
    assert len({start.task_id for start in starts if start.group_id}) == sampling.groups
