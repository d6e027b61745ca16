"""Milliseconds a query takes in each stage of the retrieval, beside bm25s alone in the same run.

    python -m tests.benchmarks.bench_retrieval [--corpus DIR] [--queries 300] [--rounds 5]

Without ``--corpus`` the corpus of the installed documentation and its index are made first. Medians of interleaved
rounds, with the smallest and the largest. ``fused`` is both rankings and their fusion,
and later stages include it. ``bm25s alone`` is the library with its own tokens and its own choice of the best 50.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from headrace.agents.retrieval.documents import read_documents
from headrace.agents.retrieval.index import RetrievalSettings, retriever_of
from headrace.agents.retrieval.learnt_reranker import FEATURES, LearntReranker
from headrace.agents.retrieval.passages import Document
from headrace.agents.retrieval.retriever import CANDIDATES
from headrace.agents.search.text.corpus import corpus_of
from headrace.agents.search.text.installation import sources, stdlib, topics
from headrace.agents.search.text.learn_reranker import without_first_sentences

Stage = Callable[[str], Awaitable[object]]


async def stages_of(documents: Sequence[Document]) -> dict[str, Stage]:
    """The stages by name."""
    retriever = await retriever_of(documents, RetrievalSettings())
    assert retriever.embedder is not None
    assert retriever.dense is not None
    embedder, dense = retriever.embedder, retriever.dense
    # The time does not depend on the weights.
    weights = LearntReranker(np.zeros(len(FEATURES)), np.ones(len(FEATURES)), np.ones(len(FEATURES)))
    reranking = replace(retriever, reranker=weights)
    alone: Any = bm25s.BM25(backend="numpy")
    alone.index(
        bm25s.tokenize([chunk.searched for chunk in retriever.passages.chunks], show_progress=False),
        show_progress=False,
    )

    async def library(query: str) -> object:
        return alone.retrieve(bm25s.tokenize(query, show_progress=False), k=CANDIDATES, show_progress=False)

    async def lexical(query: str) -> object:
        return retriever.lexical.rank(query, CANDIDATES)

    async def nearest(query: str) -> object:
        return await dense.nearest((await embedder.embed([query]))[0], CANDIDATES)

    async def whole(query: str) -> object:
        return await reranking.search(query, budget=2_048)

    return {
        "bm25s alone": library,
        "bm25": lexical,
        "dense": nearest,
        "fused": retriever.rankings,
        "reranked": reranking.rankings,
        "search": whole,
    }


async def measure(stages: dict[str, Stage], queries: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds per query, by stage and round."""
    found: dict[str, list[float]] = {name: [] for name in stages}
    for query in queries:  # caches of terms are warm, as in a run of many episodes
        await stages["search"](query)
    for _ in range(rounds):
        for name, stage in stages.items():
            began = time.perf_counter()
            for query in queries:
                await stage(query)
            found[name].append((time.perf_counter() - began) * 1_000 / len(queries))
    return found


def table(found: dict[str, list[float]]) -> str:
    """One line per stage."""
    return "\n".join(
        f"{name:<12} {statistics.median(each):6.2f} ms a query ({min(each):.2f}–{max(each):.2f})"
        for name, each in found.items()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    documents = read_documents(options.corpus) if options.corpus else corpus_of(sources(stdlib()), topics()).documents
    _, sentences = without_first_sentences(documents)
    queries = list(sentences.values())[: options.queries]

    async def run() -> dict[str, list[float]]:
        return await measure(await stages_of(documents), queries, options.rounds)

    print(table(asyncio.run(run())))


if __name__ == "__main__":
    main()
