"""One attempt at a question over real text, by a model behind an endpoint of OpenAI's API.

    result = await attempt(client, retriever, "What is the base class of http.server.HTTPServer?", settings)
    result.as_answer()   → {"chunk_ids": ["d0960-1"], "retrieved": ["d0960-1", …], "tools": ["search_corpus", "answer"]}

The client is an ordinary one: behind the gateway its calls are recorded, and can be trained on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.agents.retrieval.grep import BadPattern
from headrace.agents.retrieval.passages import Chunk
from headrace.agents.retrieval.retriever import Retriever
from headrace.agents.search.text.actions import GREP, SEARCH
from headrace.agents.search.text.harness import Call, Done, Observation, TextHarness, TextLimits, Usage
from headrace.schemas.events import EndStatus

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """How a model attempts questions."""

    model: str
    """Name of the model at its endpoint."""
    temperature: float = 1.0
    answer_tokens: int = 1_024
    """Longest answer of the model, in its tokens; a longer one is cut off and is no action."""
    limits: TextLimits = field(default_factory=TextLimits)


@dataclass(frozen=True, slots=True)
class Attempted:
    """What came of an attempt."""

    status: EndStatus
    chunk_ids: tuple[str, ...]
    """The model's answer; empty if it gave none."""
    retrieved: tuple[str, ...]
    """All chunks that were shown, in order."""
    tools: tuple[str, ...]
    """The tool of each turn, in order."""
    context_tokens: int
    """Length of the context at the end."""

    def as_answer(self) -> dict[str, list[str]]:
        """Return what the reward ``search-text@1`` reads."""
        return {"chunk_ids": list(self.chunk_ids), "retrieved": list(self.retrieved), "tools": list(self.tools)}


async def attempt(
    client: "AsyncOpenAI",
    retriever: Retriever,
    question: str,
    settings: AttemptSettings,
    observed: Callable[[Observation], None] = lambda _: None,
) -> Attempted:
    """Attempt ``question``. ``observed`` is called with the result of every tool call.

    Nothing that the model says raises. Raises the client's errors, and :class:`RetrievalError`.
    """
    harness = TextHarness(question, settings.limits)
    while True:
        reply: Any = await client.chat.completions.create(
            model=settings.model,
            messages=harness.messages,  # type: ignore[arg-type]
            temperature=settings.temperature,
            max_completion_tokens=settings.answer_tokens,
        )
        choice = reply.choices[0]
        usage = None if reply.usage is None else Usage(reply.usage.prompt_tokens, reply.usage.completion_tokens)
        step = harness.act(choice.message.content or "", usage, was_cut=choice.finish_reason == "length")
        if isinstance(step, Call):
            step = await carried_out(step, harness, retriever)
        observation = step.observation if isinstance(step, Done) else step
        if observation is not None:
            observed(observation)
        if isinstance(step, Done):
            answer = () if step.answer is None else tuple(step.answer["chunk_ids"])
            return Attempted(step.status, answer, tuple(harness.seen), tuple(harness.tools), harness.context_tokens)


async def carried_out(call: Call, harness: TextHarness, retriever: Retriever) -> Observation | Done:
    """Carry out a call of ``harness`` and show it the result."""
    found: list[Chunk]
    if call.tool == SEARCH:
        found = await retriever.search(
            call.argument, exclude=call.exclude, budget=call.budget, tokens_of=harness.tokens_of
        )
    elif call.tool == GREP:
        try:
            found = retriever.grep(call.argument, budget=call.budget, tokens_of=harness.tokens_of)
        except BadPattern as error:
            return harness.failed(str(error))
    else:
        found = retriever.document(call.argument, budget=call.budget, tokens_of=harness.tokens_of)
    return harness.shown(found)
