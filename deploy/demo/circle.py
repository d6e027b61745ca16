"""The demo's training run: an agent works, its events become training groups, the trainer learns, vLLM swaps weights.

All figures (rewards, steps, versions) are read from Kafka. The agent samples only from vLLM: the reference agent with
tokens, or an ordinary program with texts, through the gateway.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.agents.open_groups import ZeroVariance
from headrace.agents.rollouts.attempts import Attempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.agents.rollouts.rollout_metrics import SamplingReport
from headrace.agents.rollouts.sampler import run_evaluation, run_rollouts
from headrace.deploy.demo.exactness import Exactness, measure_exactness
from headrace.deploy.demo.memory import Peak
from headrace.deploy.demo.quick_system import QUICK
from headrace.deploy.demo.summary import (
    REWARD_SHARE,
    HeldOut,
    Summary,
    figures_of,
    mean_reward,
    mixed_versions,
    monitored,
    normalised,
    reward_by_version,
)
from headrace.deploy.demo.system import Arm, RunningAttempts, System, merged
from headrace.deploy.demo.usage import read_counters, used
from headrace.deploy.demo.watch import RunRecords, RunWatcher, watch_run
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import ReportStatus
from headrace.deploy.stack.stack import Stack
from headrace.streams.ledger.ledger import Ledger, read_ledger

_SERVE_S = 60.0
_SCORE_S = 120.0
_STEP_S = 180.0
_EXHAUSTED = 16
"""Steps' worth of groups in a row, all without variance, after which a run learns nothing more."""
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The settings of a demo. :func:`plan_of` makes that of a system."""

    system: System = QUICK
    """What learns."""
    arm: str | None = None
    """A variant of the system; ``None``: the system itself."""
    seed: int = 0
    """Seed of the training tasks, the trainer and the engine."""
    steps: int = 60
    """Optimiser steps."""
    heldout_tasks: int = 256
    """Number of held-out tasks; each is attempted sampled and greedy, before and after training."""
    control: bool = False
    """Shuffle the advantages inside their groups; nothing should be learnt then."""
    through_gateway: bool = False
    """The agent is a program on OpenAI's client, whose calls go through the gateway."""
    group_size: int = 8
    """Attempts per task."""
    groups_per_step: int = 8
    """Groups with a gradient per step."""
    max_staleness: int = 4
    """Largest age in versions at which a trajectory is trained."""
    max_steps_ahead: int = 2
    """Steps' worth of groups that the sampler may start beyond the next step: keeps engine and trainer busy, while the
    groups stay fresh enough to be admitted."""
    learning_rate: float = 8e-4
    """Learning rate of AdamW."""
    last_rate: float = 1.0
    """Share of the learning rate at the last step, to which it declines along a cosine; 1: it stays."""
    constant_length: int = 16
    """Tokens by which a trajectory's objective is divided: about as many as a trajectory samples."""
    concurrency: int = 64
    """Attempts in flight."""
    curriculum: CurriculumSettings | None = None
    """From easy to hard tasks by pass rate; ``None``: the system's usual mixture."""
    zero_variance: ZeroVariance = ZeroVariance.REFILL
    """What becomes of the place of a group without a gradient."""
    tasks: int | None = None
    """Number of training tasks; ``None``: as many as the seed has. None is attempted by two groups."""
    sandboxes: Path | None = None
    """Folder in which snapshots of the agent's sandboxes are kept, one after every turn; ``None``: none are."""

    @property
    def variant(self) -> Arm:
        """The variant's values; those of the system itself differ in nothing."""
        return Arm("the system itself") if self.arm is None else self.system.arms[self.arm]

    def options(self) -> dict[str, dict[str, object]]:
        """Returns the options of the stack's parts for this plan."""
        own: dict[str, dict[str, object]] = {
            "trainer": {
                "steps": self.steps,
                "seed": self.seed,
                "groups_per_step": self.groups_per_step,
                "max_staleness": self.max_staleness,
                "max_steps_ahead": self.max_steps_ahead,
                "optimizer": {"learning_rate": self.learning_rate},
                **({"schedule": self._schedule} if self.last_rate < 1 else {}),
                "constant_length": self.constant_length,
                "shuffle_advantages": self.control,
            },
            "vllm": {"seed": self.seed},
        }
        return merged(own, self.system.options, self.variant.options)

    @property
    def _schedule(self) -> dict[str, object]:
        return {"shape": "cosine", "decay_steps": self.steps, "final_share": self.last_rate}

    def rollouts(self, stack: Stack) -> RolloutConfig:
        """Returns the sampler's settings."""
        return RolloutConfig(
            bootstrap=stack.addresses["kafka"],
            vllm_url=stack.addresses["vllm"],
            run=stack.settings.run,
            seed=self.seed,
            group_size=self.group_size,
            concurrency=self.concurrency,
            curriculum=self.curriculum,
            zero_variance=self.zero_variance,
            tasks=self.tasks,
            sandboxes=self.sandboxes,
        )


def plan_of(system: System, arm: str | None = None, **given: Any) -> DemoPlan:
    """Returns the plan of a system or of a variant; a ``given`` field that is not ``None`` replaces theirs.

    Raises :class:`StackError` for a variant that does not exist, or a program or sandboxes that the system does not
    have.
    """
    if arm is not None and arm not in system.arms:
        offered = f"expected one of {', '.join(system.arms)}" if system.arms else "it has none"
        raise StackError(f"the system {system.name} has no arm {arm!r}: {offered}")
    if given.get("through_gateway") and system.program is None:
        raise StackError(f"the system {system.name} has no program for --through-gateway: leave the option out")
    if given.get("sandboxes") and not system.has_sandboxes:
        raise StackError(f"attempts of the system {system.name} have no sandboxes: leave --sandboxes out")
    variant = {} if arm is None else system.arms[arm].plan
    chosen = {name: value for name, value in given.items() if value is not None}
    return DemoPlan(system=system, arm=arm, **{**system.plan, **variant, **chosen})


@dataclass(slots=True)
class Phases:
    """Wall-clock seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Time the block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - began, 2)


async def run_circle(
    stack: Stack, plan: DemoPlan, phases: Phases, peak: Peak, plot: Path, report: ReportStatus
) -> Summary:
    """Evaluate, train, evaluate again, and account for every trajectory.

    Raises :class:`StackError` that names what did not happen in time.
    """
    rollouts = plan.rollouts(stack)
    kafka = stack.addresses["kafka"]
    async with watch_run(kafka, stack.settings.run) as watch, _attempts(stack, plan, rollouts) as attempts:
        await watch.until(lambda records: records.served >= 0, what="the engine to serve version 0", timeout_s=_SERVE_S)
        async with phases.phase("evaluate_before"):
            before = await _evaluate(rollouts, attempts, plan, watch, report)
        counters = await read_counters(stack)
        async with phases.phase("learn"):
            sampling = await _learn(rollouts, attempts, plan, watch, report)
        usage = used(counters, await read_counters(stack), watch.records.steps.values())
        async with phases.phase("evaluate_after"):
            after = await _evaluate(rollouts, attempts, plan, watch, report)
        async with phases.phase("settle"):
            ledger = await _ledger_at_rest(kafka, report)
            exactness = await _exactness(stack, plan.system) if plan.through_gateway else None
        rewards = watch.records.rewards.values()
        measure = plan.system.measure
        return Summary(
            system=plan.system.name,
            arm=plan.arm,
            seed=plan.seed,
            control=plan.control,
            through_gateway=plan.through_gateway,
            exactness=exactness,
            heldout=HeldOut(
                sampled_before=before.sampled,
                sampled_after=after.sampled,
                greedy_before=before.greedy,
                greedy_after=after.greedy,
            ),
            heldout_tasks=plan.heldout_tasks,
            measure=REWARD_SHARE if measure is None else measure.name,
            figures=figures_of(before.figures, after.figures),
            steps=len(watch.records.steps),
            sampling=sampling,
            usage=usage,
            monitors=monitored(watch.records.readings.values(), watch.records.alerts),
            ledger=asdict(ledger),
            weights_published=len(watch.records.published),
            weights_applied=len(watch.records.applied),
            mixed_version_trajectories=mixed_versions(rewards),
            reward_by_version=reward_by_version(rewards),
            seconds=phases.seconds | {"total": round(sum(phases.seconds.values()), 2)},
            processor_s=round(sum((await read_counters(stack)).processor_s.values()), 1),
            peak_memory_bytes=peak.bytes,
            plot=str(plot),
            data=str(stack.settings.data),
            dashboard=stack.addresses.get("dashboard"),
        )


def _attempts(stack: Stack, plan: DemoPlan, rollouts: RolloutConfig) -> RunningAttempts:
    if plan.through_gateway:
        assert plan.system.program is not None
        return plan.system.program.attempts(stack.addresses["gateway"], stack.settings.logs / "program.log")
    return (plan.variant.attempts or plan.system.attempts)(rollouts)


async def _exactness(stack: Stack, system: System) -> Exactness:
    metrics = stack.parts["gateway"].metrics
    assert metrics is not None
    assert system.program is not None
    return await measure_exactness(stack.addresses["kafka"], metrics, system.program.encode, system.program.end_id)


@dataclass(frozen=True, slots=True)
class _Score:
    sampled: float
    greedy: float
    figures: Mapping[str, float]
    """What the system shows of its sampled attempts."""


async def _evaluate(
    rollouts: RolloutConfig, attempts: Attempts[Any], plan: DemoPlan, watch: RunWatcher, report: ReportStatus
) -> _Score:
    version = watch.records.served
    tasks = [plan.system.tasks.held_out(number) for number in range(plan.heldout_tasks)]
    labels = {"policy_version": version}
    sampled = await run_evaluation(rollouts, attempts, tasks, greedy=False, labels=labels)
    greedy = await run_evaluation(rollouts, attempts, tasks, greedy=True, labels=labels)
    await watch.until_scored([*sampled, *greedy], timeout_s=_SCORE_S)
    rewards = watch.records.rewards
    shown = plan.system.figures([rewards[name] for name in sampled]) if plan.system.figures else {}
    of = normalised if plan.system.measure is None else plan.system.measure.of
    score = _Score(mean_reward(rewards, sampled, of), mean_reward(rewards, greedy, of), shown)
    found = f"sampled {score.sampled:.3f}, greedy {score.greedy:.3f}"
    report(f"version {version} on {plan.heldout_tasks} held-out tasks: {found}")
    return score


async def _learn(
    rollouts: RolloutConfig, attempts: Attempts[Any], plan: DemoPlan, watch: RunWatcher, report: ReportStatus
) -> SamplingReport:
    """Sample until the last step, or until attempts at a task no longer differ; returns what the sampler did."""
    stop = asyncio.Event()
    sampler = asyncio.create_task(run_rollouts(rollouts, plan.system.tasks, attempts, stop=stop))
    progress = asyncio.create_task(_report_steps(plan, watch, report))
    try:
        await asyncio.wait([sampler, progress], return_when=asyncio.FIRST_COMPLETED)
        if sampler.done():
            sampler.result()
            raise StackError("The sampler stopped before the last step: every task was attempted. Take fewer --steps.")
        await progress
    finally:
        stop.set()
        progress.cancel()
        await asyncio.gather(sampler, progress, return_exceptions=True)
    last = max(watch.records.steps, default=0)
    await watch.until(
        lambda records: records.served >= last, what=f"the engine to serve version {last}", timeout_s=_SERVE_S
    )
    return sampler.result()


async def _report_steps(plan: DemoPlan, watch: RunWatcher, report: ReportStatus) -> None:
    """Report a line every few steps, until the last step, or until attempts at a task no longer differ."""
    shown, every = 0, max(1, plan.steps // 15)
    while shown < plan.steps:
        wanted = min(shown + every, plan.steps)

        def ended(records: RunRecords, wanted: int = wanted) -> bool:
            return _is_rewarded(records, wanted) or exhausted(records, plan)

        await watch.until(ended, what=f"step {wanted}", timeout_s=_STEP_S * every)
        if not _is_rewarded(watch.records, wanted):
            last = max(watch.records.steps, default=0)
            report(
                f"step {last:>3} was the last: in {len(watch.records.zero_variance)} groups in a row all attempts "
                "earned the same, so there is nothing to learn from them"
            )
            return
        shown = wanted
        served = watch.records.served
        report(f"step {wanted:>3} of {plan.steps}   {_line(watch.records, wanted)}   version {served} served")


def exhausted(records: RunRecords, plan: DemoPlan) -> bool:
    """Whether no group has had variance for so long that the run learns nothing more: its policy solves every task, or
    has collapsed and solves none."""
    return len(records.zero_variance) >= _EXHAUSTED * plan.groups_per_step


def _is_rewarded(records: RunRecords, step: int) -> bool:
    """Whether ``step`` has been made, and all rewards of what it trained are known."""
    return step in records.steps and all(name in records.rewards for name in _trained(records, step))


def _trained(records: RunRecords, step: int) -> list[str]:
    return [name for group in records.steps[step].groups for name in group.trajectory_ids]


def _line(records: RunRecords, step: int) -> str:
    """Returns a step's figures; its reward is a share of the maximum, over the trajectories that it trained."""
    metrics = records.steps[step].metrics
    reward = mean_reward(records.rewards, _trained(records, step))
    return f"reward {reward:.2f}   staleness ≤ {metrics['staleness_max']:.0f}   loss {metrics['loss']:+.4f}"


async def _ledger_at_rest(bootstrap: str, report: ReportStatus) -> Ledger:
    """Returns the ledger once no trajectory is in the stream processors; those that wait for a step stay pending."""
    deadline = time.monotonic() + _DRAIN_S
    while True:
        ledger = await read_ledger(bootstrap)
        moving = sum(count for stage, count in ledger.pending_by.items() if stage != "untrained")
        if not moving or time.monotonic() > deadline:
            return ledger
        report(f"{moving} trajectories are still being processed")
        await asyncio.sleep(1.0)
