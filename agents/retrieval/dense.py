"""Nearest chunks by vectors: exactly, in memory, with numpy.

    await store.nearest(vector, 50) → ["d0412-1", "d0177-3", …]

Measured at 4,000 chunks an exact search takes a quarter of a millisecond, so an approximate index would save nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.agents.retrieval.embedders import Vectors
from headrace.agents.retrieval.lexical import top_rows

Vector = npt.NDArray[np.float32]
"""Shape (dimensions,), of length 1 or 0."""


class DenseStore(Protocol):
    """Vectors of chunks."""

    async def nearest(self, vector: Vector, count: int) -> list[str]:
        """Return the ids of the ``count`` chunks nearest to ``vector`` by cosine, nearest first."""
        ...


@dataclass(frozen=True)
class ExactStore:
    """All vectors in one array."""

    chunk_ids: Sequence[str]
    vectors: Vectors
    """Shape (chunks, dimensions), rows of length 1."""

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.chunk_ids) != len(self.vectors):
            raise ValueError(f"{len(self.chunk_ids)} chunks need as many vectors, not {self.vectors.shape}")

    def similarities(self, vector: Vector) -> npt.NDArray[np.float32]:
        """Return the cosine with every chunk, shape (chunks,). Raises ``ValueError`` for other dimensions."""
        if len(vector) != self.vectors.shape[1]:
            raise ValueError(
                f"the query has {len(vector)} dimensions, the index {self.vectors.shape[1]}: "
                "the index was made by another embedder; make it again"
            )
        cosines: npt.NDArray[np.float32] = self.vectors @ vector
        return cosines

    async def nearest(self, vector: Vector, count: int) -> list[str]:
        """Return the nearest chunks; none for a vector of zeros, which says nothing."""
        if not vector.any():
            return []
        return [self.chunk_ids[row] for row in top_rows(self.similarities(vector), count)]
