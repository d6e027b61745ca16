"""OpenEnv: an environment behind a server with ``reset`` and ``step`` on a WebSocket; each connection is an episode.

    → {"type": "reset", "data": {"seed": 7}}
    ← {"type": "observation", "data": {"observation": {"hint": "higher"}, "reward": null, "done": false}}
    → {"type": "step", "data": {"guess": 4}}
    ← {"type": "observation", "data": {"observation": {"hint": "found"}, "reward": 1.0, "done": true}}

The policy sees each observation as a message of the user, the first with the JSON schema of actions, and answers with
an action: JSON, or plain text if an action has one required field of text. What is no action, or what the environment
refuses, is told to it and counted (``invalid_actions``). The reward is the sum of the rewards of the steps.

Only the protocol is used (seen with openenv 0.10.0), not the package.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from random import random
from typing import Any

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
from headrace.agents.environments.replies import SHOWN, ServerFailed, json_of, number_of, object_of
from headrace.agents.environments.sessions import NOT_CHECKED
from headrace.schemas.events import EndStatus
from headrace.schemas.nesting import MAX_NESTING, nesting
from headrace.schemas.redaction import redacted_address

VERSION = "openenv-1"
"""Changes whenever what the policy sees or may do changes."""

STEP_S = 300.0
"""Longest wait for the environment's answer, in seconds."""

MAX_MESSAGE = 1 << 20
"""Largest message of the environment, in bytes."""

REFUSALS = frozenset({"VALIDATION_ERROR", "EXECUTION_ERROR", "INVALID_JSON"})
"""Errors of the environment that an action can bring about; others are the server's."""

CAPACITY = "CAPACITY_REACHED"
"""Error of a server that has as many episodes as it can have."""

CAPACITY_S = 0.5
"""Mean pause before such a server is asked again, in seconds."""

TOOL_ACTIONS = frozenset({"Action", "CallToolAction", "ListToolsAction"})
"""Titles of action schemas that do not say what may be done."""

INSTRUCTION = "Each message is an observation. Answer with one action only, as JSON of this schema:"


class NoAction(ValueError):
    """An answer is no action; the message says why, for the policy."""


@dataclass(frozen=True, slots=True)
class OpenEnvConfig:
    """Which environment is run, and how."""

    url: str
    """Address of the environment's server."""
    resets: Sequence[Mapping[str, Any]]
    """Arguments of ``reset``, one object for each task: ``{"seed": 7}``."""
    instruction: str = INSTRUCTION
    """What the policy is told before the schema of actions."""
    max_turns: int = 64
    """Most answers of the policy in a rollout."""
    timeout_s: float = 1_800.0
    """Longest time of a rollout, in seconds."""
    epochs: int = 1
    """How often each task is attempted."""
    key: str | None = None
    """The gateway's key, if it checks keys."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns is {self.max_turns}: it must be at least 1")


@asynccontextmanager
async def openenv_environment(config: OpenEnvConfig) -> AsyncIterator["OpenEnvServer"]:
    """Connect to the server. Raises :class:`EnvironmentUnusable` if it does not answer, or has no schema of actions."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        url, shown = config.url.rstrip("/"), redacted_address(config.url)
        try:
            async with asyncio.timeout(STEP_S), http.get(f"{url}/schema") as response:
                response.raise_for_status()
                schema = (await json_of(response, "/schema"))["action"]
                if not isinstance(schema, dict):
                    raise ServerFailed(f"/schema has no object for an action: {str(schema)[:SHOWN]}")
        except (aiohttp.ClientError, TimeoutError, ServerFailed, KeyError) as error:
            raise EnvironmentUnusable(f"no environment of OpenEnv answers at {shown}/schema: {error!r}") from error
        if schema.get("title") in TOOL_ACTIONS:
            raise EnvironmentUnusable(
                f"the actions at {shown} are calls of tools that its schema does not list: run it by verifiers' own "
                "adapter, `headrace environment verifiers openenv`"
            )
        yield OpenEnvServer(http, url, schema, config)


class OpenEnvServer:
    """The environment. Created by :func:`openenv_environment`."""

    version = VERSION

    def __init__(self, http: aiohttp.ClientSession, url: str, schema: Mapping[str, Any], config: OpenEnvConfig) -> None:
        self._http = http
        self._url = url
        self._schema = schema
        self._config = config
        self._next = 0
        self.name = str(schema.get("title", "openenv")).removesuffix("Action") or "openenv"

    async def next_task(self) -> EnvironmentTask | None:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        number, resets = self._next, self._config.resets
        if number >= len(resets) * self._config.epochs:
            return None
        self._next += 1
        epoch, index = divmod(number, len(resets))
        digest = sha256(json.dumps([self.name, resets[index]], sort_keys=True).encode()).hexdigest()
        return EnvironmentTask(number, f"{self.name}-{digest[:32]}", {"index": index, "epoch": epoch})

    async def finished(self, task: EnvironmentTask) -> None:
        """Nothing is kept."""

    async def attempt(self, task: EnvironmentTask, seat: Seat) -> RolloutResult:
        """See :class:`headrace.agents.environments.environment.Environment`."""
        reset = self._config.resets[task.number % len(self._config.resets)]
        episode = _Episode(PolicyCalls(self._http, seat, self._config.key or NOT_CHECKED), self._config, self._schema)
        limit = asyncio.timeout(self._config.timeout_s)
        try:
            async with limit:
                while True:
                    async with self._http.ws_connect(f"{self._url}/ws", max_msg_size=MAX_MESSAGE) as socket:
                        first = await _asked(socket, "reset", reset)
                        if first.get("code") != CAPACITY:
                            return await episode.play(socket, first)
                    await asyncio.sleep(CAPACITY_S * (0.5 + random()))
        except TimeoutError:
            if not limit.expired():
                return failed(episode.cause, "step_timeout", f"no answer within {STEP_S:g} s", episode.metrics)
            # What was reached counts, as with any other budget.
            return episode.result(EndStatus.BUDGET_EXHAUSTED, "rollout_timeout")
        except PolicyAway as error:
            return failed(Cause.INFRASTRUCTURE, "policy_away", str(error), episode.metrics)
        except ServerFailed as error:
            return failed(episode.cause, "environment_failed", str(error), episode.metrics)
        except aiohttp.ClientError as error:
            return failed(Cause.INFRASTRUCTURE, "environment_away", repr(error), episode.metrics)


@dataclass
class _Episode:
    calls: PolicyCalls
    config: OpenEnvConfig
    schema: Mapping[str, Any]
    reward: float = 0.0
    turns: int = 0
    steps: int = 0
    invalid_actions: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, float]:
        return {"turns": self.turns, "steps": self.steps, "invalid_actions": self.invalid_actions}

    @property
    def cause(self) -> Cause:
        """Whose failure the server's is: an action may have brought it about, a reset has not."""
        return Cause.ROLLOUT if self.turns else Cause.INFRASTRUCTURE

    def result(self, status: EndStatus, stop: str) -> RolloutResult:
        """Return the rollout's result as far as it got."""
        return RolloutResult(status, {"openenv": Part(self.reward)}, self.metrics, stop)

    async def play(self, socket: aiohttp.ClientWebSocketResponse, said: dict[str, Any]) -> RolloutResult:
        """Play from the first observation to the end."""
        if "code" in said:
            raise ServerFailed(f"reset: {said}")
        observation_in(said, "reset")
        self.messages.append({"role": "user", "content": first_message(self.config.instruction, self.schema, said)})
        while not said.get("done"):
            if self.turns >= self.config.max_turns:
                return self.result(EndStatus.TURNS_EXHAUSTED, "max_turns")
            try:
                answer: Any = await self.calls.post("chat/completions", {"messages": self.messages})
                message = dict(answer["choices"][0]["message"])
            except PolicyRefused:
                return self.result(EndStatus.BUDGET_EXHAUSTED, "context_exhausted")
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise PolicyAway(f"the answer is no chat completion: {error!r}") from error
            self.turns += 1
            self.messages.append(message)
            text = message.get("content")
            said = await self._step(socket, text if isinstance(text, str) else "")
            self.messages.append({"role": "user", "content": observation_of(said)})
        return self.result(EndStatus.COMPLETED, "done")

    async def _step(self, socket: aiohttp.ClientWebSocketResponse, text: str) -> dict[str, Any]:
        """Return what the environment says of an answer; ``{"error": …}`` if it is no action."""
        try:
            action = action_of(text, self.schema)
        except NoAction as error:
            self.invalid_actions += 1
            return {"error": str(error)}
        said = await _asked(socket, "step", action)
        if (code := said.get("code")) is not None:
            if code not in REFUSALS:
                raise ServerFailed(f"step: {said}")
            self.invalid_actions += 1
            return {"error": str(said.get("message"))}
        observation_in(said, "step")
        reward = 0.0 if said.get("reward") is None else number_of(said["reward"])
        if reward is None:
            raise ServerFailed(f"step answered a reward that is no number: {str(said['reward'])[:SHOWN]}")
        self.steps += 1
        self.reward += reward
        return said


async def _asked(socket: aiohttp.ClientWebSocketResponse, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of the answer to a message; an error has a ``code``. Raises :class:`ServerFailed`."""
    await socket.send_json({"type": kind, "data": data})
    async with asyncio.timeout(STEP_S):
        received = await socket.receive()
    if received.type is not aiohttp.WSMsgType.TEXT:
        raise ServerFailed(f"the connection ended after {kind}: {received.type.name}")
    said = object_of(received.data.encode(), kind).get("data")
    if not isinstance(said, dict):
        raise ServerFailed(f"{kind} answered without data: {received.data[:SHOWN]}")
    return said


def observation_in(said: Mapping[str, Any], kind: str) -> None:
    """Raise :class:`ServerFailed` unless ``said`` has an observation."""
    if "observation" not in said:
        raise ServerFailed(f"{kind} answered without an observation: {str(said)[:SHOWN]}")


def first_message(instruction: str, schema: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """Return what the policy reads first."""
    return f"{instruction}\n{json.dumps(schema)}\n\n{observation_of(said)}"


def observation_of(said: Mapping[str, Any]) -> str:
    """Return what the policy reads of an observation, or of an error."""
    return json.dumps({"error": said["error"]} if "error" in said else said["observation"], ensure_ascii=False)


def action_of(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action in an answer. Raises :class:`NoAction`."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") + 1 : -3].strip()
    required = [name for name in _listed(schema.get("required")) if isinstance(name, str)]
    try:
        if nesting(text.encode(errors="replace")) > MAX_NESTING:
            raise ValueError("it is nested too deep")
        found = json.loads(text)
    except ValueError:
        if len(required) != 1 or not _is_text(schema, required[0]):
            raise NoAction("that is no JSON") from None
        found = text
    if isinstance(found, dict):
        return found
    if len(required) == 1:
        return {required[0]: found}
    raise NoAction("that is no JSON object")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(schema: Mapping[str, Any], name: str) -> bool:
    """Whether the schema says that the field ``name`` is a text."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, dict) else None
    return isinstance(found, dict) and found.get("type") == "string"
