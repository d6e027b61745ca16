"""A small reranker that is learnt from questions whose evidence is known: a linear model of ten features.

    {"features": ["bm25", …], "mean": […], "scale": […], "weights": […]}

It is trained to put the evidence first among the candidates of its question (softmax cross-entropy over them, which is
convex), so it can only use what the features see: it knows no language.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.agents.retrieval.passages import Chunk
from headrace.agents.retrieval.rerankers import Candidate
from headrace.agents.retrieval.terms import terms_of

FEATURES = (
    "bm25",
    "bm25_share",
    "cosine",
    "bm25_reciprocal_rank",
    "dense_reciprocal_rank",
    "fused_reciprocal_rank",
    "coverage",
    "title_coverage",
    "title_in_query",
    "log_length",
)
"""Names of the features, in the order of the weights."""

STEPS = 400
"""Steps of full-batch gradient descent."""
LEARNING_RATE = 0.5
DECAY = 1e-3
"""Weight of the penalty Σ w² / 2 on weights of standardised features."""


def features_of(query: str, candidates: Sequence[Candidate]) -> npt.NDArray[np.float64]:
    """Return the features of each candidate, shape (candidates, features)."""
    wanted = set(terms_of(query))
    best = max((candidate.bm25 for candidate in candidates), default=0.0) or 1.0
    rows = []
    for candidate in candidates:
        title, text, length = _terms(candidate.chunk)
        rows.append(
            (
                candidate.bm25,
                candidate.bm25 / best,
                candidate.cosine,
                _reciprocal(candidate.bm25_rank),
                _reciprocal(candidate.dense_rank),
                _reciprocal(candidate.fused_rank),
                len(wanted & (text | title)) / max(len(wanted), 1),
                len(wanted & title) / max(len(title), 1),
                float(candidate.chunk.title.lower() in query.lower()),
                math.log1p(length),
            )
        )
    return np.asarray(rows, np.float64).reshape(len(rows), len(FEATURES))


@lru_cache(maxsize=16_384)  # the same chunks are candidates of many queries
def _terms(chunk: Chunk) -> tuple[frozenset[str], frozenset[str], int]:
    """Return the terms of the title, those of the text, and their number in the text."""
    text = terms_of(chunk.text)
    return frozenset(terms_of(chunk.title)), frozenset(text), len(text)


def _reciprocal(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / rank


@dataclass(frozen=True)
class LearntReranker:
    """Weights of standardised features."""

    mean: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]

    def scores(self, features: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the score of each row of ``features``, shape (rows,)."""
        found: npt.NDArray[np.float64] = ((features - self.mean) / self.scale) @ self.weights
        return found

    async def rerank(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        """Return one score per candidate."""
        return [float(score) for score in self.scores(features_of(query, candidates))]

    def save(self, path: Path) -> None:
        """Write the weights to ``path`` as JSON."""
        arrays = {"mean": self.mean, "scale": self.scale, "weights": self.weights}
        content = {"features": list(FEATURES)} | {name: array.tolist() for name, array in arrays.items()}
        path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "LearntReranker":
        """Read what :meth:`save` wrote. Raises ``ValueError`` for another file or for other features."""
        content: Any = json.loads(path.read_text())
        if not isinstance(content, dict) or content.get("features") != list(FEATURES):
            raise ValueError(f"{path} has weights of other features: make it again with `headrace index`")
        mean, scale, weights = (np.asarray(content[name], np.float64) for name in ("mean", "scale", "weights"))
        if {array.shape for array in (mean, scale, weights)} != {(len(FEATURES),)}:
            raise ValueError(f"{path} does not have {len(FEATURES)} weights: make it again with `headrace index`")
        return cls(mean, scale, weights)


def fit_reranker(examples: Sequence[tuple[npt.NDArray[np.float64], Sequence[int]]]) -> LearntReranker:
    """Return the reranker of ``examples``: features of a question's candidates, and the rows that are evidence.

    Examples without evidence among their candidates teach nothing and are left out. Raises ``ValueError`` if none is
    left. The objective is mean over examples of -log Σ_evidence softmax(scores), plus the decay.
    """
    useful = [(features, rows) for features, rows in examples if rows and len(rows) < len(features)]
    if not useful:
        raise ValueError("a reranker needs questions whose evidence is among their candidates, but not all of them")
    stacked = np.concatenate([features for features, _ in useful])
    mean, scale = stacked.mean(axis=0), stacked.std(axis=0)
    scale[scale == 0] = 1.0
    groups = np.repeat(np.arange(len(useful)), [len(features) for features, _ in useful])
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    is_evidence = np.concatenate([np.isin(np.arange(len(features)), rows) for features, rows in useful])
    x = (stacked - mean) / scale
    weights = np.zeros(len(FEATURES))
    for _ in range(STEPS):
        logits = x @ weights
        exps = np.exp(logits - np.maximum.reduceat(logits, starts)[groups])
        softmax = exps / np.add.reduceat(exps, starts)[groups]
        evidence = exps * is_evidence
        wanted = evidence / np.add.reduceat(evidence, starts)[groups]
        weights += LEARNING_RATE * ((wanted - softmax) @ x / len(useful) - DECAY * weights)
    return LearntReranker(mean, scale, weights)
