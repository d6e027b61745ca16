"""The order of the best candidates, by whatever reads query and chunk together.

    await reranker.rerank("default of copyfileobj's length", chunks, evidence) → [2.1, 0.3, …]

A small one of ours is learnt (:mod:`headrace.agents.retrieval.learnt_reranker`); another is reached by URL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from headrace.agents.retrieval.endpoint import RetrievalError, posted
from headrace.agents.retrieval.passages import Chunk


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk among the best of the fused ranking, with what the stages before said of it."""

    chunk: Chunk
    bm25: float
    """Score of BM25, at least 0."""
    cosine: float
    """Cosine of the dense vectors, in [-1, 1]; 0 if the store does not tell."""
    bm25_rank: int | None
    """Rank from 1, if BM25 found it."""
    dense_rank: int | None
    """Rank from 1, if the dense search found it."""
    fused_rank: int
    """Rank from 1."""


class Reranker(Protocol):
    """Scores candidates; a larger score is better."""

    async def rerank(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score per candidate. Raises :class:`RetrievalError`."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointReranker:
    """``POST {url}`` in the form that Cohere, Jina and vLLM's ``/rerank`` share."""

    http: aiohttp.ClientSession
    """Has the API key in its headers, if one is needed."""
    url: str
    model: str
    timeout_s: float = 60.0
    """Longest wait for one answer."""

    async def rerank(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        """Return the endpoint's ``relevance_score`` of each candidate. Raises :class:`RetrievalError`."""
        if not candidates:
            return []
        texts = [candidate.chunk.searched for candidate in candidates]
        body = {"model": self.model, "query": query, "documents": texts, "top_n": len(texts)}
        answer = await posted(self.http, self.url, body, self.timeout_s, "reranker_url")
        return _scores(answer, len(texts), self.url)


def _scores(answer: Any, count: int, url: str) -> list[float]:
    results = answer.get("results") if isinstance(answer, dict) else None
    try:
        scores = {int(each["index"]): float(each["relevance_score"]) for each in results or ()}
    except (KeyError, TypeError, ValueError) as error:
        raise RetrievalError(f'reranker_url {url}: expected {{"results": [{{"index", "relevance_score"}}]}}') from error
    if scores.keys() != set(range(count)):
        raise RetrievalError(f"reranker_url {url}: scores of {len(scores)} documents, {count} were sent")
    return [scores[index] for index in range(count)]
