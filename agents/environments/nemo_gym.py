"""NeMo Gym: a resources server with tools and a verifier over HTTP, and rows of tasks in the Responses API's format.

    {"responses_create_params": {"input": […], "tools": [{"name": "get_weather", …}]}, "expected": "cold"}     a row
    POST /seed_session   the row                                → a session, in cookies
    POST /get_weather    {"city": "Oslo"}                       → the output of the call
    POST /verify         the row, and the whole response        → {"reward": 1.0, …}

The policy is called with the row's parameters until it calls no tool. Only tools that the row lists can be called: a
policy that calls ``verify`` gets an error. Tools are not *strict*, because constrained answers are not trained.

Only the protocol is used, not the package, which needs Python 3.12. It was seen with a server of the tests.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

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
from headrace.agents.environments.replies import SHOWN, ServerFailed, json_of, number_of, text_of
from headrace.agents.environments.sessions import NOT_CHECKED
from headrace.schemas.events import EndStatus
from headrace.schemas.nesting import MAX_NESTING, nesting

VERSION = "nemo-gym-1"
"""Changes whenever what the policy sees or may do changes."""

REQUEST_S = 300.0
"""Longest wait for the resources server, in seconds."""

MAX_OUTPUT = 64 * 1024
"""Longest output of a tool that the policy reads, in characters."""


@dataclass(frozen=True, slots=True)
class NemoGymConfig:
    """Which environment is run, and how."""

    url: str
    """Address of the resources server."""
    rows: Sequence[Mapping[str, Any]]
    """Tasks: rows with ``responses_create_params`` and what the verifier needs."""
    name: str
    """Name of the data set."""
    max_turns: int = 64
    """Most calls of the policy in a rollout."""
    timeout_s: float = 1_800.0
    """Longest time of a rollout, in seconds."""
    epochs: int = 1
    """How often each task is attempted."""
    key: str | None = None
    """The gateway's key, if it checks keys."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns is {self.max_turns}: it must be at least 1")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines. Raises :class:`EnvironmentUnusable` for one that is no task."""
    rows = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise EnvironmentUnusable(f"{file}:{number} is no JSON: {error}") from None
        params = row.get("responses_create_params") if isinstance(row, dict) else None
        if not isinstance(params, dict) or not isinstance(params.get("input"), (str, list)):
            raise EnvironmentUnusable(f"{file}:{number} has no responses_create_params with an input")
        rows.append(row)
    if not rows:
        raise EnvironmentUnusable(f"{file} has no rows")
    return rows


@asynccontextmanager
async def nemo_gym_environment(config: NemoGymConfig) -> AsyncIterator["NemoGymServer"]:
    """Rollouts at the server."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0)) as http:
        yield NemoGymServer(http, config)


class NemoGymServer:
    """The environment. Created by :func:`nemo_gym_environment`."""

    version = VERSION

    def __init__(self, http: aiohttp.ClientSession, config: NemoGymConfig) -> None:
        self._http = http
        self._config = config
        self._next = 0
        self.name = config.name

    async def next_task(self) -> EnvironmentTask | None:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        number, rows = self._next, self._config.rows
        if number >= len(rows) * self._config.epochs:
            return None
        self._next += 1
        epoch, index = divmod(number, len(rows))
        digest = sha256(json.dumps(rows[index], sort_keys=True).encode()).hexdigest()
        return EnvironmentTask(number, f"{self.name}-{digest[:32]}", {"index": index, "epoch": epoch})

    async def finished(self, task: EnvironmentTask) -> None:
        """Nothing is kept."""

    async def attempt(self, task: EnvironmentTask, seat: Seat) -> RolloutResult:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        config = self._config
        row = config.rows[task.number % len(config.rows)]
        calls = PolicyCalls(self._http, seat, config.key or NOT_CHECKED)
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        # Cookies are the session of one rollout; the server may have an address for a name.
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=timeout) as http:
            episode = _Episode(http, config, calls, row)
            limit = asyncio.timeout(config.timeout_s)
            try:
                async with limit:
                    return await episode.play()
            except PolicyAway as error:
                return failed(Cause.INFRASTRUCTURE, "policy_away", str(error), episode.metrics)
            except TimeoutError:
                if limit.expired():
                    said = f"not over after {config.timeout_s:g} s"
                    return failed(Cause.ROLLOUT, "rollout_timeout", said, episode.metrics)
                return failed(episode.cause, "server_timeout", f"no answer within {REQUEST_S:g} s", episode.metrics)
            except ServerFailed as error:
                return failed(episode.cause, "environment_failed", str(error), episode.metrics)
            except aiohttp.ClientError as error:
                return failed(Cause.INFRASTRUCTURE, "environment_away", repr(error), episode.metrics)


@dataclass
class _Episode:
    http: aiohttp.ClientSession
    config: NemoGymConfig
    calls: PolicyCalls
    row: Mapping[str, Any]
    outputs: list[dict[str, Any]] = field(default_factory=list)
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        return {"turns": self.turns, "tool_calls": self.tool_calls, "tool_errors": self.tool_errors}

    @property
    def cause(self) -> Cause:
        """Whose failure the server's is: a tool or the verifier may not bear what the policy did; a seed it has not
        seen."""
        return Cause.ROLLOUT if self.turns else Cause.INFRASTRUCTURE

    async def play(self) -> RolloutResult:
        """Play from the seed to the verdict."""
        seeded = await self._posted("seed_session", self.row)
        if seeded.get("mcp"):
            raise ServerFailed(
                "its tools are behind MCP: run it by verifiers' own adapter, `headrace environment verifiers nemo-gym`"
            )
        params = parameters_of(self.row)
        given = params["input"]
        history = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        response: dict[str, Any] = {}
        status, stop = EndStatus.COMPLETED, "answered"
        while True:
            if self.turns >= self.config.max_turns:
                status, stop = EndStatus.TURNS_EXHAUSTED, "max_turns"
                break
            try:
                response = await self.calls.post("responses", {**params, "input": [*history, *self.outputs]})
            except PolicyRefused as error:
                if not self.turns:
                    return failed(Cause.INFRASTRUCTURE, "refused", str(error), self.metrics)
                status, stop = EndStatus.BUDGET_EXHAUSTED, "context_exhausted"
                break
            try:
                items = [dict(item) for item in response["output"]]
                asked = [item for item in items if item["type"] == "function_call"]
                calls = [(str(call["call_id"]), str(call["name"]), call["arguments"]) for call in asked]
            except (KeyError, TypeError, ValueError) as error:
                raise PolicyAway(f"the answer is no response: {error!r}") from error
            self.turns += 1
            self.outputs += items
            if response.get("incomplete_details"):
                status, stop = EndStatus.BUDGET_EXHAUSTED, "max_output_tokens"
                break
            if not asked:
                break
            for call_id, name, arguments in calls:
                output = await self._tool(name, arguments)
                self.outputs.append({"type": "function_call_output", "call_id": call_id, "output": output})
        return await self._verified({**response, "output": self.outputs}, status, stop)

    async def _tool(self, name: str, given: Any) -> str:
        """Return the output of a tool, or an error for the policy."""
        self.tool_calls += 1
        allowed = [tool["name"] for tool in parameters_of(self.row).get("tools", []) if "name" in tool]
        try:
            if not isinstance(given, str) or nesting(given.encode(errors="replace")) > MAX_NESTING:
                raise ValueError("they are no text, or nested too deep")
            arguments = json.loads(given or "{}")
        except ValueError as error:
            self.tool_errors += 1
            return f"error: the arguments are no JSON: {error}"
        if name not in allowed:
            self.tool_errors += 1
            return f"error: there is no tool {name}: choose from {', '.join(allowed) or 'none'}"
        async with self.http.post(f"{self.config.url.rstrip('/')}/{quote(name, safe='')}", json=arguments) as response:
            self.tool_errors += not response.ok
            return (await text_of(response, 4 * MAX_OUTPUT))[:MAX_OUTPUT]

    async def _verified(self, response: Mapping[str, Any], status: EndStatus, stop: str) -> RolloutResult:
        said = await self._posted("verify", {**self.row, "response": response})
        reward = number_of(said.get("reward"))
        if reward is None:
            raise ServerFailed(f"/verify answered without a reward: {str(said)[:SHOWN]}")
        measured = {
            name: number
            for name, value in said.items()
            if name not in ("reward", *self.row) and (number := number_of(value)) is not None
        }
        return RolloutResult(status, {"nemo_gym": Part(reward)}, {**self.metrics, **measured}, stop)

    async def _posted(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self.http.post(f"{self.config.url.rstrip('/')}/{path}", json=body) as response:
            if not response.ok:
                raise ServerFailed(f"/{path} answered {response.status}: {await text_of(response, SHOWN)}")
            return await json_of(response, f"/{path}")


def parameters_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a row's calls: without its own model and sampling, and no tool is strict."""
    params = dict(row["responses_create_params"])
    for name in ("model", "temperature", "top_p", "stream"):
        params.pop(name, None)
    if params.get("tools"):
        params["tools"] = [
            {**tool, "strict": False} if tool["type"] == "function" else tool for tool in params["tools"]
        ]
    return {name: value for name, value in params.items() if value is not None}
