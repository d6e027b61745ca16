"""The pipeline: two rankings, fusion, the best reranked, seen chunks excluded, the result cut to its budget."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.agents.retrieval.dense import ExactStore
from headrace.agents.retrieval.fusion import reciprocal_rank_fusion
from headrace.agents.retrieval.lexical import Lexical
from headrace.agents.retrieval.passages import Document, estimated_tokens, split_into_chunks
from headrace.agents.retrieval.rerankers import Candidate
from headrace.agents.retrieval.retriever import CANDIDATES, Retriever
from tests.agents.retrieval.shelf import retriever


class Backwards:
    """A reranker that turns the fused order around."""

    def __init__(self) -> None:
        self.given: list[Candidate] = []

    async def rerank(self, query: str, candidates: Sequence[Candidate]) -> list[float]:
        self.given = list(candidates)
        return [float(candidate.fused_rank) for candidate in candidates]


async def test_the_fused_ranking_is_that_of_both() -> None:
    found = await retriever().rankings("serve requests over tcp")
    assert found.bm25
    assert found.dense
    assert found.fused == reciprocal_rank_fusion([found.bm25, found.dense])
    assert found.reranked == found.fused


async def test_the_reranker_decides_the_order_and_sees_every_stage() -> None:
    backwards = Backwards()
    found = await retriever(backwards).rankings("copy file")
    assert found.reranked == found.fused[::-1]
    assert [each.chunk.chunk_id for each in backwards.given] == found.fused
    for each in backwards.given:
        chunk_id = each.chunk.chunk_id
        assert each.bm25_rank == (found.bm25.index(chunk_id) + 1 if chunk_id in found.bm25 else None)
        assert each.dense_rank == found.dense.index(chunk_id) + 1
        assert (each.bm25 > 0) == (chunk_id in found.bm25)


async def test_excluded_chunks_take_no_place_among_the_candidates() -> None:
    documents = [Document(f"d{number:03d}", "t", "same words " * (number + 1)) for number in range(120)]
    passages = split_into_chunks(documents)
    search = Retriever(passages, Lexical.of(passages), None, None)
    first = (await search.rankings("same")).reranked
    second = (await search.rankings("same", exclude=first)).reranked
    assert len(first) == len(second) == CANDIDATES
    assert set(first).isdisjoint(second)


async def test_a_result_fits_its_budget_of_tokens() -> None:
    search = retriever()
    whole = await search.search("copy file folder", budget=10_000)
    budget = sum(estimated_tokens(chunk.shown) for chunk in whole[:2])
    assert await search.search("copy file folder", budget=budget) == whole[:2]
    assert await search.search("copy file folder", budget=0) == []
    assert await search.search("copy file folder", budget=40, tokens_of=lambda text: 20) == whole[:2]


async def test_a_query_that_matches_nothing_finds_nothing() -> None:
    assert await retriever().search("astronomy", budget=1_000) == []
    assert await retriever(Backwards()).search("", budget=1_000) == []


async def test_without_an_embedder_bm25_is_alone() -> None:
    found = await retriever(is_dense=False).rankings("serve requests")
    assert found.dense == []
    assert found.fused == found.bm25


def test_a_document_is_cut_to_the_budget_and_a_missing_one_is_empty() -> None:
    search = retriever()
    (only,) = search.document("tcp", budget=1_000)
    assert only.chunk_id == "tcp-1"
    assert search.document("tcp", budget=1) == []
    assert search.document("nowhere", budget=1_000) == []


def test_a_grep_is_cut_to_the_budget() -> None:
    search = retriever()
    assert [chunk.doc_id for chunk in search.grep("shutil", budget=1_000)] == ["copy", "move", "tree"]
    assert [chunk.doc_id for chunk in search.grep("shutil", budget=20, tokens_of=lambda text: 10)] == ["copy", "move"]


async def test_vectors_of_another_embedder_are_an_error() -> None:
    search = retriever()
    assert isinstance(search.dense, ExactStore)
    narrow = replace(search, dense=ExactStore(search.dense.chunk_ids, search.dense.vectors[:, :2]))
    with pytest.raises(ValueError, match="another embedder"):
        await narrow.rankings("serve")


def test_vectors_of_other_chunks_are_an_error() -> None:
    search = retriever()
    assert isinstance(search.dense, ExactStore)
    with pytest.raises(ValueError, match="other chunks"):
        replace(search, dense=ExactStore(search.dense.chunk_ids[::-1], search.dense.vectors))
    with pytest.raises(ValueError, match="embedder"):
        replace(search, embedder=None)
