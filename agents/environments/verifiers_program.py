"""Runs rollouts of a ``verifiers`` environment. The environment's own Python runs this file, never headrace's.

    {"environment": {"taskset": {"id": "gsm8k"}}, "gateway": "http://…", "model": "policy", …}    settings, first line
    {"ready": {"environment": "gsm8k", "verifiers": "0.4.0", "tasks_end": true}}                  ← once it serves
    {"id": "1", "next_task": true}
    {"id": "1", "task": {"number": 0, "task_id": "9f3c…", "facts": {"environment": "gsm8k", …}}}  ← null: no more
    {"id": "2", "attempt": {"number": 0, "session": "5d0c…"}}
    {"id": "2", "result": {"rewards": {"correct": [1.0, 1.0]}, "stop": "agent_completed", …}}     ← of the environment
    {"forget_task": 0}

It uses the standard library and the public interface of ``verifiers.v1`` (0.4.0), and changes nothing of either. A
rollout is one episode; the id of its trace is the session's, which verifiers sends with every call of the model as
``X-Session-ID``. Input that ends ends the program, and the rollouts with it.
"""

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import verifiers
import verifiers.v1 as vf

KEY_VARIABLE = "HEADRACE_GATEWAY_API_KEY"
"""Environment variable with the gateway's key; subprocess runtimes do not inherit what has API_KEY in its name."""

OWN_SESSIONS = frozenset({"claude_code", "codex", "opencode"})
"""Harnesses whose programs name sessions of their own, which a header of ours would lose against."""

MAX_LINE = 1 << 20
"""Longest line, in bytes."""

MAX_MESSAGE = 2_000
"""Longest error message, in characters."""


class Player:
    """Attempts at the tasks of an environment that is being served."""

    def __init__(self, env: vf.Env[Any], settings: dict[str, Any]) -> None:
        """``settings``: the first line of the input."""
        self._env = env
        self._gateway = str(settings["gateway"]).rstrip("/")
        self._model = settings["model"]
        self._sampling = vf.Sampling(**settings["sampling"])
        self._timeout_s = float(settings["timeout_s"])
        view = env.taskset.select(vf.SelectConfig(**settings["select"]))
        self.tasks_end = view.bounded
        self._remaining = enumerate((epoch, task) for epoch in range(settings["epochs"]) for task in view)
        self._tasks: dict[int, vf.Task[Any]] = {}
        self._reading = asyncio.Lock()
        self._policy = _policy_agent(env)

    async def next_task(self) -> dict[str, Any] | None:
        """Return the next task, ``None`` after the last."""
        async with self._reading:  # the taskset may load files, or generate tasks
            found = await asyncio.to_thread(next, self._remaining, None)
        if found is None:
            return None
        number, (epoch, task) = found
        self._tasks[number] = task
        facts = {"index": task.data.idx, "name": task.data.name, "epoch": epoch}
        facts = {name: value for name, value in facts.items() if value is not None}
        return {"number": number, "task_id": task.key, "facts": facts}

    def forget(self, number: int) -> None:
        """Release a task that is attempted no more."""
        self._tasks.pop(number, None)

    async def attempt(self, number: int, session: str) -> dict[str, Any]:
        """Return what became of one episode of a task."""
        minted: list[vf.Trace] = []

        def on_trace(trace: vf.Trace) -> None:
            if trace.agent.name != self._policy:
                return
            if minted:
                raise RuntimeError(
                    f"the episode runs the agent {self._policy!r} a second time, and a session holds one run"
                )
            trace.id = session
            minted.append(trace)

        task, context = self._tasks[number], self._context(session)
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                episode = await self._env.run_episode(task, context, on_trace=on_trace)
            errors = [_error(each.type, each.message, each.status_code) for each in episode.errors]
        except TimeoutError:
            if not limit.expired():
                raise
            errors = [_error("rollout_timeout", f"not over after {self._timeout_s:g} s")]
        return _result(minted[0] if minted else None, errors)

    def _context(self, session: str) -> vf.ModelContext:
        return vf.ModelContext(model=self._model, client=self._client(session), sampling=self._sampling)

    def _client(self, session: str) -> vf.EvalClientConfig:
        """Return the endpoint. verifiers keeps a client for each one, so a session in its address is the exception."""
        harness = self._env.config.agent_harnesses()[self._policy].id.replace("-", "_")
        path = f"/s/{session}/v1" if harness in OWN_SESSIONS else "/v1"
        return vf.EvalClientConfig(base_url=self._gateway + path, api_key_var=KEY_VARIABLE)


def _agents(config: vf.EnvConfig) -> dict[str, vf.AgentConfig]:
    return {name: value for name, value in config if isinstance(value, vf.AgentConfig)}


def _policy_agent(env: vf.Env[Any]) -> str:
    """Return the name of the one agent that is the policy: those with a model and an endpoint of their own are not."""
    agents = _agents(env.config)
    policies = [name for name, agent in agents.items() if agent.model is None or agent.client is None]
    if not policies:
        raise ValueError(f"all agents ({', '.join(agents)}) have a model of their own: leave one without, the policy")
    if len(policies) > 1:
        raise ValueError(
            f"the agents {', '.join(policies)} would all play the policy, and a trajectory is one agent's: give all "
            "but one a model and a client of their own"
        )
    return policies[0]


def _result(trace: "vf.Trace | None", errors: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the process outside needs of a trace: rewards as [score, weight], and ``null`` if not scored."""
    if trace is None:
        return {"rewards": {}, "metrics": {}, "stop": None, "turns": 0, "errors": errors}
    own = [_error(each.type, each.message, each.status_code) for each in trace.errors] if not trace.ok else []
    return {
        "rewards": {name: None if each is None else [each.score, each.weight] for name, each in trace.rewards.items()},
        "metrics": dict(trace.metrics),
        "stop": trace.stop_condition,
        "turns": trace.num_turns,
        "errors": [*errors, *own],
    }


def _error(label: str, message: str, status: int | None = None) -> dict[str, Any]:
    return {"label": label, "message": message[:MAX_MESSAGE], "status": status}


def _configured(settings: dict[str, Any]) -> vf.Env[Any]:
    """Return the environment, without retries: a retried rollout would be two attempts in one trajectory."""
    config = vf.resolve_env_config(settings["environment"])
    none = vf.RetryConfig()
    agents = {name: agent.model_copy(update={"retries": none}) for name, agent in _agents(config).items()}
    return vf.load_environment(config.model_copy(update={"retries": none, **agents}))


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    while line := await stream.readline():
        yield json.loads(line)


async def serve(lines: AsyncIterator[dict[str, Any]], write: Callable[[dict[str, Any]], None]) -> None:
    """Do what the lines say until they end."""
    settings = await anext(lines)
    env = _configured(settings)
    async with env.serving():
        player = Player(env, settings)
        version = verifiers.__version__
        write({"ready": {"environment": env.config.env_id, "verifiers": version, "tasks_end": player.tasks_end}})
        running: set[asyncio.Task[None]] = set()

        async def answer(line: dict[str, Any]) -> None:
            try:
                if "next_task" in line:
                    write({"id": line["id"], "task": await player.next_task()})
                else:
                    write({"id": line["id"], "result": await player.attempt(**line["attempt"])})
            except Exception as error:  # noqa: BLE001 - one rollout's failure is data, not the end of the others
                write({"id": line["id"], "raised": _error(type(error).__name__, str(error))})

        try:
            async for line in lines:
                if "forget_task" in line:
                    player.forget(line["forget_task"])
                    continue
                task = asyncio.create_task(answer(line))
                running.add(task)
                task.add_done_callback(running.discard)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _written(file: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(file, data) :]


async def main() -> None:
    """Serve the lines of standard input."""
    # What the environment prints must not be taken for a line of ours.
    output = os.dup(1)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    write = functools.partial(_written, output)
    try:
        await serve(_lines(reader), write)
    except Exception as error:
        write({"failed": _error(type(error).__name__, str(error))})
        raise


if __name__ == "__main__":
    asyncio.run(main())
