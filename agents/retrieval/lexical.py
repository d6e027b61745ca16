"""BM25 over the terms of chunks, by the library bm25s.

Lexical.of(passages).rank("default of copyfileobj's length", 50) → ["d0412-1", "d0409-1", …]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt

from headrace.agents.retrieval.passages import Passages
from headrace.agents.retrieval.terms import terms_of

K1 = 1.2
B = 0.75


@dataclass(frozen=True)
class Lexical:
    """A BM25 index of chunks. Immutable after construction."""

    chunk_ids: Sequence[str]
    bm25: Any
    """The library's index; ``None`` if no chunk has a term, which the library cannot index."""
    row_of: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """Chunk id → its row in the scores."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_of", {chunk_id: row for row, chunk_id in enumerate(self.chunk_ids)})

    @classmethod
    def of(cls, passages: Passages) -> "Lexical":
        """Index ``passages``."""
        texts = [terms_of(chunk.searched) for chunk in passages.chunks]
        index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy") if any(texts) else None
        if index is not None:
            index.index(texts, show_progress=False)
        return cls([chunk.chunk_id for chunk in passages.chunks], index)

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Return the score of every chunk, shape (chunks,), float32, 0 where no term matches."""
        known = [] if self.bm25 is None else [term for term in terms_of(query) if term in self.bm25.vocab_dict]
        if not known:
            return np.zeros(len(self.chunk_ids), np.float32)
        scores: npt.NDArray[np.float32] = self.bm25.get_scores(known)
        return scores

    def rank(self, query: str, count: int) -> list[str]:
        """Return the ids of the ``count`` best chunks that match at all, best first; ties in the corpus's order."""
        scores = self.scores(query)
        return [self.chunk_ids[row] for row in top_rows(scores, count) if scores[row] > 0]


def top_rows(scores: npt.NDArray[np.float32], count: int) -> list[int]:
    """Return the rows of the ``count`` largest ``scores``, largest first; ties by row."""
    if count < len(scores):
        threshold = np.partition(scores, -count)[-count]
        rows = np.flatnonzero(scores >= threshold)
    else:
        rows = np.arange(len(scores))
    order = np.lexsort((rows, -scores[rows]))
    return [int(row) for row in rows[order][:count]]
