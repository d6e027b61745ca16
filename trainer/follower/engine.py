"""A client of the part of vLLM's HTTP interface that a follower needs: served version, weight update, scores.

Every call has a timeout. Repeatable calls are retried if the connection fails. The three calls of a weight update are
not, because a retry would find a half-done update: their caller starts over.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from headrace.schemas.ids import uuid7

_MESSAGE_CHARS = 500


class VllmEngineError(RuntimeError):
    """A request to the engine failed."""


class EngineUnreachable(VllmEngineError):
    """No connection, or no answer in time: the engine may be starting, stopped or stuck."""


class EngineRefused(VllmEngineError):
    """The engine answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of the answer."""


class VersionRefused(VllmEngineError):
    """The engine runs, and reports that it cannot load these weights or score their canaries."""


class VllmEngine:
    """A vLLM server, started with headrace's plugin and VLLM_SERVER_DEV_MODE=1."""

    def __init__(self, client: httpx.AsyncClient, *, attempts: int = 3) -> None:
        """``client`` has the engine's base URL and a timeout; ``attempts`` limits those of repeatable calls."""
        self._client = client
        self._attempts = attempts

    async def served(self) -> str:
        """Returns the stamp that the engine puts on tokens: a follower's, or vLLM's ``default`` after a start."""
        return str(await self._request_field("GET", "/weight_info", "weight_version"))

    async def is_paused(self) -> bool:
        """Whether the engine is paused."""
        return bool(await self._request_field("GET", "/is_paused", "is_paused"))

    async def is_healthy(self) -> bool:
        """Whether the engine runs; ``False`` also if it does not answer."""
        try:
            await self._repeat("GET", "/health")
        except VllmEngineError:
            return False
        return True

    async def allow_folder(self, root: Path) -> None:
        """Let the plugin load files under ``root``, an absolute path on the engine's machine, and from nowhere else."""
        await self._repeat("POST", "/init_weight_transfer_engine", json={"init_info": {"root": str(root)}})

    async def pause(self) -> None:
        """Pause all requests, queued ones included; they keep their state."""
        await self._repeat("POST", "/pause", params={"mode": "keep", "clear_cache": "false"})

    async def resume(self) -> None:
        """Resume all requests."""
        await self._repeat("POST", "/resume")

    async def start_update(self) -> None:
        """Open a weight update."""
        await self._once("POST", "/start_weight_update")

    async def load(self, path: Path, sha256: str) -> None:
        """Load the safetensors file ``path``; the plugin checks its hash first. Raises :class:`VersionRefused`."""
        try:
            await self._once("POST", "/update_weights", json={"update_info": {"path": str(path), "sha256": sha256}})
        except EngineRefused as error:
            if not await self.is_healthy():
                raise
            raise VersionRefused(str(error)) from error

    async def finish_update(self, stamp: str | None = None) -> None:
        """Close the weight update and, if given, put ``stamp`` on tokens from now on."""
        await self._once("POST", "/finish_weight_update", json={"weight_version": stamp})

    async def label(self, stamp: str) -> None:
        """Put ``stamp`` on tokens from now on, whatever the weights are."""
        await self._repeat("POST", "/update_weight_version", json={"new_version": stamp})

    async def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values, also those of running requests, which are computed again.

        The engine must be paused. Raises :class:`EngineRefused` if blocks could not be freed.
        """
        params = {"reset_running_requests": "true"}
        if not await self._request_field("POST", "/reset_prefix_cache", "success", params=params):
            raise EngineRefused("the prefix cache was not reset: some of its blocks are still held", 200)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Returns the log-probability (nats, temperature 1) of each of ``token_ids`` after the first, without caches.

        Raises :class:`VersionRefused` if the engine's model does not take the tokens (vocabulary, length),
        :class:`EngineRefused` if the answer lacks log-probabilities.
        """
        body = {
            "token_ids": list(token_ids),
            "sampling_params": {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0, "detokenize": False},
            # A namespace of its own in the prefix cache, so that no keys and values of other weights are used.
            "cache_salt": uuid7(),
        }
        try:
            rows = await self._request_field("POST", "/inference/v1/generate", "prompt_logprobs", json=body)
        except EngineRefused as error:
            if not 400 <= error.status < 500:
                raise
            raise VersionRefused(str(error)) from error
        try:
            return [float(row[str(token)]["logprob"]) for row, token in zip(rows[1:], token_ids[1:], strict=True)]
        except (LookupError, TypeError, ValueError) as error:
            shown = repr(rows)[:_MESSAGE_CHARS]
            raise EngineRefused(
                f"POST /inference/v1/generate: prompt_logprobs are not one for each token ({error!r}): {shown}", 200
            ) from error

    async def _request_field(self, method: str, path: str, name: str, **request: Any) -> Any:
        """Returns the field ``name`` of :meth:`_repeat`'s answer; raises :class:`EngineRefused` if it is missing."""
        answer = await self._repeat(method, path, **request)
        if not isinstance(answer, dict) or name not in answer:
            shown = repr(answer)[:_MESSAGE_CHARS]
            raise EngineRefused(f"{method} {path}: the answer has no {name}: {shown}", 200)
        return answer[name]

    async def _repeat(self, method: str, path: str, **request: Any) -> Any:
        """:meth:`_once`, retried if the connection fails."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(EngineUnreachable),
            stop=stop_after_attempt(self._attempts),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0),
            reraise=True,
        ):
            with attempt:
                return await self._once(method, path, **request)
        raise AssertionError("tenacity gives a value or raises")

    async def _once(self, method: str, path: str, **request: Any) -> Any:
        """Make one call; returns its JSON, or ``None`` for an empty body."""
        try:
            response = await self._client.request(method, path, **request)
        except httpx.TransportError as error:
            raise EngineUnreachable(f"{method} {path}: {error or type(error).__name__}") from error
        if response.is_error:
            raise EngineRefused(
                f"{method} {path}: {response.status_code} {response.text[:_MESSAGE_CHARS]}", response.status_code
            )
        try:
            return response.json() if response.content else None
        except ValueError as error:
            message = f"{method} {path}: the answer is not JSON: {response.text[:_MESSAGE_CHARS]}"
            raise EngineRefused(message, response.status_code) from error


@asynccontextmanager
async def open_engine(url: str, *, timeout_s: float) -> AsyncIterator[VllmEngine]:
    """Open a client of the engine at ``url``; a call fails after ``timeout_s`` without a byte."""
    # # One connection per call: a server may close a kept connection just as the next request is sent, and for a call
    # that must not be repeated it would be unknown whether it was received.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=timeout_s, limits=limits) as client:
        yield VllmEngine(client)


async def score_all(engine: VllmEngine, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Returns :meth:`VllmEngine.score` of every sequence, requested concurrently."""
    return list(await asyncio.gather(*(engine.score(sequence) for sequence in sequences)))
