"""A ``verifiers`` environment in a process of its own Python; what is said on its pipes is in ``verifiers_program``.

async with verifiers_environment(VerifiersConfig("/envs/gsm8k/bin/python", {"taskset": {"id": "gsm8k"}}, …)) as it:
    rollout = await it.attempt(await it.next_task(), seat)
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.agents.environments.environment import (
    Cause,
    EnvironmentTask,
    EnvironmentUnusable,
    Part,
    RolloutResult,
    Seat,
    failed,
)
from headrace.agents.environments.sessions import NOT_CHECKED
from headrace.schemas.events import EndStatus

PROGRAM = Path(__file__).with_name("verifiers_program.py")

START_S = 600.0
"""Longest wait for the environment to serve: its tasks may have to be downloaded."""

TASK_S = 600.0
"""Longest wait for a task."""

GRACE_S = 120.0
"""Seconds beyond the limit of a rollout after which the program is considered stuck."""

STOP_S = 30.0
"""Longest wait for the program to end its rollouts and servers, before it is killed."""

MAX_LINE = 1 << 24
"""Longest line of the program, in bytes."""

INFRASTRUCTURE = frozenset({"ProviderError", "SandboxError", "InterceptionError", "TunnelError"})
"""Errors of verifiers that are no doing of the policy: of the model's endpoint, of runtimes, of its own servers."""

TURNS = frozenset({"max_turns"})
BUDGET = frozenset({"max_input_tokens", "max_output_tokens", "max_total_tokens", "agent_timeout", "compaction_failed"})
"""Stop conditions of verifiers by what was exhausted."""

GATEWAY_KEY = "HEADRACE_GATEWAY_API_KEY"
"""Variable with the gateway's key in the environment's process. verifiers hands no variable with API_KEY in its name to
a harness in its subprocess runtime: who has the key can report outcomes."""


@dataclass(frozen=True, slots=True)
class VerifiersConfig:
    """Which environment is run, and how."""

    python: str
    """Python interpreter of the environment, with ``verifiers`` and the environment's package installed."""
    environment: Mapping[str, Any]
    """verifiers' ``EnvConfig`` as JSON: ``{"taskset": {"id": …}, "agent": {"harness": …, "runtime": …}}``."""
    gateway: str
    """The gateway's address, without ``/v1``."""
    log: Path
    """File for what the environment prints."""
    path: Path | None = None
    """Folder that its Python imports modules from, for an environment that is not installed."""
    model: str = "policy"
    """Name of the model."""
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    """Sampling parameters."""
    select: Mapping[str, Any] = field(default_factory=dict)
    """verifiers' ``SelectConfig`` as JSON: which tasks, ``{"shuffle": true, "seed": 1, "skip": 100, "limit": 500}``."""
    epochs: int = 1
    """How often each task is attempted."""
    timeout_s: float = 1_800.0
    """Longest time of a rollout, with its set-up and its scoring, in seconds."""
    key: str | None = None
    """The gateway's key, if it checks keys."""


@asynccontextmanager
async def verifiers_environment(config: VerifiersConfig) -> AsyncIterator["VerifiersEnvironment"]:
    """Serve the environment inside the block. Raises :class:`EnvironmentUnusable` if it does not start.

    The program ends with its input, and so also with this process.
    """
    config.log.parent.mkdir(parents=True, exist_ok=True)
    env = variables_of(config, os.environ)
    with config.log.open("ab") as log:
        try:
            process = await asyncio.create_subprocess_exec(
                *(config.python, "-P", str(PROGRAM)), stdin=PIPE, stdout=PIPE, stderr=log, env=env, limit=MAX_LINE
            )
        except OSError as error:
            raise EnvironmentUnusable(f"{config.python} cannot be run: {error}. --python names the Python") from error
    environment = VerifiersEnvironment(process, config)
    reading = asyncio.create_task(environment.read())
    try:
        await environment.start()
        yield environment
    finally:
        await _ended(process)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def variables_of(config: VerifiersConfig, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the program: ours without what finds our modules or is a setting of headrace,
    which may be a secret."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in ours.items() if name not in hidden and not name.startswith("HEADRACE_")}
    # Harnesses of the subprocess runtime are scripts that uv runs, and uv is often a package of the environment.
    env["PATH"] = os.pathsep.join([str(Path(config.python).absolute().parent), env.get("PATH", os.defpath)])
    if config.path is not None:
        env["PYTHONPATH"] = str(config.path.absolute())
    env[GATEWAY_KEY] = config.key or NOT_CHECKED
    return env


class VerifiersEnvironment:
    """The environment. Created by :func:`verifiers_environment`."""

    def __init__(self, process: Process, config: VerifiersConfig) -> None:
        self._process = process
        self._config = config
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._why_ended: str | None = None
        self._sent = 0
        self.name = ""
        self.version = ""

    async def start(self) -> None:
        """Send the settings, and wait until it serves."""
        config = self._config
        await self._write(
            {
                "environment": dict(config.environment),
                "gateway": config.gateway,
                "model": config.model,
                "sampling": dict(config.sampling),
                "select": dict(config.select),
                "epochs": config.epochs,
                "timeout_s": config.timeout_s,
            }
        )
        ready = await self._within(self._ready, START_S, "did not start")
        self.name = str(ready["environment"])
        self.version = f"verifiers-{ready['verifiers']}"

    async def next_task(self) -> EnvironmentTask | None:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        said = (await self._asked({"next_task": True}, TASK_S, "gave no task"))["task"]
        return None if said is None else EnvironmentTask(said["number"], said["task_id"], said["facts"])

    async def attempt(self, task: EnvironmentTask, seat: Seat) -> RolloutResult:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        line = {"attempt": {"number": task.number, "session": seat.session}}
        said = await self._asked(line, self._config.timeout_s + GRACE_S, "did not end a rollout")
        return result_of(said["result"])

    async def finished(self, task: EnvironmentTask) -> None:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        await self._write({"forget_task": task.number})

    async def _asked(self, line: Mapping[str, Any], limit_s: float, problem: str) -> dict[str, Any]:
        if self._why_ended is not None:
            raise EnvironmentUnusable(self._why_ended)
        self._sent += 1
        name = str(self._sent)
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answered
        try:
            await self._write({"id": name, **line})
            said = await self._within(answered, limit_s, problem)
        finally:
            del self._waiting[name]
        if (raised := said.get("raised")) is not None:
            raise EnvironmentUnusable(f"the environment raised {raised['label']}: {raised['message']}; {self._see()}")
        return said

    async def _within(self, answered: "asyncio.Future[dict[str, Any]]", limit_s: float, problem: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(limit_s):
                return await answered
        except TimeoutError:
            raise EnvironmentUnusable(f"the environment {problem} within {limit_s:g} s; {self._see()}") from None

    async def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        with suppress(ConnectionError):  # it has ended, which read() sees
            await self._process.stdin.drain()

    async def read(self) -> None:
        """Read what it says until it ends; then nobody waits any more."""
        assert self._process.stdout is not None
        why = "the environment's program ended"
        try:
            async for line in self._process.stdout:
                said = json.loads(line)
                if (failure := said.get("failed")) is not None:
                    why = f"the environment does not run: {failure['label']}: {failure['message']}"
                    continue
                waiting = self._ready if "ready" in said else self._waiting.get(said["id"])
                if waiting is not None and not waiting.done():  # else nobody waits any more
                    waiting.set_result(said.get("ready", said))
        except ValueError as error:
            why = f"the environment's program wrote what is no line of ours: {error}"
        finally:
            self._why_ended = f"{why}; {self._see()}"
            for waiting in (self._ready, *self._waiting.values()):
                if not waiting.done():
                    waiting.set_exception(EnvironmentUnusable(self._why_ended))

    def _see(self) -> str:
        return f"see {self._config.log}"


def result_of(said: Mapping[str, Any]) -> RolloutResult:
    """Return what the program said of a rollout. Pure.

    An error of the last attempt is a failure, whatever was scored before it. A stage that ran out of time is none: the
    environment scores what was reached.
    """
    metrics = {name: float(value) for name, value in said["metrics"].items() if value is not None}
    metrics["turns"] = float(said["turns"])
    stop = said["stop"] or ""
    if said["errors"]:
        error = said["errors"][-1]
        return failed(_cause(error), error["label"], error["message"], metrics)
    unscored = [name for name, part in said["rewards"].items() if part is None]
    if unscored:
        return failed(Cause.ROLLOUT, stop or "unscored", f"not scored: {', '.join(unscored)}", metrics)
    status = EndStatus.COMPLETED
    if stop in TURNS:
        status = EndStatus.TURNS_EXHAUSTED
    elif stop in BUDGET:
        status = EndStatus.BUDGET_EXHAUSTED
    rewards = {name: Part(float(score), float(weight)) for name, (score, weight) in said["rewards"].items()}
    return RolloutResult(status, rewards, metrics, stop)


def _cause(error: Mapping[str, Any]) -> Cause:
    """Whose failure an error is. A request that the engine refuses as such (400, 413, 422) is the rollout's: its
    conversation has outgrown the context, or has something that a template refuses."""
    if error["label"] == "ProviderError" and error["status"] in (400, 413, 422):
        return Cause.ROLLOUT
    return Cause.INFRASTRUCTURE if error["label"] in INFRASTRUCTURE else Cause.ROLLOUT


async def _ended(process: Process) -> None:
    """Close its input, and kill it if it does not end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
