"""An explorer that is a language model behind an endpoint of OpenAI's API: it proposes, the checks decide.

    explorer = ModelExplorer(http, "http://localhost:8000/v1", "qwen")
    await explorer.explore(documents)          → [Candidate("Which …?", hops=(Hop(…),), …), …]
    await explorer.extend(candidate, documents) → the candidate with one more hop, or None

What it says is untrusted: answers are bounded, parsed strictly, and verified like any other candidate.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from headrace.agents.retrieval.endpoint import posted
from headrace.agents.retrieval.passages import Document
from headrace.agents.search.text.candidates import Candidate, Hop

MAX_DOCUMENT = 6_000
"""Characters of a document that the model is shown."""
MAX_ANSWER = 64_000
"""Longest answer that is read, in characters."""
MAX_CANDIDATES = 8
"""Most candidates of one answer."""

_EXPLORE = """\
You write questions for a test of search agents. Below are documents with their ids. Find facts in them that have one \
short answer. For each fact write a question that names the subject exactly as the documents do and does not contain \
the answer.

Answer with JSON only:
{"candidates": [{"question": "...", "hops": [{"subject": "...", "cues": ["..."], "value": "...", "doc_id": "...", \
"quotes": ["..."]}]}]}

- subject: the exact name that the fact is about.
- cues: further exact words that both the question and the quote contain, such as the name of a property; may be empty.
- value: the exact answer as it stands in the quote.
- quotes: passages copied word for word from that document, which contain subject, cues and value.
- Several hops only if the value of each hop is the subject of the next; then the question names the first subject only.
At most {most} candidates."""

_EXTEND = """\
You make a question harder by one step. The present answer must become the subject of one more fact in the documents. \
Answer with JSON only, for one candidate with one hop, whose subject is the present answer, and whose question is the \
whole new question: it names the first subject, and neither the present answer nor the new one.
{"candidates": [{"question": "...", "hops": [{"subject": "...", "cues": ["..."], "value": "...", "doc_id": "...", \
"quotes": ["..."]}]}]}"""

_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.S)


@dataclass(frozen=True, slots=True)
class ModelExplorer:
    """A model that proposes candidates."""

    http: aiohttp.ClientSession
    """Has the API key in its headers, if one is needed."""
    url: str
    """Address up to ``/v1``."""
    model: str
    timeout_s: float = 120.0
    """Longest wait for one answer."""
    max_tokens: int = 2_048
    """Longest answer, in the model's tokens."""

    async def explore(self, documents: Sequence[Document]) -> "Proposed":
        """Return candidates about ``documents``.

        Raises :class:`RetrievalError` if the endpoint fails.
        """
        return candidates_in(await self._ask(_EXPLORE.replace("{most}", str(MAX_CANDIDATES)), documents), self.name)

    async def extend(self, candidate: Candidate, documents: Sequence[Document]) -> Candidate | None:
        """Return ``candidate`` with one more hop in ``documents``; ``None`` if the model has none to offer.

        Raises :class:`RetrievalError` if the endpoint fails.
        """
        present = f"Present question: {candidate.question}\nPresent answer: {candidate.answer}"
        found = candidates_in(await self._ask(f"{_EXTEND}\n\n{present}", documents), self.name).candidates
        if not found:
            return None
        hops = (*candidate.hops, *found[0].hops)
        return replace(candidate, question=found[0].question, hops=hops, answer=hops[-1].value, distractors=())

    @property
    def name(self) -> str:
        """Named in the provenance of tasks."""
        return f"model:{self.model}"

    async def _ask(self, instruction: str, documents: Sequence[Document]) -> str:
        shown = "\n\n".join(f"[{each.doc_id}] {each.title}\n{each.text[:MAX_DOCUMENT]}" for each in documents)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"{instruction}\n\n{shown}"}],
            "max_tokens": self.max_tokens,
        }
        answer = await posted(self.http, f"{self.url}/chat/completions", body, self.timeout_s, "explorer_url")
        try:
            return str(answer["choices"][0]["message"]["content"] or "")[:MAX_ANSWER]
        except (KeyError, IndexError, TypeError):
            return ""


@dataclass(frozen=True, slots=True)
class Proposed:
    """What an answer of the model holds."""

    candidates: tuple[Candidate, ...]
    malformed: int
    """Number of candidates that are not of the right form; 1 for an answer that is no list of candidates."""


def candidates_in(text: str, explorer: str) -> Proposed:
    """Return the candidates of a model's answer. Never raises."""
    fenced = _FENCED.search(text)
    try:
        content = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return Proposed((), 1)
    proposed = content.get("candidates") if isinstance(content, dict) else None
    if not isinstance(proposed, list):
        return Proposed((), 1)
    found = [_candidate(each, explorer) for each in proposed[:MAX_CANDIDATES]]
    return Proposed(tuple(filter(None, found)), found.count(None))


def _candidate(content: Any, explorer: str) -> Candidate | None:
    try:
        hops = tuple(
            Hop(
                _text(hop["subject"]),
                tuple(map(_text, hop.get("cues", []))),
                _text(hop["value"]),
                _text(hop["doc_id"]),
                tuple(map(_text, hop["quotes"])),
            )
            for hop in content["hops"]
        )
        return Candidate(_text(content["question"]), hops, hops[-1].value, (), explorer)
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {type(value).__name__}")
    return value
