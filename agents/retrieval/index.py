"""An index on disk beside its corpus, and the retriever that opens it.

    corpus/documents.jsonl                     {"doc_id": "d0412", "title": "shutil.copyfileobj", "text": "…"}
    corpus/index/index.json                    {"documents": "sha256…", "embedder": "lsa:256:9031", "chunks": 4139}
    corpus/index/vectors.npy, lsa.npz, reranker.json

Which embedder and which reranker are used is a setting; BM25 is made again when the index is opened, in a second.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from headrace.agents.retrieval.dense import DenseStore, ExactStore
from headrace.agents.retrieval.documents import read_documents, sha256_of_documents
from headrace.agents.retrieval.embedders import DirectoryEmbedder, Embedder, EndpointEmbedder
from headrace.agents.retrieval.learnt_reranker import LearntReranker
from headrace.agents.retrieval.lexical import Lexical
from headrace.agents.retrieval.lsa import Lsa, fit_lsa
from headrace.agents.retrieval.passages import Document, Passages, split_into_chunks
from headrace.agents.retrieval.rerankers import EndpointReranker, Reranker
from headrace.agents.retrieval.retriever import Retriever

INDEX = "index"
RERANKER = "reranker.json"


class NoIndex(ValueError):
    """An index is missing or does not fit its corpus; the message says which command mends it."""


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """Which parts the retriever has. With the defaults all of them are made from the corpus."""

    embeddings_url: str | None = None
    """Address of an endpoint of OpenAI's embeddings API, such as ``http://localhost:8000/v1``; else our LSA."""
    embeddings_model: str = ""
    """Model of the endpoint."""
    embedding_model: Path | None = None
    """A Hugging Face directory instead; needs torch and transformers."""
    reranker_url: str | None = None
    """Address of a reranking endpoint, such as ``http://localhost:8000/rerank``; else the learnt reranker."""
    reranker_model: str = ""
    """Model of the endpoint."""
    chroma: Path | None = None
    """A folder of Chroma's for the vectors, instead of an array in memory; needs the extra ``chroma``."""

    def __post_init__(self) -> None:
        if self.embeddings_url and self.embedding_model:
            raise ValueError("set embeddings_url or embedding_model, not both")
        for url, model in (("embeddings_url", "embeddings_model"), ("reranker_url", "reranker_model")):
            if getattr(self, url) and not getattr(self, model):
                raise ValueError(f"{url} needs {model}: the name of the endpoint's model")


async def build_index(
    folder: Path, settings: RetrievalSettings, http: aiohttp.ClientSession | None = None
) -> Retriever:
    """Make the vectors of the corpus in ``folder``, and write them; return the retriever, without a reranker.

    A reranker that was learnt with other vectors is removed. Raises :class:`NoCorpus` and :class:`RetrievalError`.
    """
    retriever = await retriever_of(read_documents(folder), settings, http)
    embedder, store = retriever.embedder, retriever.dense
    assert embedder is not None
    assert isinstance(store, ExactStore)
    index = folder / INDEX
    index.mkdir(exist_ok=True)
    (index / RERANKER).unlink(missing_ok=True)
    if isinstance(embedder, Lsa):
        embedder.save(index / "lsa.npz")
    np.save(index / "vectors.npy", store.vectors, allow_pickle=False)
    about = {
        "documents": sha256_of_documents(folder),
        "embedder": embedder.name,
        "chunks": len(retriever.passages.chunks),
    }
    (index / "index.json").write_text(json.dumps(about, indent=1) + "\n")
    return retriever


async def retriever_of(
    documents: Iterable[Document], settings: RetrievalSettings, http: aiohttp.ClientSession | None = None
) -> Retriever:
    """Return a retriever of ``documents`` in memory, without a reranker. Raises :class:`RetrievalError`."""
    passages = split_into_chunks(documents)
    texts = [chunk.searched for chunk in passages.chunks]
    embedder: Embedder = external_embedder(settings, http) or fit_lsa(texts)
    vectors = await embedder.embed(texts)
    lexical = Lexical.of(passages)
    return Retriever(passages, lexical, embedder, ExactStore(lexical.chunk_ids, vectors))


async def open_retriever(
    folder: Path, settings: RetrievalSettings | None = None, http: aiohttp.ClientSession | None = None
) -> Retriever:
    """Open the index of ``folder``. ``http`` is needed for endpoints, and has their API keys.

    Raises :class:`NoIndex` if the index is missing, or was made of other documents or by another embedder.
    """
    settings = settings or RetrievalSettings()
    index = folder / INDEX
    if not (index / "index.json").is_file():
        raise NoIndex(f"{folder} has no index: make it with `headrace index --corpus {folder}`")
    about: dict[str, Any] = json.loads((index / "index.json").read_text())
    documents = read_documents(folder)
    if about.get("documents") != sha256_of_documents(folder):
        raise NoIndex(
            f"the index of {folder} is of other documents: make it again with `headrace index --corpus {folder}`"
        )
    embedder: Embedder = external_embedder(settings, http) or Lsa.load(index / "lsa.npz")
    if about.get("embedder") != embedder.name:
        raise NoIndex(
            f"the vectors of {folder} are of {about.get('embedder')}, not of {embedder.name}: make them with "
            f"`headrace index --corpus {folder}` and the same settings"
        )
    vectors = np.load(index / "vectors.npy", allow_pickle=False)
    reranker: Reranker | None = None
    if settings.reranker_url is not None:
        reranker = EndpointReranker(_session(http, "reranker_url"), settings.reranker_url, settings.reranker_model)
    elif (index / RERANKER).is_file():
        reranker = LearntReranker.load(index / RERANKER)
    return await _retriever(split_into_chunks(documents), embedder, vectors, settings, reranker)


def external_embedder(settings: RetrievalSettings, http: aiohttp.ClientSession | None) -> Embedder | None:
    """Return the embedder that ``settings`` name; ``None`` for our LSA."""
    if settings.embeddings_url is not None:
        return EndpointEmbedder(_session(http, "embeddings_url"), settings.embeddings_url, settings.embeddings_model)
    return None if settings.embedding_model is None else DirectoryEmbedder(settings.embedding_model)


async def _retriever(
    passages: Passages, embedder: Embedder, vectors: Any, settings: RetrievalSettings, reranker: Reranker | None
) -> Retriever:
    lexical = Lexical.of(passages)
    store: DenseStore = ExactStore(lexical.chunk_ids, vectors)
    if settings.chroma is not None:
        from headrace.agents.retrieval.chroma import ChromaStore

        # A collection per corpus and embedder: vectors of another one are never among the nearest.
        contents = hashlib.sha256(repr([embedder.name, *passages.chunks]).encode()).hexdigest()
        chroma = ChromaStore.in_folder(settings.chroma, f"headrace-{contents[:16]}")
        if await chroma.count() < int(vectors.any(axis=1).sum()):
            await chroma.add(lexical.chunk_ids, vectors)
        store = chroma
    return Retriever(passages, lexical, embedder, store, reranker)


def _session(http: aiohttp.ClientSession | None, setting: str) -> aiohttp.ClientSession:
    if http is None:
        raise ValueError(f"{setting} is set, so an HTTP session is needed")
    return http
