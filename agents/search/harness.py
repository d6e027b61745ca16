"""The rules of an episode, without the model: what the model sees, what its tokens do, and when the episode ends.

    <task> what is the seat of the employer of ada ? [Token usage: 1 1 / 1 2 0 ] <agent>
    search_corpus ada employer <end>
    <result> c17 d03 employer of ada is acme … [Token usage: 4 9 / 1 2 0 ] <agent>

A pure state machine over token ids, which the live episode, the demonstrations and a simulator share. Searches omit
chunks that were already shown; the model is not informed of that. A prune rewrites the context to the question, the
calls whose results still show chunks, and a new usage line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.agents.search import vocabulary as words
from headrace.agents.search.actions import Action, Malformed, parse
from headrace.agents.search.corpus import CHUNK_TOKENS, Chunk
from headrace.agents.search.tasks import Task
from headrace.schemas.events import EndStatus, ToolErrorClass

HARNESS_VERSION = "search-1"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode, in tokens of context unless stated otherwise."""

    budget: int = 120
    """Size of the context at which the episode ends."""
    soft: int = 60
    """Size from which the usage line suggests pruning."""
    hard: int = 76
    """Size from which every tool but pruning is refused."""
    search_tokens: int = 3 * CHUNK_TOKENS
    """Largest result of a search."""
    grep_chunks: int = 5
    """Largest number of chunks in the result of a grep."""
    turns: int = 8
    """Number of model calls after which the episode ends."""
    sampled_tokens: int = 16
    """Largest number of tokens per model call; a longer turn is cut off and malformed."""
    pruning: bool = True
    """Whether chunks can be pruned. Without it, the tool is refused, and no threshold applies before the budget: for
    comparisons at equal budget."""

    def __post_init__(self) -> None:
        if not 0 < self.soft <= self.hard <= self.budget:
            raise ValueError(f"0 < soft ≤ hard ≤ budget does not hold: {self.soft}, {self.hard}, {self.budget}")


@dataclass(frozen=True, slots=True)
class Pruned:
    """A prune of the context."""

    chunk_ids: tuple[str, ...]
    """Removed chunks."""
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of a tool call."""

    tool: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    """``{"chunk_ids": […], "text": …}`` if chunks were shown."""
    error_class: ToolErrorClass | None
    ids: tuple[int, ...]
    """Tokens to append after the model's own; if ``pruned`` is set, the whole new context."""
    pruned: Pruned | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """End of the episode."""

    status: EndStatus
    answer: dict[str, list[str]] | None
    """``{"chunk_ids": […]}``; ``None`` if the model gave no answer."""
    observation: Observation | None = None
    """The tool call that exhausted the budget or the turns."""


@dataclass(slots=True)
class _Exchange:
    """A tool call in the context, with the chunks that its result still shows."""

    sampled: tuple[int, ...]
    shown: list[Chunk] = field(default_factory=list)


class Harness:
    """One episode of one task. ``observe`` returns the context; ``act`` applies the model's tokens."""

    def __init__(self, task: Task, limits: Limits | None = None) -> None:
        self.task = task
        self.limits = limits or Limits()
        self.turns = 0
        """Number of model calls so far."""
        self.seen: dict[str, None] = {}
        """Ids of all chunks shown so far, in order, including pruned ones."""
        self.used = 0
        """Tokens of the context before the latest usage line, as that line states. The thresholds apply to it."""
        self._question = tuple(words.encode_words((words.TASK, *task.question)))
        self._exchanges: list[_Exchange] = []
        self._context: list[int] = [*self._question]
        self._close(self._context)

    def observe(self) -> tuple[int, ...]:
        """Return the whole context of the model, which ends with ``<agent>``."""
        return tuple(self._context)

    @property
    def view(self) -> list[Chunk]:
        """Chunks in the context, in order, each once."""
        return list({chunk.chunk_id: chunk for exchange in self._exchanges for chunk in exchange.shown}.values())

    @property
    def context_tokens(self) -> int:
        """Length of the context, including its last usage line."""
        return len(self._context)

    def act(self, sampled: Sequence[int]) -> Observation | Done:
        """Apply the model's tokens. Every sequence of tokens has a defined result; none is dropped."""
        self.turns += 1
        self._context.extend(sampled)
        action = parse(sampled)
        if isinstance(action, Action) and action.tool == words.ANSWER:
            return Done(EndStatus.COMPLETED, {"chunk_ids": list(dict.fromkeys(action.arguments))})
        observation = self._malformed(action) if isinstance(action, Malformed) else self._call(action, tuple(sampled))
        if self.context_tokens >= self.limits.budget:
            return Done(EndStatus.BUDGET_EXHAUSTED, None, observation)
        if self.turns >= self.limits.turns:
            return Done(EndStatus.TURNS_EXHAUSTED, None, observation)
        return observation

    def _call(self, action: Action, sampled: tuple[int, ...]) -> Observation:
        if action.tool == words.PRUNE and self.limits.pruning:
            return self._prune(action)
        if action.tool == words.PRUNE or (self.limits.pruning and self.used >= self.limits.hard):
            return self._error(action, ToolErrorClass.REFUSED, ("refused",))
        if action.tool == words.SEARCH:
            found = self.task.index.search(action.arguments, exclude=self.seen)
            room = self.limits.search_tokens
        elif action.tool == words.GREP:
            found = self.task.index.grep(action.arguments[0])
            room = self.limits.grep_chunks * CHUNK_TOKENS
        else:
            found = list(self.task.corpus.document(action.arguments[0]))
            room = self.limits.budget
        # A result alone never exceeds the budget: it has as many whole chunks as still fit after "<result>".
        room = min(room, self.limits.budget - self.context_tokens - 1)
        shown = found[: max(room, 0) // CHUNK_TOKENS]
        self.seen.update(dict.fromkeys(chunk.chunk_id for chunk in shown))
        if shown:
            self._exchanges.append(_Exchange(sampled, shown))
        text = [word for chunk in shown for word in chunk.words] or ["nothing", "found"]
        result = {"chunk_ids": [chunk.chunk_id for chunk in shown], "text": " ".join(text)}
        return Observation(action.tool, action.named_arguments, result, None, self._append(words.RESULT, text))

    def _prune(self, action: Action) -> Observation:
        removed = set(action.arguments)
        if not removed <= {chunk.chunk_id for chunk in self.view}:
            return self._error(action, ToolErrorClass.INVALID_ARGUMENTS, ("invalid", "action"))
        before = self.context_tokens
        for exchange in self._exchanges:
            exchange.shown = [chunk for chunk in exchange.shown if chunk.chunk_id not in removed]
        self._exchanges = [exchange for exchange in self._exchanges if exchange.shown]
        self._context = [*self._question]
        for exchange in self._exchanges:
            shown = [word for chunk in exchange.shown for word in chunk.words]
            self._context += (*exchange.sampled, *words.encode_words((words.RESULT, *shown)))
        self._close(self._context)
        chunk_ids = tuple(dict.fromkeys(action.arguments))
        pruned = Pruned(chunk_ids, before, self.context_tokens)
        result = {"pruned": list(chunk_ids)}
        return Observation(action.tool, action.named_arguments, result, None, self.observe(), pruned)

    def _malformed(self, action: Malformed) -> Observation:
        text = ("invalid", "action")
        ids = self._append(words.ERROR, text)
        error = {"error": action.reason}
        return Observation(action.tool, {"raw": action.raw}, error, ToolErrorClass.INVALID_ARGUMENTS, ids)

    def _error(self, action: Action, error_class: ToolErrorClass, text: tuple[str, ...]) -> Observation:
        ids = self._append(words.ERROR, text)
        return Observation(action.tool, action.named_arguments, {"error": " ".join(text)}, error_class, ids)

    def _append(self, marker: str, text: Sequence[str]) -> tuple[int, ...]:
        """Add an observation and a usage line to the context; return the added tokens."""
        start = len(self._context)
        self._context += words.encode_words((marker, *text))
        self._close(self._context)
        return tuple(self._context[start:])

    def _close(self, context: list[int]) -> None:
        """Append the usage line, with advice above the thresholds, and ``<agent>`` to ``context``."""
        self.used = len(context)
        opening, label, slash, closing = words.USAGE
        line = [opening, label, *str(self.used), slash, *str(self.limits.budget), closing]
        if self.limits.pruning and self.used >= self.limits.hard:
            line += ["only", "pruning"]
        elif self.limits.pruning and self.used >= self.limits.soft:
            line += ["consider", "pruning"]
        context += words.encode_words((*line, words.AGENT))
