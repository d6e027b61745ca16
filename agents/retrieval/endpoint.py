"""One call of an endpoint outside this process: embeddings, reranking, or a model that explores.

await posted(http, "http://localhost:8000/v1/embeddings", {"model": "m", "input": ["text"]}, 60, "embeddings_url")
"""

from typing import Any

import aiohttp


class RetrievalError(RuntimeError):
    """A part of the retrieval outside this process failed; the message names the setting to look at."""


async def posted(http: aiohttp.ClientSession, url: str, body: object, timeout_s: float, setting: str) -> Any:
    """Return the JSON answer to ``body``. Raises :class:`RetrievalError` that names ``setting``."""
    try:
        async with http.post(url, json=body, timeout=aiohttp.ClientTimeout(timeout_s)) as response:
            if not response.ok:
                raise RetrievalError(f"{setting} {url} answered {response.status}: {(await response.text())[:200]}")
            return await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise RetrievalError(f"{setting} {url} did not answer: {error!r}") from error
