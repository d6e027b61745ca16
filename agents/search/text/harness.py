"""The rules of an episode over real text, without the model and without the search: a pure state machine.

    harness = TextHarness("What is the base class of http.server.HTTPServer?")
    step = harness.act("search_corpus HTTPServer base class")   → Call(SEARCH, "HTTPServer base class", budget=2048, …)
    step = harness.shown(chunks)                                → Observation("search_corpus", …)

The rules are those of :mod:`headrace.agents.search.harness`: a search omits chunks that were already shown, and the
model is not told; from the hard threshold on every tool but pruning and answering is refused; a prune leaves the
question and the calls whose results still show chunks. Here the context is a list of chat messages, and its length is
measured by the engine: each answer states its tokens, and what was added since is estimated by the characters per token
seen so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.agents.retrieval.passages import CHARACTERS_PER_TOKEN, Chunk
from headrace.agents.search.text.actions import ANSWER, GREP, PRUNE, READ, SEARCH, Action, Malformed, parse
from headrace.schemas.events import EndStatus, ToolErrorClass

HARNESS_VERSION = "text-1"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""

INSTRUCTION = """\
Find the evidence for the question in a corpus of documents. End each message with one line that calls a tool:

search_corpus QUERY          the best new chunks for a query
grep_corpus PATTERN          at most five chunks that match a regular expression (RE2)
read_document ID             the chunks of a document, such as d0412, as far as they fit
prune_chunks ID ID ...       remove chunks from your context that you do not need
answer ID ID ...             end, with the chunks that hold the evidence, such as d0412-1

Your context is limited: each result ends with its size. Question:
"""

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Limits of an episode, in tokens of context unless stated otherwise. Defaults: those printed for Context-1."""

    budget: int = 32_768
    """Size of the context at which the episode ends."""
    soft: int = 16_384
    """Size from which the usage line suggests pruning. Published: half of the budget."""
    hard: int = 24_576
    """Size from which every tool but pruning and answering is refused. Published: between half and the budget."""
    search_tokens: int = 2_048
    """Largest result of a search. Not published; headrace's choice."""
    grep_tokens: int = 2_048
    """Largest result of a grep, which has at most five chunks."""
    turns: int = 128
    """Number of model calls after which the episode ends."""

    def __post_init__(self) -> None:
        if not 0 < self.soft <= self.hard <= self.budget:
            raise ValueError(f"0 < soft ≤ hard ≤ budget does not hold: {self.soft}, {self.hard}, {self.budget}")
        if min(self.search_tokens, self.grep_tokens, self.turns) < 1:
            raise ValueError("search_tokens, grep_tokens and turns must be at least 1")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, as the engine counted them."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Call:
    """A search, grep or read that the episode carries out; the harness waits for :meth:`TextHarness.shown`."""

    tool: str
    argument: str
    budget: int
    """Most tokens of the result."""
    exclude: frozenset[str]
    """Chunks that the result must not have; only a search has some."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of a tool call."""

    tool: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    """``{"chunk_ids": […], "text": …}`` if chunks were shown."""
    error_class: ToolErrorClass | None
    pruned: tuple[str, ...] = ()
    """Removed chunks."""


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

    said: str
    shown: list[Chunk] = field(default_factory=list)


class TextHarness:
    """One episode. ``messages`` is the context; ``act`` applies what the model said, ``shown`` what a call found."""

    def __init__(self, question: str, limits: TextLimits | None = None) -> None:
        self.limits = limits or TextLimits()
        self.turns = 0
        """Number of model calls so far."""
        self.seen: dict[str, None] = {}
        """Ids of all chunks shown so far, in order, including pruned ones."""
        self.tools: list[str] = []
        """Tool of each turn, in order; ``unknown`` for one that names none."""
        self.used = 0
        """Tokens of the context before the latest usage line, as that line states. The thresholds apply to it."""
        self._question = INSTRUCTION + question
        self._exchanges: list[_Exchange] = []
        self._messages: list[Message] = []
        self._waiting: tuple[Action, Call] | None = None
        self._per_token = CHARACTERS_PER_TOKEN
        self._measured = (0, 0)
        """Tokens and characters of the context when the engine last counted it."""
        self._show(self._question)

    @property
    def messages(self) -> list[Message]:
        """The whole context of the model, which ends with a message of the user."""
        return [dict(message) for message in self._messages]

    @property
    def view(self) -> list[Chunk]:
        """Chunks in the context, in order, each once."""
        return list({chunk.chunk_id: chunk for exchange in self._exchanges for chunk in exchange.shown}.values())

    @property
    def context_tokens(self) -> int:
        """Length of the context: as far as the engine counted it, the rest estimated."""
        tokens, characters = self._measured
        return max(0, tokens + math.ceil((self._characters - characters) / self._per_token))

    def tokens_of(self, text: str) -> int:
        """Return the estimated tokens of ``text``, by the characters per token that the engine has shown so far."""
        return math.ceil(len(text) / self._per_token)

    def act(self, said: str, usage: Usage | None = None, *, was_cut: bool = False) -> Call | Observation | Done:
        """Apply what the model said. ``usage``: the engine's count for this call, if it tells. ``was_cut``: the answer
        reached its limit of tokens, so its last line may be half a call, and is none.

        Every text has a defined result; none is dropped. After a :class:`Call`, :meth:`shown` or :meth:`failed` is
        next.
        """
        if self._waiting is not None:
            raise RuntimeError("the harness waits for the result of a call: use shown or failed")
        self.turns += 1
        self._messages.append({"role": "assistant", "content": said})
        if usage is not None and usage.prompt + usage.completion > 0:
            self._measured = (usage.prompt + usage.completion, self._characters)
            self._per_token = max(self._characters / (usage.prompt + usage.completion), 0.1)
        action = Malformed("unknown", "the message was cut off at its limit of tokens") if was_cut else parse(said)
        self.tools.append(action.tool)
        if isinstance(action, Malformed):
            return self._end_of_turn(self._error(action.tool, {"raw": said}, action.reason))
        if action.tool == ANSWER:
            return Done(EndStatus.COMPLETED, {"chunk_ids": list(action.chunk_ids)})
        if action.tool == PRUNE:
            return self._end_of_turn(self._prune(action))
        if self.used >= self.limits.hard:
            text = "refused: only prune_chunks and answer are allowed now"
            return self._end_of_turn(self._error(action.tool, _arguments(action), text, ToolErrorClass.REFUSED))
        # A result alone never exceeds the budget.
        left = max(self.limits.budget - self.context_tokens - 1, 0)
        most = {SEARCH: self.limits.search_tokens, GREP: self.limits.grep_tokens, READ: left}[action.tool]
        exclude = frozenset(self.seen) if action.tool == SEARCH else frozenset[str]()
        call = Call(action.tool, action.argument, min(most, left), exclude)
        self._waiting = action, call
        return call

    def shown(self, chunks: Sequence[Chunk]) -> Observation | Done:
        """Show what the waiting call found; chunks beyond its budget, or that a search must not have, are left out."""
        action, call = self._taken()
        room = call.budget
        fitting: list[Chunk] = []
        for chunk in chunks:
            if chunk.chunk_id in call.exclude:
                continue
            room -= self.tokens_of(chunk.shown)
            if room < 0:
                break
            fitting.append(chunk)
        self.seen.update(dict.fromkeys(chunk.chunk_id for chunk in fitting))
        if fitting:
            self._exchanges.append(_Exchange(self._messages[-1]["content"], fitting))
        text = _joined(fitting) or "nothing found"
        self._show(text)
        result = {"chunk_ids": [chunk.chunk_id for chunk in fitting], "text": text}
        return self._end_of_turn(Observation(action.tool, _arguments(action), result, None))

    def failed(self, reason: str) -> Observation | Done:
        """Show that the waiting call's argument is not valid, such as a pattern that is no regular expression."""
        action, _ = self._taken()
        return self._end_of_turn(self._error(action.tool, _arguments(action), reason))

    def _taken(self) -> tuple[Action, Call]:
        if self._waiting is None:
            raise RuntimeError("the harness waits for no result")
        waiting, self._waiting = self._waiting, None
        return waiting

    def _prune(self, action: Action) -> Observation:
        removed = set(action.chunk_ids)
        if unknown := removed - {chunk.chunk_id for chunk in self.view}:
            reason = f"not in your context: {', '.join(sorted(unknown)[:5])}"
            return self._error(action.tool, _arguments(action), reason)
        for exchange in self._exchanges:
            exchange.shown = [chunk for chunk in exchange.shown if chunk.chunk_id not in removed]
        self._exchanges = [exchange for exchange in self._exchanges if exchange.shown]
        # The first message stays as it was: without its usage line, a gateway would take the rest for another
        # conversation, which is not part of the trajectory.
        self._messages = self._messages[:1] if self._exchanges else []
        text = self._question
        for place, exchange in enumerate(self._exchanges):
            if place:
                self._messages.append({"role": "user", "content": text})
            self._messages.append({"role": "assistant", "content": exchange.said})
            text = _joined(exchange.shown)
        self._show(text)
        return Observation(action.tool, _arguments(action), {"pruned": list(action.chunk_ids)}, None, action.chunk_ids)

    def _error(
        self,
        tool: str,
        arguments: dict[str, Any],
        reason: str,
        error_class: ToolErrorClass = ToolErrorClass.INVALID_ARGUMENTS,
    ) -> Observation:
        self._show(f"error: {reason}")
        return Observation(tool, arguments, {"error": reason}, error_class)

    def _end_of_turn(self, observation: Observation) -> Observation | Done:
        if self.context_tokens >= self.limits.budget:
            return Done(EndStatus.BUDGET_EXHAUSTED, None, observation)
        if self.turns >= self.limits.turns:
            return Done(EndStatus.TURNS_EXHAUSTED, None, observation)
        return observation

    def _show(self, text: str) -> None:
        """Add a message of the user, with a usage line, and advice above the thresholds."""
        self._messages.append({"role": "user", "content": text})
        self.used = self.context_tokens
        usage = f"[Token usage: {self.used:,}/{self.limits.budget:,}]"
        if self.used >= self.limits.hard:
            usage += " Only prune_chunks and answer are allowed now."
        elif self.used >= self.limits.soft:
            usage += " Consider pruning chunks that you do not need."
        self._messages[-1]["content"] = f"{text}\n\n{usage}"

    @property
    def _characters(self) -> int:
        return sum(len(message["content"]) for message in self._messages)


def _joined(chunks: Sequence[Chunk]) -> str:
    return "\n\n".join(chunk.shown for chunk in chunks)


def _arguments(action: Action) -> dict[str, Any]:
    name = {SEARCH: "query", GREP: "pattern", READ: "doc_id", PRUNE: "chunk_ids"}[action.tool]
    return {name: list(action.chunk_ids) if action.tool == PRUNE else action.argument}
