"""Reinforcement learning without servers: samples, rewards, groups and trains in one process, step by step.

    curve = learn(model, episodes, LearnSettings(sampling, trainer=trainer_settings(steps=60, substeps=4)), held_out)
    curve.held_out[-1].greedy["reward"]

``episodes(number, version)`` makes an attempt at training task ``number`` for policy ``version``; all members of a
group have the same number. Groups are decided by ``streams/grouping``, batches and steps are the trainer's own. Unlike
a live run, a step trains on samples of the current version only.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import PreTrainedModel

from headrace.streams.grouping.group_policy import GroupPolicy
from headrace.trainer.batches.batch import AdmittedGroup, make_batch
from headrace.trainer.batches.recipe import prepare_groups
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.model import attention
from tests.simulator.records import assembled, decided_group
from tests.simulator.sampling import Attempt, E, SamplingSettings, play

Episodes = Callable[[int, int], E]
"""Task number and policy version → an attempt at the task."""
Measure = Callable[[Sequence[Attempt[E]]], Mapping[str, float]]
"""Attempts that have ended → named values for the curve."""

_SEED_STRIDE = 1_000_003


def mean_reward(attempts: Sequence[Attempt[E]]) -> dict[str, float]:
    """Returns ``reward``, the mean over ``attempts``: the default measure."""
    return {"reward": fmean(attempt.episode.reward() for attempt in attempts)}


def trainer_settings(*, learning_rate: float = 8e-4, **changes: Any) -> TrainerConfig:
    """Returns the trainer's settings with the demo's learning rate, for models of less than a million parameters."""
    chosen: dict[str, Any] = {"constant_length": 16, "groups_per_step": 16, "steps": 60} | changes
    return TrainerConfig(
        "localhost:1",
        "simulated",
        Path(),
        Path(),
        "file:///nowhere",
        optimizer=OptimizerSettings(learning_rate=learning_rate),
        **chosen,
    )


@dataclass(frozen=True, slots=True)
class LearnSettings:
    """One run."""

    sampling: SamplingSettings
    """How attempts are sampled."""
    trainer: TrainerConfig = field(default_factory=trainer_settings)
    """Loss, optimiser, ``substeps``, ``groups_per_step``, ``steps``, ``seed``; the control: ``shuffle_advantages``."""
    group_size: int = 8
    """Attempts at each task."""
    policy: GroupPolicy = field(default_factory=GroupPolicy)
    """Baseline and tolerance of groups."""
    refill_rounds: int = 1
    """How often ``groups_per_step`` groups are sampled to replace those without a gradient. 1: they are dropped."""
    maximum: float | None = None
    """Largest possible reward, which distinguishes groups that all succeeded."""
    first_task: int = 0
    """Number of the first training task; no task is attempted by two groups."""
    evaluate_every: int | None = None
    """Steps between evaluations; ``None``: only before the first step and after the last."""
    held_out_tasks: int = 256
    """Held-out tasks of an evaluation."""

    def __post_init__(self) -> None:
        if self.group_size < 2 or self.refill_rounds < 1 or self.held_out_tasks < 1:
            raise ValueError("group_size must be at least 2, refill_rounds and held_out_tasks at least 1")
        if self.trainer.steps is None or (self.evaluate_every is not None and self.evaluate_every < 1):
            raise ValueError("trainer.steps must be set, and evaluate_every at least 1")


@dataclass(frozen=True, slots=True)
class Step:
    """A step, as its samples were before it."""

    version: int
    """Policy that sampled and was trained."""
    values: Mapping[str, float]
    """The measure of all its attempts, including those of groups that were dropped."""
    dropped: Mapping[str, int]
    """Groups without a gradient, by reason."""
    groups: int
    """Groups that were trained."""
    metrics: Mapping[str, float]
    """The learner's; empty if no group was trained."""
    seconds: tuple[float, float]
    """Seconds of sampling and of training."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy's values on held-out tasks."""

    version: int
    greedy: Mapping[str, float]
    sampled: Mapping[str, float]


@dataclass(slots=True)
class Curve:
    """What a run has learnt."""

    steps: list[Step] = field(default_factory=list)
    held_out: list[Evaluation] = field(default_factory=list)


def learn(
    model: PreTrainedModel,
    episodes: Episodes[E],
    settings: LearnSettings,
    held_out: Episodes[E] | None = None,
    measure: Measure[E] = mean_reward,
    report: Callable[[Step | Evaluation], None] = lambda _: None,
    after_group: Callable[[int, Sequence[Attempt[E]]], None] = lambda number, members: None,
) -> Curve:
    """Train ``model`` in place; returns the curve. ``after_group`` gets each group's task number and ended attempts
    before the next step's tasks are made: for a curriculum.

    ``held_out(number, version)`` makes an attempt at held-out task ``number`` in [0, ``held_out_tasks``). A step whose
    groups all lack a gradient trains nothing; the version counts it all the same, for schedules over versions. Raises
    what the learner raises if training diverges.
    """
    curve, seed, steps = Curve(), settings.trainer.seed, settings.trainer.steps or 0
    with attention.packed(model):
        learner = Learner(model, settings.trainer.learner)
        task = settings.first_task
        for version in range(steps + 1):
            due = version in (0, steps) or (settings.evaluate_every and version % settings.evaluate_every == 0)
            if held_out is not None and due:
                curve.held_out.append(evaluate(model, held_out, settings, version, measure))
                report(curve.held_out[-1])
            if version == steps:
                break
            step, task = _step(model, learner, episodes, settings, measure, after_group, version, task, seed)
            curve.steps.append(step)
            report(step)
    return curve


def evaluate(
    model: PreTrainedModel,
    held_out: Episodes[E],
    settings: LearnSettings,
    version: int = 0,
    measure: Measure[E] = mean_reward,
) -> Evaluation:
    """Returns ``measure`` over one greedy and one sampled attempt at each held-out task."""
    found = {}
    for greedy in (True, False):
        attempts = [held_out(number, version) for number in range(settings.held_out_tasks)]
        seed = settings.trainer.seed * _SEED_STRIDE + version
        found[greedy] = measure(play(model, attempts, settings.sampling, seed=seed, greedy=greedy))
    return Evaluation(version, found[True], found[False])


def _step(
    model: PreTrainedModel,
    learner: Learner,
    episodes: Episodes[E],
    settings: LearnSettings,
    measure: Measure[E],
    after_group: Callable[[int, Sequence[Attempt[E]]], None],
    version: int,
    task: int,
    seed: int,
) -> tuple[Step, int]:
    """Take one step from task number ``task`` on; returns it and the next task number."""
    began = time.monotonic()
    wanted, size = settings.trainer.groups_per_step, settings.group_size
    groups: list[AdmittedGroup] = []
    attempts: list[Attempt[E]] = []
    dropped: Counter[str] = Counter()
    for sampling_round in range(settings.refill_rounds):
        if len(groups) >= wanted:
            break
        numbers = range(task, task + wanted)
        task += wanted
        made = [episodes(number, version) for number in numbers for _ in range(size)]
        round_seed = (seed * _SEED_STRIDE + version) * settings.refill_rounds + sampling_round + 1
        played = play(model, made, settings.sampling, seed=round_seed)
        attempts += played
        for place, number in enumerate(numbers):
            members = played[place * size : (place + 1) * size]
            after_group(number, members)
            group = _group(members, number, version, settings)
            if not isinstance(group, AdmittedGroup):
                dropped[group] += 1
            elif len(groups) < wanted:
                groups.append(group)
    sampled = time.monotonic()
    metrics: Mapping[str, float] = {}
    if groups:
        metrics = learner.step(make_batch(prepare_groups(groups, settings.trainer.recipe, step=version)), version)
    seconds = (sampled - began, time.monotonic() - sampled)
    return Step(version, measure(attempts), dropped, len(groups), metrics, seconds), task


def _group(members: Sequence[Attempt[E]], number: int, version: int, settings: LearnSettings) -> AdmittedGroup | str:
    temperature = settings.sampling.temperature
    trajectories = [
        assembled(f"t-{number}-{place}", member.calls, version=version, temperature=temperature)
        for place, member in enumerate(members)
    ]
    rewards = [member.episode.reward() for member in members]
    decided = decided_group(f"g-{number}", trajectories, rewards, settings.policy, maximum=settings.maximum)
    return decided if isinstance(decided, AdmittedGroup) else str(decided)
