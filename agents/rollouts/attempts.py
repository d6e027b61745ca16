"""Attempts at tasks: who makes them is a value. :class:`PolicyAttempts` makes them in this process, with the engine's
tokens; a program behind the gateway makes them elsewhere (``agents/search/program_attempts.py``).

    agent = Agent("search", HARNESS_VERSION, search_episode)
    async with PolicyAttempts(agent, kafka, engine, run="search-7", concurrency=64) as attempts:
        attempt = await attempts.prepare(task, temperature=1.0, start={"group_id": "g7", "group_size": 8})
        await attempt.run()
"""

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.agents.conversation import Conversation
from headrace.agents.policy import PolicyClient
from headrace.agents.rollouts.tasks import Task
from headrace.agents.sdk import Headrace
from headrace.agents.trajectory import Trajectory
from headrace.schemas.ids import uuid7

log = logging.getLogger(__name__)

TaskT = TypeVar("TaskT", bound=Task)
TaskT_contra = TypeVar("TaskT_contra", bound=Task, contravariant=True)


class Attempt(Protocol):
    """An attempt that may begin."""

    @property
    def trajectory_id(self) -> str:
        """Its trajectory."""
        ...

    def run(self) -> Awaitable[None]:
        """Run and record it. Raises :class:`headrace.agents.policy.PolicyError` if it fails because of the engine."""
        ...


class Attempts(Protocol[TaskT_contra]):
    """Makes attempts."""

    async def prepare(self, task: TaskT_contra, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """Return an attempt at ``task``. ``start``: further fields of ``trajectory.started``."""
        ...


class Episode(Protocol[TaskT_contra]):
    """Attempts a task with a conversation, and records what happens and the end in the trajectory."""

    def __call__(
        self, conversation: Conversation, task: TaskT_contra, trajectory: Trajectory, temperature: float, /
    ) -> Awaitable[object]:
        """Run the episode. Errors of the policy propagate."""
        ...


@dataclass(frozen=True, slots=True)
class Agent(Generic[TaskT]):
    """An agent that runs in this process."""

    name: str
    """Its name in every ``trajectory.started``; it selects the reward."""
    harness_version: str
    """Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""
    episode: Episode[TaskT]
    """Its loop, limits included."""


class PolicyAttempts(Generic[TaskT]):
    """Attempts of an agent in this process, with the engine's tokens. Use it in an ``async with``."""

    def __init__(self, agent: Agent[TaskT], bootstrap: str, vllm_url: str, *, run: str, concurrency: int) -> None:
        """``bootstrap``: Kafka address. ``vllm_url``: address of the inference engine. ``run``: training run.
        ``concurrency``: attempts in flight."""
        self._agent = agent
        self._bootstrap = bootstrap
        self._run = run
        self._sdk = Headrace(bootstrap, source=f"{agent.name}-agent")
        self._client = PolicyClient(vllm_url, max_connections=concurrency)

    async def prepare(self, task: TaskT, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """See :class:`Attempts`."""
        trajectory = self._sdk.trajectory(
            task_id=task.task_id,
            trajectory_id=uuid7(),
            agent=self._agent.name,
            harness_version=self._agent.harness_version,
            run=self._run,
            **start,
        )
        return _PolicyAttempt(self._client, self._agent.episode, task, trajectory, temperature)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        if not await self._sdk.aclose():
            log.error("not every event reached Kafka at %s: %s", self._bootstrap, self._sdk.stats)


@dataclass(frozen=True, slots=True)
class _PolicyAttempt(Generic[TaskT]):
    client: PolicyClient
    episode: Episode[TaskT]
    task: TaskT
    trajectory: Trajectory
    temperature: float

    @property
    def trajectory_id(self) -> str:
        return self.trajectory.id

    async def run(self) -> None:
        async with self.trajectory:
            await self.episode(Conversation(self.client, self.trajectory), self.task, self.trajectory, self.temperature)
