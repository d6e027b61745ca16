"""Search over one corpus: BM25 and dense rankings, fused by reciprocal rank, the best 50 reranked, cut to a budget.

    await retriever.search("default of copyfileobj's length", exclude=seen, budget=2048) → [Chunk("d0412-1", …), …]

Also the two other tools that read a corpus: grep, and a document up to a budget.
"""

from collections.abc import Collection
from dataclasses import dataclass

from headrace.agents.retrieval.dense import DenseStore, ExactStore, Vector
from headrace.agents.retrieval.embedders import Embedder
from headrace.agents.retrieval.fusion import reciprocal_rank_fusion
from headrace.agents.retrieval.grep import MAX_CHUNKS, grep
from headrace.agents.retrieval.lexical import Lexical
from headrace.agents.retrieval.passages import Chunk, Passages, TokenCount, estimated_tokens, within
from headrace.agents.retrieval.rerankers import Candidate, Reranker

CANDIDATES = 50
"""Chunks that each ranking contributes, and that are reranked; published for Context-1."""
MAX_QUERY = 1_000
"""Longest query, in characters; a longer one is cut off."""


@dataclass(frozen=True, slots=True)
class Rankings:
    """The ids of chunks after each stage, best first."""

    bm25: list[str]
    dense: list[str]
    fused: list[str]
    reranked: list[str]
    """As ``fused`` without a reranker."""


@dataclass(frozen=True)
class Retriever:
    """The search over one corpus. Immutable, so any number of episodes share it."""

    passages: Passages
    lexical: Lexical
    embedder: Embedder | None
    """``None``: BM25 alone."""
    dense: DenseStore | None
    reranker: Reranker | None = None

    def __post_init__(self) -> None:
        if (self.embedder is None) != (self.dense is None):
            raise ValueError("a dense store needs an embedder for queries, and an embedder a store")
        if isinstance(self.dense, ExactStore) and list(self.dense.chunk_ids) != list(self.lexical.chunk_ids):
            raise ValueError("the vectors are of other chunks than the corpus has: make the index again")

    async def search(
        self, query: str, *, exclude: Collection[str] = (), budget: int, tokens_of: TokenCount = estimated_tokens
    ) -> list[Chunk]:
        """Return the best chunks outside ``exclude`` that fit ``budget`` tokens, best first; none if nothing matches.

        Excluded chunks take no place among the candidates. Raises :class:`RetrievalError`.
        """
        ranked = (await self.rankings(query, exclude)).reranked
        return within([self.passages.by_id[chunk_id] for chunk_id in ranked], budget, tokens_of)

    async def rankings(self, query: str, exclude: Collection[str] = ()) -> Rankings:
        """Return at most ``CANDIDATES`` ids after each stage, without ``exclude``. Raises :class:`RetrievalError`."""
        bm25, dense, candidates = await self.candidates(query, exclude)
        fused = [candidate.chunk.chunk_id for candidate in candidates]
        if self.reranker is None:
            return Rankings(bm25, dense, fused, fused)
        scores = await self.reranker.rerank(query[:MAX_QUERY], candidates)
        order = sorted(range(len(fused)), key=lambda place: (-scores[place], place))
        return Rankings(bm25, dense, fused, [fused[place] for place in order])

    async def candidates(
        self, query: str, exclude: Collection[str] = ()
    ) -> tuple[list[str], list[str], list[Candidate]]:
        """Return the rankings by BM25 and by vectors, and what the reranker is given, in the fused order."""
        query = query[:MAX_QUERY]
        excluded = set(exclude)
        reach = CANDIDATES + len(excluded)

        def first(ids: list[str]) -> list[str]:
            return [chunk_id for chunk_id in ids if chunk_id not in excluded][:CANDIDATES]

        bm25 = first(self.lexical.rank(query, reach))
        if self.embedder is None or self.dense is None:
            return bm25, [], self._candidates(query, None, bm25, [])
        vector = (await self.embedder.embed([query]))[0]
        dense = first(await self.dense.nearest(vector, reach))
        return bm25, dense, self._candidates(query, vector, bm25, dense)

    def _candidates(self, query: str, vector: Vector | None, bm25: list[str], dense: list[str]) -> list[Candidate]:
        fused = reciprocal_rank_fusion([bm25, dense])[:CANDIDATES]
        scores = self.lexical.scores(query)
        exact = self.dense if isinstance(self.dense, ExactStore) and vector is not None else None
        cosines = None if exact is None or vector is None else exact.similarities(vector)
        bm25_ranks, dense_ranks = ({chunk_id: rank for rank, chunk_id in enumerate(ids, 1)} for ids in (bm25, dense))
        return [
            Candidate(
                chunk=self.passages.by_id[chunk_id],
                bm25=float(scores[self.lexical.row_of[chunk_id]]),
                cosine=0.0 if cosines is None else float(cosines[self.lexical.row_of[chunk_id]]),
                bm25_rank=bm25_ranks.get(chunk_id),
                dense_rank=dense_ranks.get(chunk_id),
                fused_rank=rank,
            )
            for rank, chunk_id in enumerate(fused, start=1)
        ]

    def grep(self, pattern: str, *, budget: int, tokens_of: TokenCount = estimated_tokens) -> list[Chunk]:
        """Return at most five chunks that match, as many as fit ``budget``. Raises :class:`BadPattern`."""
        return within(grep(self.passages, pattern, MAX_CHUNKS), budget, tokens_of)

    def document(self, doc_id: str, *, budget: int, tokens_of: TokenCount = estimated_tokens) -> list[Chunk]:
        """Return the first chunks of a document that fit ``budget``; none if there is no such document."""
        return within(self.passages.by_document.get(doc_id, ()), budget, tokens_of)
