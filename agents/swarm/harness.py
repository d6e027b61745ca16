"""The rules of an episode, without models: what the orchestrator sees, what its tokens do, when the episode ends.

    <task> list employer of ada bruno carla dario t04 <agent>
    create_subagent alpha employer <end>
    <result> alpha t03 <agent>
    assign_task alpha ada assign_task alpha bruno assign_task alpha carla assign_task alpha dario <end>
    <result> c17 ada employer acme c40 bruno employer ibex nothing c09 dario employer acme t00 <agent>
    answer c17 c40 c09 <end>

A pure state machine over token ids, which the live episode, the demonstrations and a simulator share. Running the
sub-agents is a request (``Assigned``) whose reports the caller feeds back with ``report``. The budget counts critical
steps before the answer: one per turn, plus those of the slowest sub-agent that the turn started (Kimi K2.5). When none
is left, only an answer is accepted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from headrace.agents.search.corpus import Chunk
from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.actions import Answer, Assign, Create, Find, Malformed, Read, parse
from headrace.agents.swarm.subagents import Report, SubTask
from headrace.agents.swarm.tasks import Source, Task
from headrace.schemas.events import EndStatus, ToolErrorClass

HARNESS_VERSION = "swarm-1"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode, and how reliable its search is."""

    failed_searches: float = 0.2
    """Share of ``find_page`` calls that time out; a repeated call may succeed."""
    sampled_tokens: int = 64
    """Largest number of tokens per model call; a longer turn is cut off and malformed."""

    def __post_init__(self) -> None:
        if not 0 <= self.failed_searches < 1:
            raise ValueError(f"failed_searches is {self.failed_searches}: it must be at least 0 and below 1")
        if self.sampled_tokens < 1:
            raise ValueError(f"sampled_tokens is {self.sampled_tokens}: it must be at least 1")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One tool call of a turn, for the log."""

    tool: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    error_class: ToolErrorClass | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a turn led to."""

    calls: tuple[ToolResult, ...]
    ids: tuple[int, ...]
    """Tokens to append after the model's own."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Sub-tasks to run concurrently; their reports go to ``Harness.report``, in the same order."""

    subtasks: tuple[SubTask, ...]
    stage: int
    """Number of the turn, from 0."""
    max_steps: int
    """Model calls that each sub-agent may make, at least 1."""


@dataclass(frozen=True, slots=True)
class Done:
    """End of the episode."""

    status: EndStatus
    answer: dict[str, list[str]] | None
    """``{"chunk_ids": […]}``; ``None`` if the model gave no answer."""
    outcome: float
    """Item F1 of a wide task, accuracy (0 or 1) of a deep one."""
    calls: tuple[ToolResult, ...] = ()
    """The refused call that ended the episode."""


class Harness:
    """One episode of one task. ``observe`` returns the context; ``act`` applies the model's tokens."""

    def __init__(self, task: Task, attempt: str, limits: Limits | None = None) -> None:
        """``attempt`` seeds which searches time out: attempts at the same task differ in that."""
        self.task = task
        self.limits = limits or Limits()
        self.turns = 0
        """Number of model calls so far."""
        self.critical_steps = 0
        """Σ of 1 per turn and the slowest sub-agent of each, without the answer."""
        self.assigned = 0
        """Number of sub-tasks assigned."""
        self.seen: dict[str, Chunk] = {}
        """Chunks shown so far by id, in order."""
        self.pages: dict[str, str] = {}
        """Entity → document, as far as ``find_page`` showed it."""
        self.agents: dict[str, tuple[str, ...]] = {}
        """Created sub-agents → system prompt; a second creation under the same name replaces the first."""
        self._rng = Random(f"headrace/{task.task_id}/{attempt}")
        self._open: Assigned | None = None
        self._context = words.encode_words((words.TASK, *task.question))
        self._close()

    @property
    def steps_left(self) -> int:
        """Critical steps left before the answer."""
        return max(0, self.task.budget - self.critical_steps)

    def observe(self) -> tuple[int, ...]:
        """Return the whole context of the model, which ends with ``<agent>``."""
        return tuple(self._context)

    def act(self, sampled: Sequence[int]) -> Observation | Assigned | Done:
        """Apply the model's tokens. Every sequence of tokens has a defined result; none is dropped.

        Raises ``RuntimeError`` while reports of sub-agents are outstanding.
        """
        if self._open is not None:
            raise RuntimeError("the reports of the assigned sub-tasks are outstanding: call report() first")
        self.turns += 1
        self._context.extend(sampled)
        turn = parse(sampled)
        if isinstance(turn, Answer):
            answer = list(turn.chunk_ids)
            return Done(EndStatus.COMPLETED, {"chunk_ids": answer}, outcome(self.task, answer, self.seen.keys()))
        if self.steps_left == 0:
            tool = turn.tool if isinstance(turn, Malformed) else _TOOLS[type(turn)]
            refused = ToolResult(tool, {}, {"error": "no critical step is left"}, ToolErrorClass.REFUSED)
            return Done(EndStatus.BUDGET_EXHAUSTED, None, 0.0, (refused,))
        self.critical_steps += 1
        match turn:
            case Find(entity):
                return self._find(entity)
            case Read(doc_id, relation):
                return self._read(doc_id, relation)
            case Create(calls):
                return self._create(calls)
            case Assign(calls):
                return self._assign(calls)
            case Malformed(tool, raw, reason):
                return self._invalid(tool, {"raw": raw}, reason)

    def report(self, reports: Sequence[Report]) -> Observation:
        """Feed back what the assigned sub-agents returned, in the order of ``Assigned.subtasks``."""
        assigned, self._open = self._open, None
        if assigned is None or len(reports) != len(assigned.subtasks):
            expected = len(assigned.subtasks) if assigned else 0
            raise ValueError(f"{len(reports)} reports for {expected} outstanding sub-tasks")
        if slow := [report for report in reports if not 0 <= report.steps <= assigned.max_steps]:
            raise ValueError(f"a sub-agent made {slow[0].steps} model calls: at most {assigned.max_steps} were allowed")
        self.critical_steps += max(report.steps for report in reports)
        calls: list[ToolResult] = []
        text: list[str] = []
        for subtask, report in zip(assigned.subtasks, reports, strict=True):
            message = _message(report.chunk)
            text += message
            if report.chunk is not None:
                self.seen.setdefault(report.chunk.chunk_id, report.chunk)
            calls.append(ToolResult(words.ASSIGN, assign_arguments(subtask), assign_result(report)))
        return self._observe(calls, words.RESULT, text)

    def _find(self, entity: str) -> Observation:
        arguments = {"entity": entity}
        if self._rng.random() < self.limits.failed_searches:
            error = ToolResult(words.FIND, arguments, {"error": "the search timed out"}, ToolErrorClass.TIMEOUT)
            return self._observe([error], words.ERROR, [words.TIMEOUT])
        page = next((chunk.doc_id for chunk in self.task.corpus.chunks if chunk.triple.subject == entity), None)
        if page is not None:
            self.pages[entity] = page
        found = [page or words.NOTHING]
        return self._observe([ToolResult(words.FIND, arguments, {"doc_id": page})], words.RESULT, found)

    def _read(self, doc_id: str, relation: str) -> Observation:
        page = self.task.corpus.document(doc_id)
        chunk = next((chunk for chunk in page if chunk.triple.relation == relation), None)
        if chunk is not None:
            self.seen.setdefault(chunk.chunk_id, chunk)
        result = {"chunk_ids": [chunk.chunk_id] if chunk else [], "text": " ".join(_message(chunk))}
        call = ToolResult(words.READ, {"doc_id": doc_id, "relation": relation}, result)
        return self._observe([call], words.RESULT, _message(chunk))

    def _create(self, calls: Sequence[tuple[str, tuple[str, ...]]]) -> Observation:
        self.agents.update(calls)
        results = [
            ToolResult(words.CREATE, {"name": name, "system_prompt": " ".join(prompt)}, {"created": name})
            for name, prompt in calls
        ]
        return self._observe(results, words.RESULT, [name for name, _ in calls])

    def _assign(self, calls: Sequence[tuple[str, tuple[str, ...]]]) -> Observation | Assigned:
        unknown = [name for name, _ in calls if name not in self.agents]
        arguments = {"agents": [name for name, _ in calls]}
        if unknown:
            return self._invalid(words.ASSIGN, arguments, f"there is no sub-agent {unknown[0]}")
        if self.steps_left == 0:
            return self._invalid(words.ASSIGN, arguments, "no critical step is left for sub-agents")
        subtasks = tuple(SubTask(name, self.agents[name], prompt) for name, prompt in calls)
        self.assigned += len(subtasks)
        self._open = Assigned(subtasks, self.turns - 1, self.steps_left)
        return self._open

    def _invalid(self, tool: str, arguments: dict[str, Any], reason: str) -> Observation:
        call = ToolResult(tool, arguments, {"error": reason}, ToolErrorClass.INVALID_ARGUMENTS)
        return self._observe([call], words.ERROR, [words.INVALID, words.ACTION])

    def _observe(self, calls: Sequence[ToolResult], marker: str, text: Sequence[str]) -> Observation:
        start = len(self._context)
        self._context += words.encode_words((marker, *text))
        self._close()
        return Observation(tuple(calls), tuple(self._context[start:]))

    def _close(self) -> None:
        self._context += words.encode_words((words.STEPS[self.steps_left], words.AGENT))


_TOOLS = {Find: words.FIND, Read: words.READ, Create: words.CREATE, Assign: words.ASSIGN}


def outcome(task: Task, answered: Sequence[str], shown: Collection[str]) -> float:
    """Return item F1 of a wide task, accuracy of a deep one; chunks that were never shown are wrong items."""
    found = len(set(answered) & set(task.targets) & set(shown))
    if task.source is Source.DEEP:
        return float(found == len(answered) == 1)
    return 2 * found / (len(answered) + len(task.targets))


def assign_arguments(subtask: SubTask) -> dict[str, str]:
    """Return the arguments of an ``assign_task`` for the log."""
    return {"agent": subtask.name, "prompt": " ".join(subtask.prompt)}


def assign_result(report: Report) -> dict[str, Any]:
    """Return the result of an ``assign_task`` for the log."""
    return {"message": " ".join(_message(report.chunk)), "status": str(report.status), "steps": report.steps}


def _message(chunk: Chunk | None) -> tuple[str, ...]:
    if chunk is None:
        return (words.NOTHING,)
    return (chunk.chunk_id, chunk.triple.subject, chunk.triple.relation, chunk.triple.value)
