"""Attempts at tasks, many at once: groups for training as fast as the trainer takes them, or a measurement.

A group is eight attempts at one training task. New groups begin only within the budget that the trainer grants
(``backpressure``), so that what is sampled is still fresh when it is trained.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from headrace.agents.backpressure import Backpressure
from headrace.agents.conversation import Conversation
from headrace.agents.policy import PolicyClient, PolicyError
from headrace.agents.sdk import Headrace
from headrace.agents.search.episode import run_episode
from headrace.agents.search.harness import HARNESS_VERSION, Limits
from headrace.agents.search.tasks import Split, Task, make_task, task_id
from headrace.schemas.events import Purpose
from headrace.schemas.ids import uuid7

AGENT = "search"
"""Name of the reference agent in every ``trajectory.started``; the reward is chosen by it."""

TASKS_PER_SEED = 1_000_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Where to sample, and how much at once."""

    bootstrap: str
    """Kafka address."""
    vllm_url: str
    """The inference engine."""
    run: str
    """Training run."""
    seed: int = 0
    """Chooses the training tasks: each seed has a million of its own, none used by the base model's demonstrations."""
    first_task: int = 0
    """Tasks of the seed to skip: how many groups earlier samplers of the run began, so that no task comes twice."""
    group_size: int = 8
    """Attempts at each task."""
    concurrency: int = 64
    """Attempts in flight."""
    max_groups: int = 64
    """Groups begun that are neither trained nor rejected yet: the sampler's own bound, beside the trainer's budget."""
    share: float = 1.0
    """Part of the trainer's budget that is this sampler's; those of all samplers of a run should add up to 1."""
    max_failures: int = 32
    """Attempts that fail one after another for want of the engine before the sampler gives up."""
    limits: Limits = field(default_factory=Limits)
    """Rules of an episode."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 998:
            raise ValueError(f"seed {self.seed} is outside [0, 998): each seed has its own million of task numbers")
        for name in ("group_size", "concurrency", "max_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}: it must be above 0 and at most 1")

    def training_task_id(self, number: int) -> str:
        """The id of the seed's ``number``-th training task."""
        # The first million is the demonstrations'.
        return task_id(Split.TRAIN, (self.seed + 1) * TASKS_PER_SEED + number % TASKS_PER_SEED)


async def run_rollouts(config: RolloutConfig, *, stop: asyncio.Event) -> int:
    """Attempt training tasks in groups until ``stop``; returns how many groups were begun.

    Attempts in flight at ``stop`` are finished, so that no group stays incomplete for want of patience. An attempt
    that the engine fails ends as a failed trajectory and counts in its group; after ``max_failures`` of them in a
    row an ``ExceptionGroup`` of ``PolicyError`` is raised.
    """
    async with AsyncExitStack() as stack:
        attempts = await stack.enter_async_context(_Attempts(config))
        backpressure = await stack.enter_async_context(
            Backpressure(config.bootstrap, run=config.run, limit=config.max_groups, share=config.share)
        )
        group = await stack.enter_async_context(asyncio.TaskGroup())
        begun = 0
        while await _begun(backpressure, trajectory_ids := [uuid7() for _ in range(config.group_size)], stop):
            task = make_task(config.training_task_id(config.first_task + begun))
            start = {"group_id": uuid7(), "group_size": config.group_size, "task": task.facts}
            begun += 1
            for trajectory_id in trajectory_ids:
                await attempts.slot()
                group.create_task(attempts.run(task, trajectory_id, 1.0, start))
    return begun


async def run_evaluation(
    config: RolloutConfig, tasks: Sequence[Task], *, greedy: bool, labels: Mapping[str, Any] | None = None
) -> list[str]:
    """One attempt at each of ``tasks``, marked as a measurement that must never be trained on; returns their ids.

    ``greedy`` takes the likeliest token each time, else tokens are sampled at temperature 1; which one stands in the
    trajectory's task labels as ``evaluation``, beside ``labels``.
    """
    temperature, name = (0.0, "greedy") if greedy else (1.0, "sampled")
    trajectory_ids = [uuid7() for _ in tasks]
    async with _Attempts(config) as attempts, asyncio.TaskGroup() as group:
        for task, trajectory_id in zip(tasks, trajectory_ids, strict=True):
            await attempts.slot()
            start = {"purpose": Purpose.EVALUATE, "task": {**task.facts, **(labels or {}), "evaluation": name}}
            group.create_task(attempts.run(task, trajectory_id, temperature, start))
    return trajectory_ids


def held_out_tasks(count: int, first: int = 0) -> list[Task]:
    """Held-out tasks by number; their questions and corpora never occur in training."""
    return [make_task(task_id(Split.HELD_OUT, number)) for number in range(first, first + count)]


class _Attempts:
    """The connections that attempts share, and how many may be in flight."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._sdk = Headrace(config.bootstrap, source="search-agent")
        self._client = PolicyClient(config.vllm_url, max_connections=config.concurrency)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._failures = 0
        """Attempts that the engine failed since the last that it did not."""

    async def slot(self) -> None:
        """Wait until one more attempt may be in flight; ``run`` gives the slot back."""
        await self._slots.acquire()

    async def run(self, task: Task, trajectory_id: str, temperature: float, start: Mapping[str, Any]) -> None:
        """One attempt, noted from start to end. ``start`` is what ``trajectory.started`` says beside the task."""
        trajectory = self._sdk.trajectory(
            task_id=task.task_id,
            trajectory_id=trajectory_id,
            agent=AGENT,
            harness_version=HARNESS_VERSION,
            run=self._config.run,
            **start,
        )
        try:
            async with trajectory:
                conversation = Conversation(self._client, trajectory)
                await run_episode(conversation, task, trajectory, temperature=temperature, limits=self._config.limits)
            self._failures = 0
        except PolicyError as error:
            self._failures += 1
            log.warning("attempt %s at %s failed: %s", trajectory_id, task.task_id, error)
            if self._failures >= self._config.max_failures:
                raise
        finally:
            self._slots.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        if not await self._sdk.aclose():
            log.error("not every event reached Kafka at %s: %s", self._config.bootstrap, self._sdk.stats)


async def _begun(backpressure: Backpressure, trajectory_ids: Sequence[str], stop: asyncio.Event) -> bool:
    """Wait until a group of these may begin or for ``stop``, whichever comes first; whether it may."""
    beginning, stopped = asyncio.create_task(backpressure.begin(trajectory_ids)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((beginning, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return False
        await beginning
        return True
    finally:
        for waiting in (beginning, stopped):
            waiting.cancel()
        await asyncio.gather(beginning, stopped, return_exceptions=True)
