"""Runs rollouts of an environment: groups of attempts at its tasks, each in a session of the gateway.

    tally = await run_environment(config, environment, sessions, backpressure, stop=stop)
    tally.outcomes, tally.failures                                   # 96 rollouts, {"rollout_timeout": 2}

A group is ``group_size`` rollouts of one task, with one ``group_id``. New groups begin only within the trainer's
budget.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.agents.environments.environment import (
    Cause,
    Environment,
    EnvironmentTask,
    EnvironmentUnusable,
    RolloutResult,
    Seat,
    failed,
)
from headrace.agents.environments.outcome import checked, end_of_session, outcome_of
from headrace.agents.environments.sessions import Session, SessionLost, Sessions, abort_session, open_group
from headrace.schemas.events import EndStatus, Purpose
from headrace.schemas.ids import uuid7

log = logging.getLogger(__name__)

AGENT = "environment"
"""Name of the agent in ``trajectory.started`` unless another is chosen; it selects the reward ``environment@1``."""


@dataclass(frozen=True, slots=True)
class RolloutsConfig:
    """Settings of a run of rollouts."""

    group_size: int = 8
    """Rollouts of each task."""
    groups: int | None = None
    """Groups to run; unset: until the tasks end."""
    concurrency: int = 16
    """Rollouts in flight."""
    agent: str = AGENT
    """Name of the agent; it selects the reward."""
    purpose: Purpose = Purpose.TRAIN
    """Whether the rollouts are training data or an evaluation, which has no groups."""
    model: str = "policy"
    """Name of the model."""
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    """Sampling parameters."""
    failed_outcome: float = 0.0
    """Outcome of a rollout that failed in a way that the policy can bring about: no more than the environment's lowest
    reward, or failing pays."""
    max_failures: int = 32
    """Consecutive rollouts that fail for other reasons before the run ends."""
    report_every_s: float = 30.0
    """Interval of the log lines, in seconds."""

    def __post_init__(self) -> None:
        for name in ("group_size", "concurrency", "max_failures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.groups is not None and self.groups < 1:
            raise ValueError(f"groups is {self.groups}: it must be at least 1")


class Room(Protocol):
    """When a group may begin: :class:`headrace.agents.backpressure.Backpressure`, or :class:`AlwaysRoom`."""

    async def room(self) -> None:
        """Wait until another group may begin."""
        ...

    def opened(self, trajectory_ids: list[str]) -> None:
        """Count a group of these trajectories as open."""
        ...


class AlwaysRoom:
    """For evaluations, and where no trainer runs."""

    async def room(self) -> None:
        """Return."""

    def opened(self, trajectory_ids: list[str]) -> None:
        """Count nothing."""


@dataclass(slots=True)
class Tally:
    """Counts of a run."""

    groups: int = 0
    """Groups begun."""
    ended: Counter[str] = field(default_factory=Counter)
    """Rollouts by status."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed rollouts by label."""
    outcomes: list[float] = field(default_factory=list)
    """Outcomes of the rollouts that have one, in the order of their ends."""

    @property
    def mean_outcome(self) -> float | None:
        """Mean of the outcomes."""
        return sum(self.outcomes) / len(self.outcomes) if self.outcomes else None

    def __str__(self) -> str:
        """One line for people."""
        mean = "none" if self.mean_outcome is None else f"{self.mean_outcome:.3f}"
        ended = ", ".join(f"{count} {name}" for name, count in sorted(self.ended.items())) or "none"
        failures = ", ".join(f"{name} {count}" for name, count in self.failures.most_common(8))
        tail = f" ({failures})" if failures else ""
        return f"{self.groups} groups begun; rollouts ended: {ended}{tail}; mean outcome {mean}"


async def run_environment(
    config: RolloutsConfig,
    environment: Environment,
    sessions: Sessions,
    room: Room,
    *,
    stop: asyncio.Event,
    tally: Tally | None = None,
) -> Tally:
    """Run groups until the tasks end, ``config.groups`` were begun, or ``stop``; then wait for those in flight.

    ``tally`` is counted in as rollouts end. Raises ``ExceptionGroup`` of :class:`EnvironmentUnusable` or
    :class:`GatewayFailed`; rollouts in flight are then ended as aborted.
    """
    run = _Run(config, environment, sessions, room, tally or Tally())
    reporting = asyncio.create_task(run.report())
    try:
        async with asyncio.TaskGroup() as tasks:
            while config.groups is None or run.tally.groups < config.groups:
                if not await _before_stop(room.room(), stop) or (task := await environment.next_task()) is None:
                    break
                await run.begin(task, tasks)
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    return run.tally


class _Run:
    """A run's state: the rollouts in flight, and failures in a row."""

    def __init__(
        self,
        config: RolloutsConfig,
        environment: Environment,
        sessions: Sessions,
        room: Room,
        tally: Tally,
    ) -> None:
        self.tally = tally
        self._config = config
        self._environment = environment
        self._sessions = sessions
        self._room = room
        self._slots = asyncio.Semaphore(config.concurrency)
        self._failures_in_a_row = 0

    async def begin(self, task: EnvironmentTask, tasks: asyncio.TaskGroup) -> None:
        """Open the sessions of a group, and start its rollouts as far as there are slots."""
        config = self._config
        about: dict[str, Any] = {
            "task_id": task.task_id,
            "agent": config.agent,
            "harness_version": self._environment.version,
            "purpose": config.purpose.value,
            "task": {"environment": self._environment.name, **task.facts},
        }
        if config.purpose is Purpose.TRAIN:
            about |= {"group_id": uuid7(), "group_size": config.group_size}
        members = await open_group(self._sessions, about, config.group_size, self._abort)
        self._room.opened([session.trajectory_id for session in members])
        self.tally.groups += 1
        remaining = [config.group_size]
        for number, session in enumerate(members):
            try:
                await self._slots.acquire()
            except BaseException:
                for waiting in members[number:]:
                    await self._abort(waiting)
                raise
            tasks.create_task(self._rollout(task, session, remaining))

    async def report(self) -> None:
        """Log how far the run is."""
        while True:
            await asyncio.sleep(self._config.report_every_s)
            log.info("%s: %s", self._environment.name, self.tally)

    async def _rollout(self, task: EnvironmentTask, session: Session, remaining: list[int]) -> None:
        """``remaining``: the one count of the group's rollouts that have not ended."""
        config = self._config
        seat = Seat(session.session, session.base_url, config.model, config.sampling)
        try:
            try:
                result = checked(await self._environment.attempt(task, seat))
            except BaseException:
                await self._abort(session)
                raise
            try:
                await self._sessions.end(session, end_of_session(result, config.failed_outcome))
            except SessionLost as error:
                result = failed(Cause.INFRASTRUCTURE, "session_lost", str(error))
            self._count(result, session)
        finally:
            self._slots.release()
            remaining[0] -= 1
            if not remaining[0]:
                await self._environment.finished(task)

    def _count(self, result: RolloutResult, session: Session) -> None:
        self.tally.ended[result.status.value] += 1
        outcome = outcome_of(result, self._config.failed_outcome)
        if outcome is not None:
            self.tally.outcomes.append(outcome)
        failure = result.failure
        if failure is not None:
            self.tally.failures[failure.label] += 1
            log.warning("rollout %s failed: %s: %s", session.trajectory_id, failure.label, failure.message)
        if failure is None or failure.cause is Cause.ROLLOUT:
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._config.max_failures:
            raise EnvironmentUnusable(
                f"{self._failures_in_a_row} rollouts in a row failed, the last one with {failure.label}: "
                f"{failure.message}"
            )

    async def _abort(self, session: Session) -> None:
        self.tally.ended[EndStatus.ABORTED.value] += 1
        await abort_session(self._sessions, session, answer={"stop": "aborted"})


async def _before_stop(waiting: Any, stop: asyncio.Event) -> bool:
    """Await ``waiting``, or ``stop``; return whether there was no stop."""
    waited, stopped = asyncio.ensure_future(waiting), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((waited, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return False
        await waited
        return True
    finally:
        for each in (waited, stopped):
            each.cancel()
        await asyncio.gather(waited, stopped, return_exceptions=True)
