"""Reciprocal rank fusion of rankings, after Cormack, Clarke and Büttcher (2009).

reciprocal_rank_fusion([["a", "b"], ["b", "c"]]) → ["b", "a", "c"]
"""

from collections.abc import Sequence

RRF_K = 60
"""The paper's constant."""


def reciprocal_rank_fusion(rankings: Sequence[Sequence[str]], k: int = RRF_K) -> list[str]:
    """Return ids by Σ 1 / (k + rank) over ``rankings`` (ranks from 1), best first; ties by id."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, start=1):
            scores[item] = scores.get(item, 0.0) + 1 / (k + rank)
    return sorted(scores, key=lambda item: (-scores[item], item))
