"""Attempts at deletion tasks by any model: an environment of :mod:`headrace.agents.environments`, so that groups,
sessions, the trainer's budget and outcomes are those of every environment.

    async with deletion_environment(DeletionConfig(tasks, store=Path("sandboxes"))) as environment:
        task = await environment.next_task()
        await environment.attempt(task, seat)      →  RolloutResult(rewards={"deletion": Part(1.0)}, stop="submitted")

The model talks by OpenAI's Chat Completions with tools. The reward is 1 if the submitted files pass every test that
passes with the original, else 0; without ``submit`` it is 0.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from headrace.agents.coder.deletion.actions import schemas
from headrace.agents.coder.deletion.harness import HARNESS_VERSION, DeletionHarness, DeletionLimits
from headrace.agents.coder.deletion.installation import Interpreter, NoSuchModule
from headrace.agents.coder.deletion.packages import PackageUnusable
from headrace.agents.coder.deletion.suite import SuiteOutcome
from headrace.agents.coder.deletion.tasks import DeletionTask, interpreters_of, limits_of, verdict
from headrace.agents.coder.deletion.workspace import Workspace
from headrace.agents.environments.environment import (
    Cause,
    EnvironmentTask,
    EnvironmentUnusable,
    Part,
    RolloutResult,
    Seat,
    failed,
)
from headrace.agents.environments.policy_calls import PolicyAway, PolicyCalls, PolicyRefused
from headrace.agents.environments.sessions import NOT_CHECKED
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import Provider, ProviderUnavailable, SandboxError
from headrace.schemas.events import EndStatus


@dataclass(frozen=True, slots=True)
class DeletionConfig:
    """Which tasks are attempted, and how."""

    tasks: Sequence[DeletionTask]
    store: Path
    """Folder for the sandboxes' files."""
    limits: DeletionLimits = field(default_factory=DeletionLimits)
    timeout_s: float = 1_800.0
    """Longest time of an attempt, in seconds."""
    epochs: int = 1
    """How often each task is attempted."""
    key: str | None = None
    """The gateway's key, if it checks keys."""
    results: Path | None = None
    """File to which a line of JSON is added for each attempt."""


def read_tasks(file: Path) -> list[DeletionTask]:
    """Return the tasks of a file of `headrace deletion-tasks`. Raises :class:`EnvironmentUnusable`."""
    tasks = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            tasks.append(DeletionTask.of_line(line))
        except ValueError as error:
            raise EnvironmentUnusable(f"{file}:{number}: {error}") from error
    if not tasks:
        raise EnvironmentUnusable(f"{file} has no tasks: make some by `headrace deletion-tasks --out {file}`")
    return tasks


@asynccontextmanager
async def deletion_environment(config: DeletionConfig) -> AsyncIterator["DeletionEnvironment"]:
    """Make sandboxes for attempts inside the block. Raises :class:`EnvironmentUnusable` if this machine has no isolated
    sandboxes, or not the interpreter that the tasks need."""
    try:
        interpreters = await asyncio.to_thread(interpreters_of, config.tasks)
        overlay = await Overlay.create(config.store)
    except (NoSuchModule, PackageUnusable, ProviderUnavailable) as error:
        raise EnvironmentUnusable(f"deletion tasks cannot be attempted here: {error}") from error
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0)) as http:
            yield DeletionEnvironment(overlay, http, config, interpreters)
    finally:
        overlay.close()


class DeletionEnvironment:
    """The environment. Created by :func:`deletion_environment`."""

    name = "deletion"
    version = HARNESS_VERSION

    def __init__(
        self,
        provider: Provider,
        http: aiohttp.ClientSession,
        config: DeletionConfig,
        interpreters: dict[str, Interpreter],
    ) -> None:
        self._provider = provider
        self._http = http
        self._config = config
        self._interpreters = interpreters
        self._next = 0

    async def next_task(self) -> EnvironmentTask | None:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        number, tasks = self._next, self._config.tasks
        if number >= len(tasks) * self._config.epochs:
            return None
        self._next += 1
        epoch, index = divmod(number, len(tasks))
        task = tasks[index]
        facts = {"index": index, "epoch": epoch, "origin": task.origin, "name": task.feature, "lines": task.lines}
        return EnvironmentTask(number, task.task_id, facts)

    async def finished(self, task: EnvironmentTask) -> None:
        """Nothing is kept."""

    async def attempt(self, task: EnvironmentTask, seat: Seat) -> RolloutResult:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        attempted = self._config.tasks[task.number % len(self._config.tasks)]
        calls = PolicyCalls(self._http, seat, self._config.key or NOT_CHECKED)
        result = await self._played(attempted, calls)
        if self._config.results is not None:
            line = {"task_id": attempted.task_id, **as_line(result)}
            with self._config.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return result

    async def _played(self, task: DeletionTask, calls: PolicyCalls) -> RolloutResult:
        harness = DeletionHarness(task.path, task.feature, task.tests_path, self._config.limits)
        limit = asyncio.timeout(self._config.timeout_s)
        try:
            async with limit:
                return await self._in_sandbox(task, calls, harness)
        except TimeoutError:
            if not limit.expired():
                raise
            said = f"not over after {self._config.timeout_s:g} s"
            return failed(Cause.ROLLOUT, "rollout_timeout", said, harness.metrics)
        except PolicyAway as error:
            return failed(Cause.INFRASTRUCTURE, "policy_away", str(error), harness.metrics)
        except PolicyRefused as error:  # the first message: later ones are the end of the context
            return failed(Cause.INFRASTRUCTURE, "refused", str(error), harness.metrics)
        except SandboxError as error:
            return failed(Cause.INFRASTRUCTURE, "sandbox_failed", str(error), harness.metrics)

    async def _in_sandbox(self, task: DeletionTask, calls: PolicyCalls, harness: DeletionHarness) -> RolloutResult:
        interpreter = self._interpreters[task.task_id]
        sandbox = await self._provider.start(task.files(), limits_of(interpreter))
        try:
            workspace = Workspace(sandbox, task, interpreter)
            end = await played(harness, calls, workspace)
            written = await workspace.written()
        finally:
            await sandbox.stop()
        if not harness.has_submitted:
            status, stop = end
            return RolloutResult(status, {"deletion": Part(0.0)}, harness.metrics, stop)
        reward, outcome = await verdict(self._provider, task, interpreter, written)
        stop = "submitted" if outcome is SuiteOutcome.RAN else f"submitted_{outcome}"
        return RolloutResult(EndStatus.COMPLETED, {"deletion": Part(reward)}, harness.metrics, stop)


async def played(harness: DeletionHarness, calls: PolicyCalls, workspace: Workspace) -> tuple[EndStatus, str]:
    """Have the model act until it submits, or a limit ends the attempt; return how it ended.

    Raises :class:`PolicyAway`, :class:`PolicyRefused` for the first message, and errors of the sandbox.
    """
    tools = schemas()
    while not harness.is_over:
        try:
            answer: Any = await calls.post("chat/completions", {"messages": harness.messages, "tools": tools})
            choice = answer["choices"][0]
            message, was_cut = dict(choice["message"]), choice.get("finish_reason") == "length"
        except PolicyRefused:
            if not harness.turns:
                raise
            return EndStatus.BUDGET_EXHAUSTED, "context_exhausted"
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PolicyAway(f"the answer is no chat completion: {error!r}") from error
        for action in harness.act(message, was_cut=was_cut):
            text, is_error = await workspace.carry_out(action)
            harness.answered(action, text, is_error=is_error)
    return (EndStatus.COMPLETED, "submitted") if harness.has_submitted else (EndStatus.TURNS_EXHAUSTED, "max_turns")


def as_line(result: RolloutResult) -> dict[str, Any]:
    """Return what became of an attempt, for people."""
    rewards = [part.score * part.weight for part in result.rewards.values()]
    failure = None if result.failure is None else result.failure.message[:500]
    return {
        "status": str(result.status),
        "reward": sum(rewards) if rewards else None,
        "stop": result.stop,
        "failure": failure,
        **result.metrics,
    }
