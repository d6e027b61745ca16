"""What an environment is to headrace: it has tasks, runs a rollout with a policy behind an address, and scores it.

    task    = await environment.next_task()                    # task "9f3c…" of gsm8k
    rollout = await environment.attempt(task, seat)            # seat: http://…/s/5d0c…/v1, model policy, temperature 1
    rollout.rewards                                            # {"correct": Part(1.0, weight=1.0)}

The environment calls the policy as any program calls a model. Tokens, log-probabilities and policy versions are
recorded by the gateway alone.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from headrace.schemas.events import EndStatus


@dataclass(frozen=True, slots=True)
class EnvironmentTask:
    """A task of an environment."""

    number: int
    """Its place in the order of tasks, from 0; a task of a later epoch has a number of its own."""
    task_id: str
    """Stable identity: the same in every epoch and every process."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Labels for analysis."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rollout finds the policy."""

    session: str
    """Session at the gateway; part of ``base_url``."""
    base_url: str
    """Address of OpenAI's API for this session, with ``/v1``."""
    model: str
    """Name of the model."""
    sampling: Mapping[str, Any]
    """Sampling parameters in OpenAI's names."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a reward."""

    score: float
    """What the environment gave."""
    weight: float = 1.0
    """Its weight in the sum."""


class Cause(StrEnum):
    """Who can have brought about a failure."""

    ROLLOUT = "rollout"
    """Possibly the policy: it ran out of time, or the harness or the environment did not bear what it did."""
    INFRASTRUCTURE = "infrastructure"
    """Not the policy: the engine, the gateway, the sandbox or the settings."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout has no reward."""

    cause: Cause
    """Who can have brought it about."""
    label: str
    """Stable label, the environment's own name of the error: ``TaskError``, ``rollout_timeout`` …"""
    message: str
    """What was said about it."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """What became of a rollout."""

    status: EndStatus = EndStatus.COMPLETED
    """How it ended; ``FAILED`` if there is a failure."""
    rewards: Mapping[str, Part] = field(default_factory=dict)
    """Parts of the reward by name."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the environment measured besides."""
    stop: str = ""
    """The environment's own name of why it ended."""
    failure: Failure | None = None
    """Why there is no reward."""


def failed(cause: Cause, label: str, message: str, metrics: Mapping[str, float] | None = None) -> RolloutResult:
    """Return the result of a rollout without a reward."""
    return RolloutResult(EndStatus.FAILED, {}, metrics or {}, label, Failure(cause, label, message))


class EnvironmentUnusable(RuntimeError):
    """The environment cannot be used; the message says why and what to do."""


class Environment(Protocol):
    """An environment that serves."""

    @property
    def name(self) -> str:
        """Its name, for example ``gsm8k``."""
        ...

    @property
    def version(self) -> str:
        """Version of what runs the rollouts, for ``harness_version``."""
        ...

    async def next_task(self) -> EnvironmentTask | None:
        """Return the next task, ``None`` after the last. Raises :class:`EnvironmentUnusable`."""
        ...

    async def attempt(self, task: EnvironmentTask, seat: Seat) -> RolloutResult:
        """Run and score one rollout. A failure of one rollout is a result. Raises :class:`EnvironmentUnusable`."""
        ...

    async def finished(self, task: EnvironmentTask) -> None:
        """Release a task that is attempted no more."""
        ...


OpenEnvironment = AbstractAsyncContextManager[Environment]
"""Starts or connects to an environment at its entry, ends it at its exit."""
