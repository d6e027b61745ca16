"""Vectors of chunks in Chroma, for users who have it: a folder or a server of theirs.

    store = ChromaStore.in_folder(Path("chroma"), "docs")
    await store.add(chunk_ids, vectors)
    await store.nearest(vector, 50) → ["d0412-1", …]

The vectors are ours (or the endpoint's, or the directory's): Chroma stores them and finds near ones, approximately. Its
local store has no sparse index, so BM25 and the fusion stay in this process. Needs the extra ``chroma``.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.agents.retrieval.dense import Vector
from headrace.agents.retrieval.embedders import Vectors
from headrace.agents.retrieval.endpoint import RetrievalError


class ChromaStore:
    """A collection of Chroma. Its calls block, so they run on threads."""

    def __init__(self, client: Any, collection: str) -> None:
        """Open ``collection`` of ``client``, created with the cosine distance if it is missing."""
        self._client = client
        self._collection = client.get_or_create_collection(
            collection, configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )

    @classmethod
    def in_folder(cls, folder: Path, collection: str) -> "ChromaStore":
        """Open a collection in ``folder``, without a server."""
        import chromadb

        settings = chromadb.config.Settings(anonymized_telemetry=False)
        return cls(chromadb.PersistentClient(path=str(folder), settings=settings), collection)

    @classmethod
    def of_server(cls, host: str, port: int, collection: str) -> "ChromaStore":
        """Open a collection of a running server."""
        import chromadb

        settings = chromadb.config.Settings(anonymized_telemetry=False)
        return cls(chromadb.HttpClient(host=host, port=port, settings=settings), collection)

    async def count(self) -> int:
        """Return the number of stored vectors."""
        found: int = await asyncio.to_thread(self._collection.count)
        return found

    async def add(self, chunk_ids: Sequence[str], vectors: Vectors) -> None:
        """Store vectors, in place of those that have the same ids. Rows of zeros have no direction and are left out."""
        rows = [row for row in range(len(chunk_ids)) if vectors[row].any()]
        batch = int(await asyncio.to_thread(self._client.get_max_batch_size))
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            ids = [chunk_ids[row] for row in part]
            await asyncio.to_thread(self._collection.upsert, ids=ids, embeddings=vectors[part])

    async def nearest(self, vector: Vector, count: int) -> list[str]:
        """Return the nearest chunks; none for a vector of zeros. Raises :class:`RetrievalError`."""
        if not vector.any():
            return []
        try:
            found = await asyncio.to_thread(
                self._collection.query, query_embeddings=[vector], n_results=count, include=["distances"]
            )
        except Exception as error:  # Chroma's own, httpx's, and those of its Rust part
            raise RetrievalError(f"chroma did not answer: {error!r}") from error
        return [str(chunk_id) for chunk_id in found["ids"][0]]
