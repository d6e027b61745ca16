"""Vectors in the real Chroma: run by test_chroma.py, in a process that has its packages."""

from pathlib import Path

import numpy as np

from headrace.agents.retrieval.chroma import ChromaStore
from headrace.agents.retrieval.dense import ExactStore
from headrace.agents.retrieval.documents import write_documents
from headrace.agents.retrieval.embedders import unit_rows
from headrace.agents.retrieval.index import RetrievalSettings, build_index, open_retriever
from tests.agents.retrieval.shelf import DOCUMENTS

IDS = [f"c{number}" for number in range(200)]
VECTORS = unit_rows(np.random.default_rng(0).standard_normal((200, 16)))


async def test_the_nearest_are_those_of_an_exact_search(tmp_path: Path) -> None:
    store = ChromaStore.in_folder(tmp_path, "chunks")
    await store.add(IDS, VECTORS)
    exact = ExactStore(IDS, VECTORS)
    shared = [
        len(set(await store.nearest(vector, 10)) & set(await exact.nearest(vector, 10))) for vector in VECTORS[:20]
    ]
    assert sum(shared) >= 190  # its index is approximate
    assert (await store.nearest(VECTORS[7], 3))[0] == "c7"


async def test_what_was_added_is_there_after_opening_again_and_once(tmp_path: Path) -> None:
    await ChromaStore.in_folder(tmp_path, "chunks").add(IDS, VECTORS)
    again = ChromaStore.in_folder(tmp_path, "chunks")
    await again.add(IDS[:10], VECTORS[:10])
    assert await again.count() == 200


async def test_rows_of_zeros_are_left_out_and_find_nothing(tmp_path: Path) -> None:
    store = ChromaStore.in_folder(tmp_path, "chunks")
    await store.add(["a", "b"], np.asarray([[0, 0], [0, 1]], np.float32))
    assert await store.count() == 1
    assert await store.nearest(np.zeros(2, np.float32), 3) == []
    assert await store.nearest(np.asarray([0, 1], np.float32), 3) == ["b"]


async def test_a_retriever_searches_in_chroma_by_setting(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_documents(DOCUMENTS, corpus)
    await build_index(corpus, RetrievalSettings())
    exact = await open_retriever(corpus)
    opened = await open_retriever(corpus, RetrievalSettings(chroma=tmp_path / "chroma"))
    again = await open_retriever(corpus, RetrievalSettings(chroma=tmp_path / "chroma"))
    assert isinstance(opened.dense, ChromaStore)
    for query in ("copy a file", "serve requests"):
        wanted = (await exact.rankings(query)).dense
        assert set((await opened.rankings(query)).dense) == set(wanted)
        assert await again.rankings(query) == await opened.rankings(query)
