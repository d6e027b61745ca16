"""Runs concurrent attempts at tasks: groups for training, as fast as the trainer consumes them, or an evaluation.

A group is eight attempts at one training task. New groups begin only within the trainer's budget (``backpressure``), so
that samples are still fresh when they are trained. What is attempted is a :class:`TaskSource`, who makes the attempts
an :class:`Attempts`: the sampler is the same for every system.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from headrace.agents.backpressure import Backpressure
from headrace.agents.policy import PolicyError
from headrace.agents.rollouts.attempts import Attempt, Attempts, TaskT
from headrace.agents.rollouts.tasks import TaskSource, training_number
from headrace.schemas.events import Purpose
from headrace.schemas.ids import uuid7

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Settings of a sampler."""

    bootstrap: str
    """Kafka address."""
    vllm_url: str
    """Address of the inference engine."""
    run: str
    """Training run."""
    seed: int = 0
    """Selects the training tasks: each seed has a million of its own, none used by the base model's demonstrations."""
    first_task: int = 0
    """Number of tasks to skip, one per group that earlier samplers of the run began, so that no task repeats."""
    group_size: int = 8
    """Attempts at each task."""
    concurrency: int = 64
    """Attempts in flight."""
    max_groups: int = 64
    """Largest number of open groups (neither trained nor rejected), in addition to the trainer's budget."""
    share: float = 1.0
    """This sampler's share of the trainer's budget; the shares of all samplers of a run should add up to 1."""
    max_failures: int = 32
    """Number of consecutive attempts that fail because of the engine before the sampler gives up."""

    def __post_init__(self) -> None:
        training_number(self.seed, self.first_task)
        for name in ("group_size", "concurrency", "max_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}: it must be above 0 and at most 1")


async def run_rollouts(
    config: RolloutConfig, source: TaskSource[TaskT], attempts: Attempts[TaskT], *, stop: asyncio.Event
) -> int:
    """Attempt training tasks in groups until ``stop``; return the number of groups begun.

    Attempts in flight at ``stop`` are completed, so that their groups are complete. An attempt that fails because of
    the engine becomes a failed trajectory of its group; after ``max_failures`` consecutive ones an ``ExceptionGroup``
    of ``PolicyError`` is raised.
    """
    async with AsyncExitStack() as stack:
        runner = _Runner(config)
        backpressure = await stack.enter_async_context(
            Backpressure(config.bootstrap, run=config.run, limit=config.max_groups, share=config.share)
        )
        group = await stack.enter_async_context(asyncio.TaskGroup())
        begun = 0
        while await _has_room(backpressure, stop):
            task = source.training(training_number(config.seed, config.first_task + begun))
            start = {"group_id": uuid7(), "group_size": config.group_size, "task": task.facts}
            members = await asyncio.gather(
                *(attempts.prepare(task, temperature=1.0, start=start) for _ in range(config.group_size))
            )
            backpressure.opened([each.trajectory_id for each in members])
            begun += 1
            for attempt in members:
                await runner.slot()
                group.create_task(runner.run(attempt))
    return begun


async def run_evaluation(
    config: RolloutConfig,
    attempts: Attempts[TaskT],
    tasks: Sequence[TaskT],
    *,
    greedy: bool,
    labels: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make one attempt at each of ``tasks``, marked as an evaluation that must never be trained on; return their ids.

    With ``greedy`` the likeliest token is always chosen, otherwise tokens are sampled at temperature 1. The
    trajectory's task labels contain the mode as ``evaluation``, along with ``labels``.
    """
    temperature, name = (0.0, "greedy") if greedy else (1.0, "sampled")
    runner, trajectory_ids = _Runner(config), []
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            await runner.slot()
            start = {"purpose": Purpose.EVALUATE, "task": {**task.facts, **(labels or {}), "evaluation": name}}
            attempt = await attempts.prepare(task, temperature=temperature, start=start)
            trajectory_ids.append(attempt.trajectory_id)
            group.create_task(runner.run(attempt))
    return trajectory_ids


class _Runner:
    """Limits the attempts in flight, and the consecutive failures."""

    def __init__(self, config: RolloutConfig) -> None:
        self._max_failures = config.max_failures
        self._slots = asyncio.Semaphore(config.concurrency)
        self._failures = 0
        """Number of consecutive attempts that failed because of the engine."""

    async def slot(self) -> None:
        """Wait until one more attempt may be in flight; ``run`` releases the slot."""
        await self._slots.acquire()

    async def run(self, attempt: Attempt) -> None:
        """Run an attempt."""
        try:
            await attempt.run()
            self._failures = 0
        except PolicyError as error:
            self._failures += 1
            log.warning("attempt %s failed: %s", attempt.trajectory_id, error)
            if self._failures >= self._max_failures:
                raise
        finally:
            self._slots.release()


async def _has_room(backpressure: Backpressure, stop: asyncio.Event) -> bool:
    """Wait until another group may begin, or for ``stop``; return whether it may begin."""
    waiting, stopped = asyncio.create_task(backpressure.room()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return False
        await waiting
        return True
    finally:
        for each in (waiting, stopped):
            each.cancel()
        await asyncio.gather(waiting, stopped, return_exceptions=True)
