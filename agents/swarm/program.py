"""An orchestrator of sub-agents on OpenAI's client, over real text: one line of JSON per attempt.

    export OPENAI_API_KEY=…
    python -m headrace.agents.swarm.program --corpus corpus --tasks corpus/tasks.jsonl --split train \
        --gateway http://127.0.0.1:8200 --model policy --attempts 8 --concurrency 64 --kafka 127.0.0.1:9092 --run swarm

The orchestrator may search by itself, create sub-agents and assign them sub-tasks; those of one message run at the same
time. Each attempt is a session of the capture gateway whose agent is ``swarm``, which selects the reward ``swarm@1``.
A sub-agent has a session of its own, which names its parent::

    POST /sessions {"session": "5d0c…", "agent": "swarm", "task": {"source": "wide", …}, "group_id": …, "group_size": 8}
    POST /s/5d0c…/v1/chat/completions                                            the orchestrator
    POST /v1/chat/completions   x-session-id: 5d0c…-1   x-parent-session-id: 5d0c…   a sub-agent: it counts as assigned
    POST /sessions/5d0c…-1/end  {"status": "completed"}                          it counts as finished
    POST /sessions/5d0c…/end    {"status": "completed", "outcome": 0.75}         the task's own score
"""

import argparse
import asyncio
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from headrace.agents.environments.program_groups import add_options, room_of, run_groups, run_program, settings_of
from headrace.agents.environments.sessions import GatewayFailed, Session, Sessions, gateway_sessions
from headrace.agents.retrieval.endpoint import RetrievalError
from headrace.agents.retrieval.index import open_retriever
from headrace.agents.retrieval.retriever import Retriever
from headrace.agents.search.tasks import Split
from headrace.agents.search.text.tasks import TextTask, read_tasks
from headrace.schemas.events import EndStatus

AGENT = "swarm"
"""Name of the agent in every ``trajectory.started``; it selects the reward."""

HARNESS_VERSION = "swarm-text-1"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""

WIDE, DEEP = "wide", "deep"
"""Sources of tasks: several questions of one or two hops; one question of more hops."""

INSTRUCTION = """\
Answer the questions from a corpus of Python's documentation. There are tools to search it, to create sub-agents, which
can search, and to assign them sub-tasks. Call answer at the end, with one answer for each question, in their order: a
name or a value as the documentation writes it. You have {steps} steps: each of your messages is one, and so is each of
the slowest sub-agent that a message gave a sub-task."""

NO_CALL = "Call a tool; answer ends the attempt."
SEARCH_TOKENS = 1_024
"""Largest result of a search."""


def function(tool: str, description: str, /, **parameters: Any) -> dict[str, Any]:
    """Return the schema of a tool whose parameters are all required."""
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": tool, "description": description, "parameters": schema}}


TEXT = {"type": "string"}
SEARCH = function("search", "Passages of the documentation that fit a query.", query=TEXT)
TOOLS = [
    SEARCH,
    function("create_subagent", "Create a sub-agent, which can search.", name=TEXT, system_prompt=TEXT),
    function("assign_task", "Give a sub-agent a sub-task, and get its report.", agent=TEXT, prompt=TEXT),
    function("answer", "End the attempt.", answers={"type": "array", "items": TEXT}),
]


@dataclass(frozen=True, slots=True)
class SwarmTask:
    """Questions of an attempt."""

    task_id: str
    source: str
    questions: tuple[TextTask, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """Data in ``trajectory.started``; ``source`` is what Toggle's ``source_budgets`` and the monitors know."""
        return {"source": self.source, "size": len(self.questions)}

    def outcome(self, answers: Sequence[str]) -> float:
        """Return the item F1 of the answers; of one question that is its accuracy."""
        right = sum(normal(said) == normal(task.answer) for said, task in zip(answers, self.questions, strict=False))
        return 2 * right / (len(answers) + len(self.questions))


def normal(text: str) -> str:
    """Return ``text`` as it is compared."""
    return " ".join(text.split()).strip("`'\". ")


def swarm_tasks(tasks: Iterable[TextTask], questions: int) -> list[SwarmTask]:
    """Return deep tasks of one question each, and wide tasks of ``questions`` questions each; what is left over is not
    used. The id of a wide task is that of its first question."""
    found, waiting = [], list[TextTask]()
    for task in tasks:
        if len(task.hops) > 2:
            found.append(SwarmTask(f"deep-{task.task_id}", DEEP, (task,)))
            continue
        waiting.append(task)
        if len(waiting) == questions:
            found.append(SwarmTask(f"wide-{questions}-{waiting[0].task_id}", WIDE, tuple(waiting)))
            waiting = []
    return found


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """How attempts are made."""

    model: str
    steps: int = 24
    """Critical steps: the orchestrator's messages, and for each of them those of its slowest sub-agent."""
    subagent_steps: int = 6
    """Messages of a sub-agent; its last one without a call is its report."""
    answer_tokens: int = 2_048
    temperature: float = 1.0
    timeout_s: float = 1_800.0


@dataclass(slots=True)
class Attempt:
    """One attempt of the orchestrator."""

    settings: SwarmSettings
    client: AsyncOpenAI
    """At the gateway, without a session: each request names its own."""
    sessions: Sessions
    retriever: Retriever
    session: Session
    created: dict[str, str] = field(default_factory=dict)
    """Sub-agent → its system prompt."""
    steps: int = 0
    """Critical steps so far."""
    assigned: int = 0
    finished: int = 0

    async def run(self, task: SwarmTask) -> tuple[EndStatus, list[str]]:
        """Attempt ``task``; return how it ended, and the answers. Raises the client's errors and RetrievalError."""
        questions = "\n".join(f"{number}. {each.question}" for number, each in enumerate(task.questions, 1))
        messages: list[Any] = [
            {"role": "system", "content": INSTRUCTION.format(steps=self.settings.steps)},
            {"role": "user", "content": questions},
        ]
        client = self.client.with_options(base_url=self.session.base_url)
        while self.steps < self.settings.steps:
            calls = await self._ask(client, messages, TOOLS)
            self.steps += 1
            slowest = 0
            if not calls:
                messages.append({"role": "user", "content": NO_CALL})
            for (call_id, name, arguments), result in zip(
                calls, await asyncio.gather(*(self._carried_out(call) for call in calls)), strict=True
            ):
                if name == "answer" and isinstance(answers := arguments.get("answers"), list):
                    return EndStatus.COMPLETED, [str(each) for each in answers]
                text, steps = result
                slowest = max(slowest, steps)
                left = f"[{max(0, self.settings.steps - self.steps - slowest)} steps left]"
                messages.append({"role": "tool", "tool_call_id": call_id, "content": f"{text}\n{left}"})
            self.steps += slowest
        return EndStatus.BUDGET_EXHAUSTED, []

    async def _ask(self, client: AsyncOpenAI, messages: list[Any], tools: list[Any]) -> list[tuple[str, str, Any]]:
        """Have the model answer; add its message to ``messages``, and return id, name and arguments of its calls."""
        reply: Any = await client.chat.completions.create(
            model=self.settings.model,
            messages=messages,
            tools=tools,
            temperature=self.settings.temperature,
            max_completion_tokens=self.settings.answer_tokens,
        )
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        return [(call.id, call.function.name, parsed(call.function.arguments)) for call in message.tool_calls or ()]

    async def _carried_out(self, call: tuple[str, str, dict[str, Any]]) -> tuple[str, int]:
        """Return the result of a call of the orchestrator, and the steps of the sub-agent that it has started."""
        _, name, arguments = call
        match name, arguments:
            case "search", {"query": str(query)}:
                return await self._found(query), 0
            case "create_subagent", {"name": str(agent), "system_prompt": str(prompt)}:
                self.created[agent] = prompt
                return f"{agent} was created", 0
            case "assign_task", {"agent": str(agent), "prompt": str(prompt)} if agent in self.created:
                return await self._subagent(self.created[agent], prompt)
            case "assign_task", {"agent": str(agent), "prompt": str()}:
                return f"error: there is no sub-agent {agent}: create it first", 0
        return "error: no such tool, or its arguments are not those of its schema", 0

    async def _found(self, query: str) -> str:
        chunks = await self.retriever.search(query, budget=SEARCH_TOKENS)
        return "\n\n".join(chunk.shown for chunk in chunks) or "nothing found"

    async def _subagent(self, system_prompt: str, prompt: str) -> tuple[str, int]:
        """Run a sub-agent, in a session of its own whose parent is the orchestrator's; return its report and its steps.

        Its first request makes it count as assigned. It counts as finished if it reports: its session is ended as
        completed, before the orchestrator sees the report.
        """
        self.assigned += 1
        name = f"{self.session.session}-{self.assigned}"
        headers = {"x-session-id": name, "x-parent-session-id": self.session.session}
        client = self.client.with_options(default_headers=headers)
        messages: list[Any] = [{"role": "system", "content": system_prompt}, {"role": "user", "content": prompt}]
        status, report, steps = EndStatus.TURNS_EXHAUSTED, "error: the sub-agent ran out of steps", 0
        try:
            while steps < self.settings.subagent_steps:
                calls = await self._ask(client, messages, [SEARCH])
                steps += 1
                if not calls:
                    status, report = EndStatus.COMPLETED, messages[-1].get("content") or ""
                    self.finished += 1
                    break
                for call_id, tool, arguments in calls:
                    query = arguments.get("query") if tool == "search" else None
                    text = await self._found(query) if isinstance(query, str) else "error: call search with a query"
                    messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        except OpenAIError as error:  # such as a context that is full
            status, report = EndStatus.FAILED, f"error: the sub-agent failed: {type(error).__name__}"
        finally:
            with suppress(GatewayFailed):  # it has no session if its first request failed
                await self.sessions.end(Session(name, "", ""), {"status": str(status)})
        return report, steps


def parsed(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call; an empty object for what is none."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Program:
    """Makes attempts."""

    def __init__(self, client: AsyncOpenAI, sessions: Sessions, retriever: Retriever, settings: SwarmSettings) -> None:
        self._client = client
        self._sessions = sessions
        self._retriever = retriever
        self._settings = settings

    async def one(self, task: SwarmTask, session: Session) -> dict[str, Any]:
        """Attempt ``task`` and print its line; return the body with which the session ends."""
        attempt = Attempt(self._settings, self._client, self._sessions, self._retriever, session)
        line: dict[str, Any] = {"task_id": task.task_id}
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                status, answers = await attempt.run(task)
        except (OpenAIError, RetrievalError, TimeoutError) as error:
            status, answers = EndStatus.FAILED, []
            line["error"] = f"{type(error).__name__}: {error}"
        outcome = task.outcome(answers)
        counts = {"assigned": attempt.assigned, "finished": attempt.finished, "critical_steps": attempt.steps}
        print(json.dumps({**line, "status": str(status), "outcome": outcome, **counts}), flush=True)  # noqa: T201
        return {"status": str(status), "outcome": outcome, "answer": {"answers": answers}}


def about(task: SwarmTask) -> Mapping[str, Any]:
    """Return the fields of ``POST /sessions`` for an attempt at ``task``."""
    return {"task_id": task.task_id, "agent": AGENT, "harness_version": HARNESS_VERSION, "task": task.facts}


async def run(options: argparse.Namespace) -> None:
    """Attempt the tasks, ``options.concurrency`` attempts at a time."""
    questions = [task for task in read_tasks(options.tasks) if task.split == options.split]
    settings = SwarmSettings(
        options.model,
        options.steps,
        options.subagent_steps,
        options.answer_tokens,
        options.temperature,
        options.timeout,
    )
    groups = settings_of(options)
    async with AsyncExitStack() as exits:
        retriever = await open_retriever(options.corpus)
        key = os.environ.get("OPENAI_API_KEY") or "none"
        gateway = options.gateway.rstrip("/")
        client = await exits.enter_async_context(AsyncOpenAI(api_key=key, base_url=f"{gateway}/v1"))
        sessions = await exits.enter_async_context(gateway_sessions(gateway, key))
        room = await exits.enter_async_context(room_of(options))
        program = Program(client, sessions, retriever, settings)
        tasks = swarm_tasks(questions, options.questions)[: options.count]
        await run_groups(tasks, groups, sessions, room, about=about, attempt=program.one, purpose=options.split.purpose)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of `headrace corpus`, with its index")
    parser.add_argument("--tasks", type=Path, required=True, help="file of `headrace tasks`")
    parser.add_argument("--gateway", metavar="URL", required=True, help="the capture gateway")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--split", type=Split, choices=list(Split), default=Split.HELD_OUT, help="heldout: evaluation")
    parser.add_argument("--count", type=int, help="tasks; default: all")
    parser.add_argument("--questions", type=int, default=4, help="questions of a wide task")
    parser.add_argument("--steps", type=int, default=24, help="critical steps of an attempt")
    parser.add_argument("--subagent-steps", type=int, default=6, help="messages of a sub-agent")
    parser.add_argument("--answer-tokens", type=int, default=2_048, help="longest answer of the model")
    parser.add_argument("--temperature", type=float, default=1.0)
    add_options(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Read the options and run."""
    run_program(parser(), run, argv, at_least_one=("questions", "steps", "subagent_steps", "answer_tokens"))


if __name__ == "__main__":
    main()
