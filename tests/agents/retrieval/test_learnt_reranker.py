"""The learnt reranker puts evidence first where its features tell, and its weights can be stored."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.agents.retrieval.learnt_reranker import FEATURES, LearntReranker, features_of, fit_reranker
from headrace.agents.retrieval.passages import Chunk
from headrace.agents.retrieval.rerankers import Candidate


def candidate(title: str, text: str, rank: int, bm25: float = 1.0) -> Candidate:
    chunk = Chunk(f"c{rank}", "d", title, text)
    return Candidate(chunk=chunk, bm25=bm25, cosine=0.5, bm25_rank=rank, dense_rank=None, fused_rank=rank)


def examples(count: int) -> list[tuple[np.ndarray, list[int]]]:
    """Random features, of which the seventh tells the evidence, with noise."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        features = rng.standard_normal((20, len(FEATURES)))
        row = int(rng.integers(20))
        features[row, 6] += 4
        found.append((features, [row]))
    return found


def test_it_learns_which_feature_tells_the_evidence() -> None:
    reranker = fit_reranker(examples(200))
    held_out = examples(300)[200:]
    first = [int(reranker.scores(features).argmax()) == rows[0] for features, rows in held_out]
    assert np.mean(first) > 0.8
    assert int(np.abs(reranker.weights).argmax()) == 6


def test_the_features_of_a_candidate_are_what_their_names_say() -> None:
    found = features_of(
        "length of shutil.copy", [candidate("shutil.copy", "length of a file", 1, 4.0), candidate("a", "b", 2)]
    )
    named = dict(zip(FEATURES, found[0], strict=True))
    assert (named["bm25"], named["bm25_share"], named["cosine"]) == (4.0, 1.0, 0.5)
    assert (named["bm25_reciprocal_rank"], named["dense_reciprocal_rank"]) == (1.0, 0.0)
    assert (named["coverage"], named["title_coverage"], named["title_in_query"]) == (1.0, 1.0, 1.0)
    assert named["log_length"] == pytest.approx(np.log(3))  # length, file
    assert dict(zip(FEATURES, found[1], strict=True))["bm25_share"] == 0.25


def test_no_candidates_have_no_features() -> None:
    assert features_of("query", []).shape == (0, len(FEATURES))


def test_questions_without_evidence_among_the_candidates_teach_nothing() -> None:
    features = np.zeros((3, len(FEATURES)))
    with pytest.raises(ValueError, match="evidence"):
        fit_reranker([(features, []), (features, [0, 1, 2])])
    with_them = fit_reranker([*examples(20), (features, [])])
    assert np.array_equal(with_them.weights, fit_reranker(examples(20)).weights)


async def test_stored_weights_give_the_same_scores(tmp_path: Path) -> None:
    reranker = fit_reranker(examples(20))
    reranker.save(tmp_path / "reranker.json")
    candidates = [candidate("a b", "b", 1), candidate("c", "b", 2)]
    loaded = LearntReranker.load(tmp_path / "reranker.json")
    assert await loaded.rerank("b", candidates) == await reranker.rerank("b", candidates)


@pytest.mark.parametrize("change", [{"features": ["bm25"]}, {"weights": [1.0]}])
def test_weights_of_other_features_are_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "reranker.json"
    fit_reranker(examples(20)).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="headrace index"):
        LearntReranker.load(path)
