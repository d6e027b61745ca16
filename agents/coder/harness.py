"""The rules of an episode, without the model: what the model sees, what its tokens do, and when the episode ends.

    <task> repair charge [Token usage: 2 %] <agent> grep charge <end>
    <result> billing.py # charge : x times rate <nl> … [Token usage: 14 %] <agent>

A pure state machine over token ids, which the live episode, the demonstrations and a simulator share. Running tests is
an effect: ``act`` returns a ``TestRun``, and the caller passes its results to ``tested``. At a size of the context the
harness asks for a summary; the next context is the task, the model's summary, and the state: how many summaries there
were, and the to-do list. The summary is a turn like any other, trained with the reward of the whole attempt.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.actions import Action, Malformed, parse, thinking_tokens
from headrace.agents.coder.grading import Outputs, passed
from headrace.agents.coder.repository import Repository
from headrace.agents.coder.tasks import Task, outcome
from headrace.agents.coder.todo import TodoList
from headrace.schemas.events import EndStatus, ToolErrorClass

HARNESS_VERSION = "coder-2"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""

CLOSING_TOKENS = len(words.USAGE) + 1 + 3
"""Tokens after a result: the usage line, ``<agent>``, and what asks for a summary."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode, in tokens of context unless stated otherwise."""

    budget: int = 160
    """Size of the context at which the episode ends."""
    summarize_at: int = 112
    """Size from which the harness asks for a summary."""
    summaries: int = 12
    """Largest number of summaries; 0 turns them off."""
    result_tokens: int = 40
    """Largest result of a tool; a longer one is cut off."""
    grep_lines: int = 4
    """Largest number of lines in the result of a grep."""
    turns: int = 10
    """Number of model calls after which the episode ends, without ``turns_per_function``."""
    turns_per_function: int = 8
    """Further model calls for each function to repair."""
    sampled_tokens: int = 24
    """Largest number of tokens per model call; a longer call of a tool is cut off and malformed."""

    def __post_init__(self) -> None:
        for name in ("summarize_at", "result_tokens", "grep_lines", "turns", "sampled_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if min(self.summaries, self.turns_per_function) < 0:
            raise ValueError("summaries and turns_per_function must not be negative")
        if self.summarize_at > self.budget:
            raise ValueError(f"summarize_at is {self.summarize_at}, above the budget of {self.budget}")


class Purpose(StrEnum):
    """Why tests run."""

    CHECK = "check"
    """The model called ``run_tests``."""
    VERDICT = "verdict"
    """The model submitted."""


@dataclass(frozen=True, slots=True)
class TestRun:
    """A request to run functions of the repository in the sandbox and to pass the results to ``Harness.tested``."""

    __test__ = False  # not a test of pytest

    purpose: Purpose
    calls: dict[str, list[str]]
    """File → functions to call."""
    inputs: tuple[int, ...]
    """The values of x."""


@dataclass(frozen=True, slots=True)
class Summarized:
    """The context was replaced by a summary."""

    summary: str
    chain_index: int
    """Number of the summary in the attempt, from 1."""
    summary_tokens: int
    """Tokens that the model sampled for it."""
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of a turn."""

    tool: str
    """Called tool; empty for a summary."""
    arguments: dict[str, Any]
    result: dict[str, Any]
    error_class: ToolErrorClass | None
    ids: tuple[int, ...]
    """Tokens to append after the model's own; if ``summarized`` is set, the whole new context."""
    written: str | None = None
    """File that the turn changed; its text is ``Harness.repository.text(written)``."""
    summarized: Summarized | None = None
    thinking_tokens: int = 0
    """Tokens of the turn before its call."""


@dataclass(frozen=True, slots=True)
class Done:
    """End of the episode."""

    status: EndStatus
    outcome: float
    """The verdict on what was submitted, in [0, 1]; 0 if nothing was."""
    answer: dict[str, Any] | None
    """Functions that pass the verdict's tests; ``None`` if nothing was submitted."""
    observation: Observation | None = None
    """The last call."""


Step: TypeAlias = Observation | Done | TestRun


def request_tests(task: Task, purpose: Purpose) -> TestRun:
    """Return the request for the tests of ``task``: a check and the verdict have different inputs."""
    inputs = task.check_inputs if purpose is Purpose.CHECK else task.verdict_inputs
    return TestRun(purpose, task.calls(), inputs)


class Harness:
    """One episode of one task. ``observe`` returns the context; ``act`` applies the model's tokens."""

    def __init__(self, task: Task, limits: Limits | None = None) -> None:
        self.task = task
        self.limits = limits or Limits()
        self.turns = 0
        """Number of model calls so far."""
        self.summaries = 0
        """Number of summaries so far."""
        self.repository: Repository = task.broken
        """The files as the model has edited them."""
        self.todo = TodoList()
        self.summary_due = False
        """Whether the next turn is a summary."""
        self._pending: TestRun | None = None
        self._thinking_tokens = 0
        self._prompt = tuple(words.encode_words((words.TASK, *task.prompt)))
        self._context: list[int] = [*self._prompt]
        self._close()

    def observe(self) -> tuple[int, ...]:
        """Return the whole context of the model, which ends with ``<agent>``."""
        return tuple(self._context)

    @property
    def context_tokens(self) -> int:
        """Length of the context, including its last usage line."""
        return len(self._context)

    @property
    def most_turns(self) -> int:
        """Number of model calls after which the episode ends."""
        return self.limits.turns + self.limits.turns_per_function * len(self.task.targets)

    def act(self, sampled: Sequence[int]) -> Step:
        """Apply the model's tokens. Every sequence of tokens has a defined result; none is dropped.

        Raises ``RuntimeError`` while the results of a ``TestRun`` are missing.
        """
        if self._pending is not None:
            raise RuntimeError("a test run is pending: pass its results to tested()")
        self.turns += 1
        self._context.extend(sampled)
        if self.summary_due:
            self._thinking_tokens = 0
            return self._bounded(self._summarize(sampled))
        self._thinking_tokens = thinking_tokens(words.decode_words(sampled))
        action = parse(sampled)
        if isinstance(action, Malformed):
            return self._bounded(self._malformed(action))
        if action.tool in (words.RUN_TESTS, words.SUBMIT):
            purpose = Purpose.CHECK if action.tool == words.RUN_TESTS else Purpose.VERDICT
            self._pending = request_tests(self.task, purpose)
            return self._pending
        return self._bounded(self._call(action))

    def tested(self, outputs: Outputs, error: str | None = None) -> Observation | Done:
        """Apply the results of the pending ``TestRun``. ``error``: why there are none, a label such as ``timed_out``.

        Raises ``RuntimeError`` if none is pending.
        """
        if self._pending is None:
            raise RuntimeError("no test run is pending")
        return self.concluded(passed(outputs, self.task.expected(self._pending.inputs)), error)

    def concluded(self, right: Collection[str], error: str | None = None) -> Observation | Done:
        """As ``tested``, with the functions whose results are right: what the log has of a run."""
        pending, self._pending = self._pending, None
        if pending is None:
            raise RuntimeError("no test run is pending")
        failed = [name for name in self.task.specifications if name not in right]
        result: dict[str, Any] = {"passed": len(right), "failed": failed}
        if error is not None:
            result["error"] = error
        if pending.purpose is Purpose.VERDICT:
            noted = Observation(words.SUBMIT, {}, result, None, (), thinking_tokens=self._thinking_tokens)
            answer = {"passed": [name for name in self.task.specifications if name in right]}
            return Done(EndStatus.COMPLETED, outcome(self.task, right), answer, noted)
        text = ("failed", *failed) if failed else ("passed",)
        return self._bounded(Observation(words.RUN_TESTS, {}, result, None, self._append(words.RESULT, text)))

    def _bounded(self, observation: Observation) -> Observation | Done:
        """Return ``observation``, or the end of the episode if it was the last that the limits allow."""
        observation = replace(observation, thinking_tokens=self._thinking_tokens)
        if self.turns >= self.most_turns:
            return Done(EndStatus.TURNS_EXHAUSTED, 0.0, None, observation)
        if self.context_tokens >= self.limits.budget and not self.summary_due:
            return Done(EndStatus.BUDGET_EXHAUSTED, 0.0, None, observation)
        return observation

    def _call(self, action: Action) -> Observation:
        match action.tool:
            case words.READ:
                path = action.arguments[0]
                if path not in self.repository.files:
                    return self._error(action, ("nothing", "found"))
                return self._shown(action, self.repository.words(path))
            case words.GREP:
                found = self.repository.lines_about(action.arguments[0])
                text: list[str] = []
                for path, line in found[: self.limits.grep_lines]:
                    text += (*((words.NEWLINE,) if text else ()), path, *line)
                return self._shown(action, text or ("nothing", "found"))
            case words.EDIT:
                path, function, *body = action.arguments
                if path not in self.repository.files:
                    return self._error(action, ("nothing", "found"))
                self.repository = self.repository.edited(path, function, tuple(body))
                return self._shown(action, ("edited",), written=path)
            case words.TODO_ADD:
                self.todo = self.todo.added(action.arguments)
                return self._shown(action, self.todo.words)
            case _:
                if action.arguments[0] not in self.todo.items:
                    return self._error(action, ("nothing", "found"))
                self.todo = self.todo.finished(action.arguments[0])
                return self._shown(action, self.todo.words)

    def _shown(self, action: Action, text: Sequence[str], written: str | None = None) -> Observation:
        room = min(self.limits.result_tokens, self.limits.budget - self.context_tokens - CLOSING_TOKENS)
        shown = text[: max(room, 0)]
        result: dict[str, Any] = {"text": " ".join(shown)}
        if len(shown) < len(text):
            result["omitted_tokens"] = len(text) - len(shown)
        ids = self._append(words.RESULT, shown)
        return Observation(action.tool, action.named_arguments, result, None, ids, written)

    def _summarize(self, sampled: Sequence[int]) -> Observation:
        """Replace the context by the task, the sampled summary, and the state."""
        text = [word for word in words.decode_words(sampled) if word in words.NOTE_WORDS]
        before, self.summary_due = self.context_tokens, False
        self.summaries += 1
        state = (words.STATE, "summaries", str(min(self.summaries, 100)), *self.todo.words)
        self._context = [*self._prompt, *words.encode_words((words.SUMMARY, *text, *state))]
        self._close()
        summary = Summarized(" ".join(text), self.summaries, len(sampled), before, self.context_tokens)
        return Observation("", {}, {}, None, self.observe(), summarized=summary)

    def _malformed(self, action: Malformed) -> Observation:
        ids = self._append(words.ERROR, ("invalid", "action"))
        error = {"error": action.reason}
        return Observation(action.tool, {"raw": action.raw}, error, ToolErrorClass.INVALID_ARGUMENTS, ids)

    def _error(self, action: Action, text: tuple[str, ...]) -> Observation:
        ids = self._append(words.ERROR, text)
        error = {"error": " ".join(text)}
        return Observation(action.tool, action.named_arguments, error, ToolErrorClass.INVALID_ARGUMENTS, ids)

    def _append(self, marker: str, text: Sequence[str]) -> tuple[int, ...]:
        """Add an observation and a usage line to the context; return the added tokens."""
        start = len(self._context)
        self._context += words.encode_words((marker, *text))
        self._close()
        return tuple(self._context[start:])

    def _close(self) -> None:
        """Append the usage line, the request for a summary if it is due, and ``<agent>``."""
        opening, label, closing = words.USAGE
        used = min(100, 100 * len(self._context) // self.limits.budget)
        line = [opening, label, str(used), closing]
        if self.summaries < self.limits.summaries and len(self._context) >= self.limits.summarize_at:
            self.summary_due = True
            line.append(words.SUMMARIZE)
        self._context += words.encode_words((*line, words.AGENT))
