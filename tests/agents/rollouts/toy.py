"""A system of three turns a task, a scripted engine for it, and a sampler of it as a process that can be killed.

python -m tests.agents.rollouts.toy KAFKA ENGINE RUN resume|replace TASKS     → prints its report as JSON
"""

import asyncio
import json
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from aiohttp import web

from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.attempts import Agent, PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.sampler import run_rollouts
from headrace.agents.sampled_tokens import GENERATE
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import Sampling
from headrace.schemas.model import Record
from tests.local_server import serving

TURNS = 3
GROUP_SIZE = 4
CONCURRENCY = 6


@dataclass(frozen=True, slots=True)
class ToyTask:
    task_id: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class ToyTasks:
    """Tasks named by number and level."""

    levels: Sequence[str] = ("easy", "middle", "hard")

    def training(self, number: int, level: int | None = None) -> ToyTask:
        return ToyTask(f"toy-{number}" + ("" if level is None else f"-{self.levels[level]}"))

    def held_out(self, number: int) -> ToyTask:
        return ToyTask(f"toy-heldout-{number}")


async def episode(conversation: Conversation, task: ToyTask, trajectory: Trajectory, temperature: float) -> None:
    conversation.append([1, zlib.crc32(task.task_id.encode()) % 1000])
    answers = []
    for turn in range(TURNS):
        sampled = await conversation.sample(Sampling(temperature=temperature, max_tokens=4), stop_token_ids=[2])
        answers.append(sampled.token_ids.tolist())
        with trajectory.tool("look", {"turn": turn}) as call:
            call.result = answers[-1]
        conversation.append([turn])
    trajectory.end(answer=answers)


async def resume(
    conversation: Conversation, task: ToyTask, trajectory: Trajectory, temperature: float, _: Sequence[Record]
) -> None:
    await episode(conversation, task, trajectory, temperature)


class ToyEngine:
    """Answers three tokens after a delay, another time differently; counts its answers."""

    def __init__(self, delay_s: float) -> None:
        self.answers = 0
        self._delay_s = delay_s

    async def answer(self, request: web.Request) -> web.Response:
        await request.json()
        await asyncio.sleep(self._delay_s)
        self.answers += 1
        tokens = [100 + self.answers % 500, 7, 2]
        content = [{"token_id": token, "logprob": -0.5} for token in tokens]
        choice = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})


@asynccontextmanager
async def toy_engine(delay_s: float) -> AsyncIterator[tuple[ToyEngine, str]]:
    engine, app = ToyEngine(delay_s), web.Application()
    app.router.add_post(GENERATE, engine.answer)
    async with serving(app) as url:
        yield engine, url


async def sample(bootstrap: str, url: str, run: str, *, resumes: bool, tasks: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = RolloutConfig(bootstrap, url, run, tasks=tasks, group_size=GROUP_SIZE, concurrency=CONCURRENCY)
    agent = Agent("toy", "toy-1", episode, resume if resumes else None)
    async with PolicyAttempts(agent, bootstrap, url, run=run, concurrency=CONCURRENCY) as attempts:
        report = await run_rollouts(config, ToyTasks(), attempts, stop=stop)
    print(json.dumps(asdict(report)))


if __name__ == "__main__":
    asyncio.run(sample(*sys.argv[1:4], resumes=sys.argv[4] == "resume", tasks=int(sys.argv[5])))
