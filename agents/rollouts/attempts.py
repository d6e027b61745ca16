"""Attempts at tasks: who makes them is a value. :class:`PolicyAttempts` makes them in this process, with the engine's
tokens; a program behind the gateway makes them elsewhere (``agents/search/program_attempts.py``).

    agent = Agent("search", HARNESS_VERSION, search_episode)
    async with PolicyAttempts(agent, kafka, engine, run="search-7", concurrency=64) as attempts:
        attempt = await attempts.prepare(task, temperature=1.0, start={"group_id": "g7", "group_size": 8})
        await attempt.run()
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from headrace.agents.conversation import Conversation
from headrace.agents.policy import PolicyClient
from headrace.agents.rollouts.fork import CannotFork, ForkPoint
from headrace.agents.rollouts.journal import Recorded
from headrace.agents.rollouts.replayed import ReplayedPolicy
from headrace.agents.rollouts.tasks import Task
from headrace.agents.sdk import Headrace
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import EndStatus, ModelCalled
from headrace.schemas.ids import uuid7
from headrace.schemas.model import Record

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
        """Run and record it. Raises :class:`headrace.agents.policy.PolicyError` if it fails because of the engine, and
        :class:`headrace.agents.sandbox.protocol.SandboxError` because of its sandbox.
        """
        ...


class Attempts(Protocol[TaskT_contra]):
    """Makes attempts."""

    async def prepare(self, task: TaskT_contra, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """Return an attempt at ``task``. ``start``: further fields of ``trajectory.started``."""
        ...


@runtime_checkable
class Restarts(Protocol[TaskT_contra]):
    """:class:`Attempts` that can continue, or end, what an ended process of the same sampler left half done. With
    others, the gateway that records an attempt also ends it."""

    def resume(self, task: TaskT_contra, left: Recorded, *, temperature: float) -> Attempt | None:
        """Return an attempt that continues from the last event in the log; ``None`` if that is not possible."""
        ...

    def abandon(self, left: Recorded) -> None:
        """End an attempt that nobody will continue, as ``restarted``."""
        ...


@runtime_checkable
class Forks(Protocol[TaskT_contra]):
    """:class:`Attempts` that can continue a recorded attempt, in trajectories of their own."""

    async def fork(
        self, task: TaskT_contra, point: ForkPoint, *, temperature: float, start: Mapping[str, Any]
    ) -> Attempt:
        """Return an attempt that continues from ``point``. ``start``: as in :meth:`Attempts.prepare`. Raises
        :class:`headrace.agents.rollouts.fork.CannotFork`."""
        ...


class Episode(Protocol[TaskT_contra]):
    """Attempts a task with a conversation, and records what happens and the end in the trajectory."""

    def __call__(
        self, conversation: Conversation, task: TaskT_contra, trajectory: Trajectory, temperature: float, /
    ) -> Awaitable[object]:
        """Run the episode. Errors of the policy propagate."""
        ...


class Resume(Protocol[TaskT_contra]):
    """Continues an episode: as :class:`Episode`, with the recorded events of the attempt, its start included.

    Conversation and trajectory repeat: answers and events that the log has come from there, and are not sent again. So
    a system runs its episode from the start, after it has restored what its tools changed. Trajectories of sub-agents
    do not repeat: an episode that would start them again must not be resumed.
    """

    def __call__(
        self,
        conversation: Conversation,
        task: TaskT_contra,
        trajectory: Trajectory,
        temperature: float,
        events: Sequence[Record],
        /,
    ) -> Awaitable[object]:
        """Run the episode to its end."""
        ...


class Fork(Protocol[TaskT_contra]):
    """Continues a recorded attempt in another trajectory: as :class:`Episode`, from the parent's events up to a point.

    The first model call must have the whole context at that point, without a prefix. An episode that depends on its
    task and the policy's answers alone runs from its start in a ``RepeatedConversation``
    (``fork.py``); a system whose tools have effects restores its environment.
    """

    def __call__(
        self,
        conversation: Conversation,
        task: TaskT_contra,
        trajectory: Trajectory,
        temperature: float,
        point: ForkPoint,
        /,
    ) -> Awaitable[object]:
        """Run the episode to its end."""
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
    resume: Resume[TaskT] | None = None
    """Continues its loop after a restart of the sampler; ``None`` if it cannot: then the attempt is replaced."""
    fork: Fork[TaskT] | None = None
    """Continues a recorded attempt in another trajectory; ``None`` if it cannot."""


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
        trajectory = self._begun(task, start)

        async def run() -> None:
            await self._agent.episode(Conversation(self._client, trajectory), task, trajectory, temperature)

        return _PolicyAttempt(trajectory, run)

    async def fork(self, task: TaskT, point: ForkPoint, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """See :class:`Forks`."""
        agent, parent, fork = self._agent, point.started, self._agent.fork
        if fork is None:
            raise CannotFork(f"attempts of the agent {agent.name} cannot be continued from a point in their middle")
        if (parent.agent, parent.harness_version) != (agent.name, agent.harness_version):
            raise CannotFork(
                f"trajectory {point.trajectory_id} was made by {parent.agent} with the harness "
                f"{parent.harness_version}, and this is {agent.name} with {agent.harness_version}"
            )
        trajectory = self._begun(task, start)

        async def run() -> None:
            await fork(Conversation(self._client, trajectory), task, trajectory, temperature, point)

        return _PolicyAttempt(trajectory, run)

    def _begun(self, task: TaskT, start: Mapping[str, Any]) -> Trajectory:
        return self._sdk.trajectory(
            task_id=task.task_id,
            trajectory_id=uuid7(),
            agent=self._agent.name,
            harness_version=self._agent.harness_version,
            run=self._run,
            **start,
        )

    def resume(self, task: TaskT, left: Recorded, *, temperature: float) -> Attempt | None:
        """See :class:`Restarts`. An attempt with missing events, or with another harness, is not continued."""
        resume, events = self._agent.resume, [left.events[number] for number in sorted(left.events)]
        same = (left.started.agent, left.started.harness_version) == (self._agent.name, self._agent.harness_version)
        if resume is None or not left.is_whole or not same:
            return None
        trajectory = self._sdk.continued(left.trajectory_id, left.known, replays=True)
        policy = ReplayedPolicy(self._client, [event for event in events if isinstance(event, ModelCalled)])

        async def run() -> None:
            await resume(Conversation(policy, trajectory), task, trajectory, temperature, events)

        return _PolicyAttempt(trajectory, run)

    def abandon(self, left: Recorded) -> None:
        """See :class:`Restarts`."""
        why = "the sampler's process ended during the attempt, which its successor did not continue"
        self._sdk.continued(left.trajectory_id, left.known, replays=False).end(EndStatus.RESTARTED, error=why)

    async def __aenter__(self) -> Self:
        await self._sdk.send_left_behind()  # before the log says where a predecessor was
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        if not await self._sdk.aclose():
            log.error("not every event reached Kafka at %s: %s", self._bootstrap, self._sdk.stats)


@dataclass(frozen=True, slots=True)
class _PolicyAttempt:
    trajectory: Trajectory
    episode: Callable[[], Awaitable[None]]

    @property
    def trajectory_id(self) -> str:
        return self.trajectory.id

    async def run(self) -> None:
        async with self.trajectory:
            await self.episode()
