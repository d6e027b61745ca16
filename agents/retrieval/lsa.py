"""Latent semantic analysis: an embedding made from the corpus alone, in seconds, with numpy.

    lsa = fit_lsa([chunk.searched for chunk in passages.chunks])
    lsa.vectors(["copy a file"]) → shape (1, 256)

Texts are rows of weights (1 + log tf) · idf; the projection is the right singular vectors of that matrix, found by a
randomised subspace iteration (Halko, Martinsson and Tropp 2011). A given seed and corpus give the same projection on
the same kind of processor.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.agents.retrieval.embedders import Vectors, unit_rows
from headrace.agents.retrieval.terms import terms_of

DIMENSIONS = 256
"""128 and 512 found less or hardly more on the training queries of the installed documentation."""
OVERSAMPLED = 16
"""Extra directions of the random subspace; they are dropped at the end."""
ITERATIONS = 4
"""Multiplications by the matrix and its transpose."""
_ENTRIES = 65_536
"""Non-zero entries that are multiplied at once: bounds the memory of a product to some 40 MB."""


@dataclass(frozen=True)
class Lsa:
    """A projection of term weights."""

    terms: Sequence[str]
    idf: npt.NDArray[np.float32]
    """Weight of each term, shape (terms,)."""
    projection: npt.NDArray[np.float32]
    """Shape (terms, dimensions)."""
    rows: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not len(self.terms) == len(self.idf) == len(self.projection):
            raise ValueError("an LSA needs one weight and one row of the projection per term")
        object.__setattr__(self, "rows", {term: row for row, term in enumerate(self.terms)})

    @property
    def name(self) -> str:
        """Says what made the vectors."""
        return f"lsa:{self.projection.shape[1]}:{len(self.terms)}"

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of shape (texts, dimensions); a text without a known term has zeros."""
        found = np.zeros((len(texts), self.projection.shape[1]), np.float32)
        for row, text in enumerate(texts):
            counts = Counter(term for term in terms_of(text) if term in self.rows)
            if counts:
                columns = [self.rows[term] for term in counts]
                weights = (1 + np.log(np.fromiter(counts.values(), np.float32))) * self.idf[columns]
                found[row] = weights @ self.projection[columns]
        return unit_rows(found)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return :meth:`vectors`, as an embedder."""
        return self.vectors(texts)

    def save(self, path: Path) -> None:
        """Write to ``path``, a NumPy archive without pickled objects."""
        with path.open("wb") as file:
            np.savez(file, terms=np.asarray(self.terms), idf=self.idf, projection=self.projection)

    @classmethod
    def load(cls, path: Path) -> "Lsa":
        """Read what :meth:`save` wrote. Raises ``ValueError`` for another file."""
        with np.load(path, allow_pickle=False) as stored:
            if missing := {"terms", "idf", "projection"} - set(stored.files):
                raise ValueError(f"{path} is not a stored LSA: it lacks {', '.join(sorted(missing))}")
            return cls([str(term) for term in stored["terms"]], stored["idf"], stored["projection"])


@dataclass(frozen=True, slots=True)
class _Sparse:
    """A matrix of shape (rows, columns) by its non-zero entries, in the order of rows."""

    row: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]
    shape: tuple[int, int]

    @property
    def transposed(self) -> "_Sparse":
        order = np.argsort(self.column, kind="stable")
        return _Sparse(self.column[order], self.row[order], self.value[order], self.shape[::-1])

    def times(self, dense: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the product with ``dense``, shape (columns, n)."""
        product = np.zeros((self.shape[0], dense.shape[1]))
        for start in range(0, len(self.value), _ENTRIES):
            part = slice(start, start + _ENTRIES)
            rows = self.row[part]
            first = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
            sums = np.add.reduceat(dense[self.column[part]] * self.value[part, None], first, axis=0)
            product[rows[first]] += sums
        return product


def fit_lsa(texts: Sequence[str], dimensions: int = DIMENSIONS, seed: int = 0) -> Lsa:
    """Return the LSA of ``texts``. It has fewer dimensions if there are fewer texts or terms.

    Terms that occur in one text only are left out: they relate no two texts. Raises ``ValueError`` if none is left.
    """
    counted = [Counter(terms_of(text)) for text in texts]
    frequencies = Counter(term for counts in counted for term in counts)
    terms = sorted(term for term, count in frequencies.items() if count > 1)
    if not terms:
        raise ValueError("an LSA needs texts that have terms in common")
    rows = {term: row for row, term in enumerate(terms)}
    idf = np.asarray([np.log(len(texts) / frequencies[term]) + 1e-6 for term in terms])
    entries = [(row, rows[term], n) for row, counts in enumerate(counted) for term, n in counts.items() if term in rows]
    row, column, count = (np.asarray(axis) for axis in zip(*entries, strict=True))
    value = (1 + np.log(count)) * idf[column]
    lengths = np.sqrt(np.bincount(row, value**2, len(texts)))
    matrix = _Sparse(row, column, value / lengths[row], (len(texts), len(terms)))
    right = _right_singular_vectors(matrix, dimensions, seed)
    return Lsa(terms, idf.astype(np.float32), right.astype(np.float32))


def _right_singular_vectors(matrix: _Sparse, count: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the ``count`` leading right singular vectors as columns, fewer if the matrix is smaller."""
    width = min(count + OVERSAMPLED, *matrix.shape)
    transposed = matrix.transposed
    basis = np.random.default_rng(seed).standard_normal((matrix.shape[1], width))
    for _ in range(ITERATIONS):
        basis, _ = np.linalg.qr(transposed.times(matrix.times(basis)))
    small = matrix.times(basis)  # (rows, width): matrix ≈ small · basisᵀ
    _, _, rotation = np.linalg.svd(small, full_matrices=False)
    vectors: npt.NDArray[np.float64] = (basis @ rotation.T)[:, :count]
    # A singular vector's sign is arbitrary: the largest component is made positive.
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])])
    signed: npt.NDArray[np.float64] = vectors * signs
    return signed
