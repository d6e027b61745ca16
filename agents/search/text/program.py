"""A program that has a model answer questions over real text, one line of JSON per attempt.

    export OPENAI_BASE_URL=… OPENAI_API_KEY=…
    python -m headrace.agents.search.text.program --corpus corpus --tasks corpus/tasks.jsonl --model qwen
    {"task_id": "text-heldout-3f9a…", "status": "completed", "chunk_ids": ["d0960-1"], "recall": 1.0, …}

With ``--gateway URL`` each attempt is a session of the capture gateway: its calls are recorded with their tokens, the
task's evidence and the result go into the trajectory, and ``search-text@1`` rewards it.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from openai import AsyncOpenAI, OpenAIError

from headrace.agents.retrieval.endpoint import RetrievalError
from headrace.agents.retrieval.index import open_retriever
from headrace.agents.retrieval.retriever import Retriever
from headrace.agents.search.tasks import Split
from headrace.agents.search.text.episode import Attempted, AttemptSettings, attempt
from headrace.agents.search.text.harness import TextLimits
from headrace.agents.search.text.sessions import Sessions
from headrace.agents.search.text.tasks import TextTask, read_tasks
from headrace.schemas.ids import uuid7


class Program:
    """Makes attempts."""

    def __init__(
        self, client: AsyncOpenAI, retriever: Retriever, settings: AttemptSettings, sessions: Sessions | None = None
    ) -> None:
        self._client = client
        self._retriever = retriever
        self._settings = settings
        self._sessions = sessions

    async def one(self, task: TextTask, group: dict[str, Any]) -> dict[str, Any]:
        """Attempt ``task``; return the line to print. Failures of the endpoints become a line with the error."""
        try:
            if self._sessions is None:
                attempted = await attempt(self._client, self._retriever, task.question, self._settings)
            else:
                async with self._sessions.opened(task, group) as session:
                    client = self._client.with_options(api_key=session.api_key)
                    attempted = await attempt(client, self._retriever, task.question, self._settings)
                    session.ends(attempted)
        except (OpenAIError, RetrievalError, aiohttp.ClientError) as error:
            return {"task_id": task.task_id, "status": "failed", "error": f"{type(error).__name__}: {error}"}
        return line_of(task, attempted)


def line_of(task: TextTask, attempted: Attempted) -> dict[str, Any]:
    """Return the result of an attempt, with shares of the task's evidence: in the answer, and ever shown."""
    targets = set(task.targets)
    found = targets & set(attempted.chunk_ids) & set(attempted.retrieved)
    return {
        "task_id": task.task_id,
        "hops": len(task.hops),
        "status": str(attempted.status),
        **attempted.as_answer(),
        "recall": len(found) / len(targets),
        "precision": len(found) / len(attempted.chunk_ids) if attempted.chunk_ids else 0.0,
        "trajectory_recall": len(targets & set(attempted.retrieved)) / len(targets),
        "context_tokens": attempted.context_tokens,
    }


async def run(options: argparse.Namespace) -> None:
    """Attempt the tasks, ``options.concurrency`` at a time."""
    tasks = [task for task in read_tasks(options.tasks) if task.split == options.split][: options.count]
    limits = TextLimits(options.budget, options.soft or options.budget // 2, options.hard or options.budget * 3 // 4)
    settings = AttemptSettings(options.model, options.temperature, options.answer_tokens, limits)
    slots = asyncio.Semaphore(options.concurrency)
    async with AsyncExitStack() as exits:
        retriever = await open_retriever(options.corpus)
        key = os.environ.get("OPENAI_API_KEY", "none")
        base = None if options.gateway is None else f"{options.gateway.rstrip('/')}/v1"
        client = await exits.enter_async_context(AsyncOpenAI(api_key=key, base_url=base))
        sessions = None
        if options.gateway is not None:
            headers = {"Authorization": f"Bearer {key}"}
            http = await exits.enter_async_context(
                aiohttp.ClientSession(options.gateway.rstrip("/") + "/", headers=headers)
            )
            sessions = Sessions(http)
        program = Program(client, retriever, settings, sessions)

        async def one(task: TextTask, group: dict[str, Any]) -> None:
            try:
                print(json.dumps(await program.one(task, group)), flush=True)  # noqa: T201 - the program's output
            finally:
                slots.release()

        async with asyncio.TaskGroup() as running:
            for task in tasks:
                group = {"group_id": str(uuid7()), "group_size": options.attempts} if options.attempts > 1 else {}
                for _ in range(options.attempts):
                    await slots.acquire()
                    running.create_task(one(task, group))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of `headrace corpus`, with its index")
    parser.add_argument("--tasks", type=Path, required=True, help="file of `headrace tasks`")
    parser.add_argument("--model", required=True, help="model at OPENAI_BASE_URL, or behind the gateway")
    parser.add_argument("--gateway", metavar="URL", help="the capture gateway: attempts are recorded")
    parser.add_argument("--split", type=Split, choices=list(Split), default=Split.HELD_OUT)
    parser.add_argument("--count", type=int, default=100, help="tasks")
    parser.add_argument("--attempts", type=int, default=1, help="attempts per task, which form a group")
    parser.add_argument("--concurrency", type=int, default=8, help="attempts at a time")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--answer-tokens", type=int, default=1_024, help="longest answer of the model")
    parser.add_argument("--budget", type=int, default=32_768, help="tokens of context")
    parser.add_argument("--soft", type=int, help="tokens from which pruning is advised; default: half of the budget")
    parser.add_argument("--hard", type=int, help="tokens from which only pruning is allowed; default: three quarters")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Read the options and run."""
    options = parser().parse_args(argv)
    for name in ("count", "attempts", "concurrency", "answer_tokens"):
        if getattr(options, name) < 1:
            parser().error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        asyncio.run(run(options))
    except ValueError as error:  # no corpus, no index, no tasks, limits that contradict each other
        sys.exit(str(error))


if __name__ == "__main__":
    main()
