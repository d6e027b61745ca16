"""Attempts of a program that knows nothing of headrace: its calls go through the capture gateway.

    POST /sessions {"task_id": …, "group_id": …, "group_size": 8, …}      → a key, and the trajectory
    {"id": …, "question": …, "index": …, "api_key": "hrs_…"}              → the program's input
    {"id": …, "status": "completed", "chunk_ids": […], "retrieved": […]}  ← its output
    POST /sessions/ses_…/end {"status": "completed", "answer": {…}}

The program is ``openai_program.py``, one process for all attempts; OPENAI_BASE_URL leads it to the gateway. What it
sends and receives is text: tokens, log-probabilities and policy versions are recorded by the gateway alone.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from headrace.agents.policy import PolicyError
from headrace.agents.rollouts.attempts import Attempt
from headrace.agents.search.search_service import search_service
from headrace.agents.search.tasks import Task

PROGRAM = Path(__file__).with_name("openai_program.py")

AGENT = "search-program"
"""Name of the program in every ``trajectory.started``; it selects the reward."""

HARNESS_VERSION = "openai-1"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""

_AWAY_S = 60.0
"""Longest wait for a gateway that does not listen: it may be restarting."""

_KEY = "not-checked"
"""Key of a gateway that accepts every key; each attempt has its session's own."""


@asynccontextmanager
async def program_attempts(gateway: str, log: Path) -> AsyncIterator["ProgramAttempts"]:
    """Run the program inside the block, with its search service. ``gateway``: its address. ``log``: what the program
    writes to stderr."""
    async with AsyncExitStack() as exits:
        http = await exits.enter_async_context(
            aiohttp.ClientSession(gateway + "/", headers={"Authorization": f"Bearer {_KEY}"})
        )
        env = {"OPENAI_BASE_URL": f"{gateway}/v1", "OPENAI_API_KEY": _KEY}
        program = await exits.enter_async_context(
            _running(env | {"SEARCH_URL": await exits.enter_async_context(search_service())}, log)
        )
        yield ProgramAttempts(http, program)


class ProgramAttempts:
    """Makes attempts. Created by :func:`program_attempts`."""

    def __init__(self, http: aiohttp.ClientSession, program: "_Program") -> None:
        self._http = http
        self._program = program

    async def prepare(self, task: Task, *, temperature: float, start: Mapping[str, Any]) -> Attempt:
        """Open a session; see :class:`headrace.agents.rollouts.attempts.Attempts`. Raises :class:`PolicyError`."""
        about = {"task_id": task.task_id, "agent": AGENT, "harness_version": HARNESS_VERSION, **start}
        opened = await self.post("sessions", about)
        line = {
            "id": opened["trajectory"],
            "index": task.task_id,
            "question": " ".join(task.question),
            "temperature": temperature,
            "api_key": opened["api_key"],
        }
        return _ProgramAttempt(self, opened["session"], opened["trajectory"], line)

    async def run(self, attempt: "_ProgramAttempt") -> None:
        """Have the program answer a question, and end its session. Raises :class:`PolicyError`."""
        result = await self._program.answer(attempt.line)
        status, error = result.pop("status"), result.pop("error", None)
        await self.post(f"sessions/{attempt.session}/end", {"status": status, "answer": result})
        if error is not None:
            raise PolicyError(f"the program failed: {error}")

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the gateway's answer. Raises :class:`PolicyError`."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(aiohttp.ClientConnectorError),  # nothing was sent
            wait=wait_exponential(0.1, max=2.0),
            stop=stop_after_delay(_AWAY_S),
            reraise=True,
        )
        try:
            return await retrying(self._post, path, body)
        except aiohttp.ClientError as error:
            raise PolicyError(f"the gateway did not answer to /{path}: {error!r}") from error

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._http.post(path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            if not response.ok:
                raise PolicyError(f"the gateway answered {response.status} to /{path}: {answer}")
            return answer


@dataclass(frozen=True, slots=True)
class _ProgramAttempt:
    attempts: ProgramAttempts
    session: str
    trajectory_id: str
    line: Mapping[str, Any]

    async def run(self) -> None:
        await self.attempts.run(self)


class _Program:
    """The program's process."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._has_ended = False

    async def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the program's answer to a line of input, without its id. Raises :class:`PolicyError` if it ended."""
        if self._has_ended:
            raise self._ended()
        assert self._process.stdin is not None
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[line["id"]] = answered
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            with suppress(ConnectionError):  # it has ended, which read() sees
                await self._process.stdin.drain()
            return await answered
        finally:
            del self._waiting[line["id"]]

    async def read(self) -> None:
        """Read its answers until it ends; then nobody waits any more."""
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                answer = json.loads(line)
                waiting = self._waiting.get(answer.pop("id"))
                if waiting is not None and not waiting.done():  # else nobody waits any more
                    waiting.set_result(answer)
        finally:
            self._has_ended = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._ended())

    def _ended(self) -> PolicyError:
        return PolicyError(f"{PROGRAM.name} has ended: see {self._log}")


@asynccontextmanager
async def _running(env: Mapping[str, str], log: Path) -> AsyncIterator[_Program]:
    """Run the program inside the block. It ends with its input, so also with this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        # Without -P, the modules beside the program would hide those of its libraries.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(PROGRAM)), stdin=PIPE, stdout=PIPE, stderr=errors, env={**os.environ, **env}
        )
    program = _Program(process, log)
    reading = asyncio.create_task(program.read())
    try:
        yield program
    finally:
        reading.cancel()
        if process.returncode is None:
            process.kill()
        await asyncio.gather(reading, process.wait(), return_exceptions=True)
