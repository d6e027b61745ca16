"""Embeddings and reranking by URL: what is sent, what is read, and errors that name the setting."""

from typing import Any

import numpy as np
import pytest

from headrace.agents.retrieval.embedders import EndpointEmbedder, unit_rows
from headrace.agents.retrieval.endpoint import RetrievalError
from headrace.agents.retrieval.passages import Chunk
from headrace.agents.retrieval.rerankers import Candidate, EndpointReranker
from tests.agents.retrieval.endpoint_server import endpoint


def embeddings(path: str, body: Any) -> Any:
    """Vectors by the length of the text, out of order, as the API allows."""
    rows = [{"index": row, "embedding": [len(text), 1]} for row, text in enumerate(body["input"])]
    return {"data": rows[::-1]}


def candidate(number: int, text: str) -> Candidate:
    chunk = Chunk(f"c{number}", "d", "title", text)
    return Candidate(chunk=chunk, bm25=0, cosine=0, bm25_rank=None, dense_rank=None, fused_rank=number)


async def test_texts_are_embedded_in_batches_and_their_order_is_kept() -> None:
    async with endpoint(embeddings) as (http, url, asked):
        found = await EndpointEmbedder(http, f"{url}/v1", "m", batch=2).embed(["a", "bbbb", "cc"])
    assert np.allclose(found, unit_rows(np.asarray([[1, 1], [4, 1], [2, 1]])))
    assert [body["input"] for body in asked] == [["a", "bbbb"], ["cc"]]
    assert asked[0]["model"] == "m"


@pytest.mark.parametrize(
    "answer",
    [
        503,
        "no json",
        {"error": "x"},
        {"data": [{"index": 0, "embedding": [1]}]},
        {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]},
        {"data": [{"index": 0, "embedding": [1, "x"]}, {"index": 1, "embedding": [1, 2]}]},
        {"data": [{"embedding": [1]}, {"embedding": [1]}]},
    ],
)
async def test_an_endpoint_that_answers_oddly_is_an_error_that_names_the_setting(answer: Any) -> None:
    async with endpoint(lambda path, body: answer) as (http, url, _):
        with pytest.raises(RetrievalError, match="embeddings_url"):
            await EndpointEmbedder(http, url, "m").embed(["a", "b"])


async def test_an_endpoint_that_does_not_listen_is_an_error_that_names_the_setting() -> None:
    async with endpoint(embeddings) as (http, _, _):
        with pytest.raises(RetrievalError, match="embeddings_url"):
            await EndpointEmbedder(http, "http://127.0.0.1:9", "m").embed(["a"])


async def test_a_reranker_by_url_scores_each_candidate() -> None:
    def rank(path: str, body: Any) -> Any:
        assert path == "/rerank"
        scores = [{"index": row, "relevance_score": len(text)} for row, text in enumerate(body["documents"])]
        return {"results": scores[::-1]}

    async with endpoint(rank) as (http, url, asked):
        scores = await EndpointReranker(http, f"{url}/rerank", "m").rerank("q", [candidate(1, "xx"), candidate(2, "x")])
        assert await EndpointReranker(http, f"{url}/rerank", "m").rerank("q", []) == []
    assert scores == [len("title\nxx"), len("title\nx")]
    assert (asked[0]["query"], asked[0]["top_n"], len(asked)) == ("q", 2, 1)


@pytest.mark.parametrize(
    "answer", [{"results": [{"index": 0, "relevance_score": 1}]}, {"results": [{"index": 0}]}, {"scores": []}, []]
)
async def test_a_reranker_that_answers_oddly_is_an_error_that_names_the_setting(answer: Any) -> None:
    async with endpoint(lambda path, body: answer) as (http, url, _):
        with pytest.raises(RetrievalError, match="reranker_url"):
            await EndpointReranker(http, url, "m").rerank("q", [candidate(1, "x"), candidate(2, "x")])
