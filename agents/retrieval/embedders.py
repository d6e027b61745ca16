"""Texts → vectors, by whatever makes them: our own LSA, an endpoint of OpenAI's API, a Hugging Face directory.

await embedder.embed(["copy a file"]) → array of shape (1, 256), float32, rows of length 1
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import numpy as np
import numpy.typing as npt

from headrace.agents.retrieval.endpoint import RetrievalError, posted

Vectors = npt.NDArray[np.float32]
"""Shape (texts, dimensions), rows of length 1; a row of zeros is a text that the embedder knows nothing of."""


class Embedder(Protocol):
    """Makes vectors. The same text has the same vector."""

    @property
    def name(self) -> str:
        """What made the vectors, in stored indexes: those of another embedder cannot be compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``. Raises :class:`RetrievalError`."""
        ...


def unit_rows(vectors: npt.NDArray[Any]) -> Vectors:
    """Return ``vectors`` as float32 with rows of length 1; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), np.float32)


@dataclass(frozen=True, slots=True)
class EndpointEmbedder:
    """``POST {url}/embeddings`` as OpenAI's API has it."""

    http: aiohttp.ClientSession
    """Has the API key in its headers, if one is needed."""
    url: str
    model: str
    batch: int = 64
    """Texts per request."""
    timeout_s: float = 60.0
    """Longest wait for one answer."""

    @property
    def name(self) -> str:
        """The endpoint's model."""
        return f"endpoint:{self.model}"

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``. Raises :class:`RetrievalError` if the endpoint fails or answers oddly."""
        rows: list[Any] = []
        for start in range(0, len(texts), self.batch):
            part = list(texts[start : start + self.batch])
            body = {"model": self.model, "input": part, "encoding_format": "float"}
            answer = await posted(self.http, f"{self.url}/embeddings", body, self.timeout_s, "embeddings_url")
            rows += _rows(answer, len(part), self.url)
        try:
            vectors = np.asarray(rows, np.float32)
        except (ValueError, TypeError) as error:
            raise RetrievalError(f"embeddings_url {self.url}: vectors of unequal length or without numbers") from error
        if len(rows) and (vectors.ndim != 2 or not np.isfinite(vectors).all()):
            raise RetrievalError(f"embeddings_url {self.url}: expected a list of finite numbers per text")
        return unit_rows(vectors) if len(rows) else np.zeros((0, 0), np.float32)


def _rows(answer: Any, count: int, url: str) -> list[Any]:
    data = answer.get("data") if isinstance(answer, dict) else None
    try:
        rows = [each["embedding"] for each in sorted(data or (), key=lambda each: each["index"])]
    except (KeyError, TypeError) as error:
        raise RetrievalError(f'embeddings_url {url}: expected {{"data": [{{"index", "embedding"}}]}}') from error
    if len(rows) != count:
        raise RetrievalError(f"embeddings_url {url}: {len(rows)} vectors for {count} texts")
    return rows


class DirectoryEmbedder:
    """A Hugging Face encoder in a directory: the mean of its last hidden states over the tokens of a text.

    Needs torch and transformers, which are imported when the directory is opened. Nothing is downloaded.
    """

    def __init__(self, directory: Path, *, max_tokens: int = 512, batch: int = 32) -> None:
        """Open ``directory``; texts are cut off at ``max_tokens``. Raises ``ValueError`` if it holds no model."""
        if not (directory / "config.json").is_file():
            raise ValueError(f"embedding_model {directory} has no config.json: name a Hugging Face model's directory")
        from transformers import AutoModel, AutoTokenizer

        self.name = f"directory:{directory.name}"
        self._tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        self._model = AutoModel.from_pretrained(directory, local_files_only=True).eval()
        self._max_tokens, self._batch = max_tokens, batch

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``."""
        return await asyncio.to_thread(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> Vectors:
        import torch

        parts = []
        for start in range(0, len(texts), self._batch):
            tokens = self._tokenizer(
                texts[start : start + self._batch],
                padding=True,
                truncation=True,
                max_length=self._max_tokens,
                return_tensors="pt",
            )
            with torch.inference_mode():
                hidden = self._model(**tokens).last_hidden_state
            mask = tokens["attention_mask"].unsqueeze(-1)
            parts.append(((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).float().numpy())
        return unit_rows(np.concatenate(parts)) if parts else np.zeros((0, 0), np.float32)
