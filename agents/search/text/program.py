"""A program that has a model answer questions over real text, one line of JSON per attempt.

    export OPENAI_BASE_URL=… OPENAI_API_KEY=…
    python -m headrace.agents.search.text.program --corpus corpus --tasks corpus/tasks.jsonl --model qwen
    {"task_id": "text-heldout-3f9a…", "status": "completed", "chunk_ids": ["d0960-1"], "recall": 1.0, …}

With ``--gateway URL`` each attempt is a session of the capture gateway: its calls are recorded with their tokens, the
task's evidence and the result go into the trajectory, and ``search-text@1`` rewards it. With ``--kafka`` and ``--run``
groups begin only within the trainer's budget.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from headrace.agents.environments.program_groups import add_options, room_of, run_groups, run_program, settings_of
from headrace.agents.environments.sessions import Session, Sessions, UnrecordedSessions, gateway_sessions
from headrace.agents.retrieval.endpoint import RetrievalError
from headrace.agents.retrieval.index import open_retriever
from headrace.agents.retrieval.retriever import Retriever
from headrace.agents.search.tasks import Split
from headrace.agents.search.text.episode import Attempted, AttemptSettings, attempt
from headrace.agents.search.text.harness import HARNESS_VERSION, TextLimits
from headrace.agents.search.text.tasks import TextTask, read_tasks
from headrace.schemas.events import EndStatus

AGENT = "search-text"
"""Name of the agent in every ``trajectory.started``; it selects the reward."""


class Program:
    """Makes attempts."""

    def __init__(
        self, client: AsyncOpenAI, retriever: Retriever, settings: AttemptSettings, timeout_s: float = 1800.0
    ) -> None:
        self._client = client
        self._retriever = retriever
        self._settings = settings
        self._timeout_s = timeout_s

    async def one(self, task: TextTask, session: Session) -> dict[str, Any]:
        """Attempt ``task`` and print its line; return the body with which the session ends. Failures of the endpoints
        become a line with the error."""
        client = self._client.with_options(base_url=session.base_url)
        try:
            async with asyncio.timeout(self._timeout_s):
                attempted = await attempt(client, self._retriever, task.question, self._settings)
        except (OpenAIError, RetrievalError, TimeoutError) as error:
            failed = str(EndStatus.FAILED)
            print_line({"task_id": task.task_id, "status": failed, "error": f"{type(error).__name__}: {error}"})
            return {"status": failed}
        print_line(line_of(task, attempted))
        return {"status": str(attempted.status), "answer": attempted.as_answer()}


def print_line(line: dict[str, Any]) -> None:
    """Print the result of an attempt."""
    print(json.dumps(line), flush=True)  # noqa: T201 - the program's output


def about(task: TextTask) -> dict[str, Any]:
    """Return the fields of ``POST /sessions`` for an attempt at ``task``."""
    return {"task_id": task.task_id, "agent": AGENT, "harness_version": HARNESS_VERSION, "task": task.facts}


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
    """Attempt the tasks, ``options.concurrency`` attempts at a time."""
    tasks = [task for task in read_tasks(options.tasks) if task.split == options.split][: options.count]
    limits = TextLimits(options.budget, options.soft or options.budget // 2, options.hard or options.budget * 3 // 4)
    settings = AttemptSettings(options.model, options.temperature, options.answer_tokens, limits)
    groups = settings_of(options)
    async with AsyncExitStack() as exits:
        retriever = await open_retriever(options.corpus)
        key = os.environ.get("OPENAI_API_KEY") or "none"
        client = await exits.enter_async_context(AsyncOpenAI(api_key=key))
        sessions: Sessions = UnrecordedSessions(str(client.base_url))
        if options.gateway is not None:
            sessions = await exits.enter_async_context(gateway_sessions(options.gateway, key))
        room = await exits.enter_async_context(room_of(options))
        program = Program(client, retriever, settings, options.timeout)
        await run_groups(tasks, groups, sessions, room, about=about, attempt=program.one, purpose=options.split.purpose)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of `headrace corpus`, with its index")
    parser.add_argument("--tasks", type=Path, required=True, help="file of `headrace tasks`")
    parser.add_argument("--model", required=True, help="model at OPENAI_BASE_URL, or behind the gateway")
    parser.add_argument("--gateway", metavar="URL", help="the capture gateway: attempts are recorded")
    parser.add_argument("--split", type=Split, choices=list(Split), default=Split.HELD_OUT, help="heldout: evaluation")
    parser.add_argument("--count", type=int, default=100, help="tasks")
    add_options(parser)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--answer-tokens", type=int, default=1_024, help="longest answer of the model")
    parser.add_argument("--budget", type=int, default=32_768, help="tokens of context")
    parser.add_argument("--soft", type=int, help="tokens from which pruning is advised; default: half of the budget")
    parser.add_argument("--hard", type=int, help="tokens from which only pruning is allowed; default: three quarters")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Read the options and run."""
    run_program(parser(), run, argv, at_least_one=("count", "answer_tokens"))


if __name__ == "__main__":
    main()
