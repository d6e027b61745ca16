"""Runs concurrent attempts at tasks: groups for training, as fast as the trainer consumes them, or an evaluation.

A group is eight attempts at one training task. New groups begin only within the trainer's budget (``backpressure``), so
that samples are still fresh when they are trained. Who makes the attempts is a value: the reference agent in this
process (:class:`PolicyAttempts`), or a program behind the gateway (``program_attempts``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from headrace.agents.backpressure import Backpressure
from headrace.agents.conversation import Conversation
from headrace.agents.policy import PolicyClient, PolicyError
from headrace.agents.sdk import Headrace
from headrace.agents.search.episode import run_episode
from headrace.agents.search.harness import HARNESS_VERSION, Limits
from headrace.agents.search.tasks import Split, Task, make_task, task_id
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import Purpose
from headrace.schemas.ids import uuid7

AGENT = "search"
"""Name of the reference agent in every ``trajectory.started``; it selects the reward."""

TASKS_PER_SEED = 1_000_000

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
        """Return the id of the seed's ``number``-th training task."""
        # Demonstrations use the first million.
        return task_id(Split.TRAIN, (self.seed + 1) * TASKS_PER_SEED + number % TASKS_PER_SEED)


class Attempt(Protocol):
    """An attempt that may begin."""

    @property
    def trajectory_id(self) -> str:
        """Its trajectory."""
        ...

    def run(self) -> Awaitable[None]:
        """Run and record it. Raises :class:`PolicyError` if it fails because of the engine."""
        ...


class Attempts(Protocol):
    """Makes attempts."""

    async def prepare(self, task: Task, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """Return an attempt at ``task``. ``start``: further fields of ``trajectory.started``."""
        ...


async def run_rollouts(config: RolloutConfig, attempts: Attempts, *, stop: asyncio.Event) -> int:
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
            task = make_task(config.training_task_id(config.first_task + begun))
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
    attempts: Attempts,
    tasks: Sequence[Task],
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


def held_out_tasks(count: int, first: int = 0) -> list[Task]:
    """Return held-out tasks by number; their questions and corpora never occur in training."""
    return [make_task(task_id(Split.HELD_OUT, number)) for number in range(first, first + count)]


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


class PolicyAttempts:
    """Attempts of the reference agent, in this process, with the engine's tokens. Use it in an ``async with``."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._sdk = Headrace(config.bootstrap, source="search-agent")
        self._client = PolicyClient(config.vllm_url, max_connections=config.concurrency)

    async def prepare(self, task: Task, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """See :class:`Attempts`."""
        trajectory = self._sdk.trajectory(
            task_id=task.task_id,
            trajectory_id=uuid7(),
            agent=AGENT,
            harness_version=HARNESS_VERSION,
            run=self._config.run,
            **start,
        )
        return _PolicyAttempt(self._client, task, trajectory, temperature, self._config.limits)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        if not await self._sdk.aclose():
            log.error("not every event reached Kafka at %s: %s", self._config.bootstrap, self._sdk.stats)


@dataclass(frozen=True, slots=True)
class _PolicyAttempt:
    client: PolicyClient
    task: Task
    trajectory: Trajectory
    temperature: float
    limits: Limits

    @property
    def trajectory_id(self) -> str:
        return self.trajectory.id

    async def run(self) -> None:
        async with self.trajectory:
            conversation = Conversation(self.client, self.trajectory)
            await run_episode(
                conversation, self.task, self.trajectory, temperature=self.temperature, limits=self.limits
            )


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
