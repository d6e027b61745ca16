"""The LSA is the truncated singular value decomposition of the weighted terms, and relates texts by their terms."""

from pathlib import Path

import numpy as np
import pytest

from headrace.agents.retrieval.lsa import Lsa, fit_lsa
from headrace.agents.retrieval.terms import terms_of

TEXTS = [
    "copy a file to a folder",
    "copy data between file objects",
    "remove a folder",
    "serve requests over http",
    "http requests and answers",
    "answers of a server over http",
]


def weighted() -> np.ndarray:
    """The matrix that the LSA decomposes, computed densely and independently: (1 + log tf) · idf, rows of length 1."""
    terms = sorted({term for text in TEXTS for term in terms_of(text)})
    counts = np.asarray([[terms_of(text).count(term) for term in terms] for text in TEXTS], float)
    frequency = (counts > 0).sum(axis=0)
    kept = frequency > 1
    counts, frequency = counts[:, kept], frequency[kept]
    weights = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * (np.log(len(TEXTS) / frequency) + 1e-6)
    return weights / np.linalg.norm(weights, axis=1, keepdims=True)


def test_the_projection_spans_the_leading_right_singular_vectors() -> None:
    _, _, right = np.linalg.svd(weighted(), full_matrices=False)
    projection = fit_lsa(TEXTS, dimensions=3).projection
    assert np.allclose(np.abs(right[:3] @ projection), np.eye(3), atol=1e-4)


def test_texts_with_terms_in_common_are_nearer_than_others() -> None:
    lsa = fit_lsa(TEXTS, dimensions=3)
    vectors = lsa.vectors(["copy a file", *TEXTS])
    near = vectors[1:] @ vectors[0]
    assert {int(row) for row in np.argsort(-near)[:2]} == {0, 1}
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_text_without_a_known_term_has_a_vector_of_zeros() -> None:
    assert not fit_lsa(TEXTS, dimensions=3).vectors(["astronomy"]).any()


def test_the_same_corpus_gives_the_same_projection() -> None:
    first, second = fit_lsa(TEXTS, dimensions=3), fit_lsa(TEXTS, dimensions=3)
    assert np.array_equal(first.projection, second.projection)


def test_a_small_corpus_has_fewer_dimensions() -> None:
    assert fit_lsa(TEXTS[:2], dimensions=128).projection.shape[1] <= 2


def test_texts_without_terms_in_common_cannot_be_analysed() -> None:
    with pytest.raises(ValueError, match="terms in common"):
        fit_lsa(["copy", "remove"])


def test_a_stored_lsa_gives_the_same_vectors(tmp_path: Path) -> None:
    lsa = fit_lsa(TEXTS, dimensions=3)
    lsa.save(tmp_path / "lsa.npz")
    loaded = Lsa.load(tmp_path / "lsa.npz")
    assert loaded.name == lsa.name
    assert np.array_equal(loaded.vectors(TEXTS), lsa.vectors(TEXTS))


def test_another_file_is_no_lsa(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", terms=np.asarray(["a"]))
    with pytest.raises(ValueError, match="idf, projection"):
        Lsa.load(tmp_path / "other.npz")
