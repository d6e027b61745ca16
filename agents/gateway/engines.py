"""A vLLM server as the gateway uses it: models, render, tokenize and generate over HTTP.

    async with Engine("http://127.0.0.1:8000") as engine:
        (rendered,) = await engine.render("/v1/chat/completions", body)
        async with engine.generate(generate_request(rendered, prompt_ids)) as answer:
            async for chunks in answer: ...

Leaving the block before the answer has ended, also by cancellation, closes the connection, and vLLM aborts the request.
Nothing is retried here (:mod:`headrace.agents.gateway.engine_pool` does).
"""

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from headrace.agents.gateway.engine_errors import (
    REMEDY,
    EngineAnswerInvalid,
    EngineBroke,
    EngineUnavailable,
    error_of,
)
from headrace.agents.gateway.engine_http import EngineHttp, Response
from headrace.agents.gateway.generate_request import (
    MAX_RENDERED_BYTES,
    GenerateRequest,
    NotRendered,
    RenderedRequest,
    generate_request,
    parse_rendered,
)
from headrace.agents.gateway.generate_stream import Chunk, EngineUsage, GenerateStream
from headrace.agents.gateway.rendered_ids import RenderedIds
from headrace.agents.logprobs_mode import LogprobsProbe
from headrace.agents.sampled_tokens import GENERATE
from headrace.schemas.arrays import FloatArray, IntArray
from headrace.schemas.events import LogprobsOf, Sampling
from headrace.schemas.redaction import redacted, redacted_address

MAX_ERROR_BYTES = 64 * 1024
"""Longest text of an error that is read."""

MAX_LISTED_BYTES = 4 * 1024 * 1024
"""Largest list of models."""

_T = TypeVar("_T")


class ServedModel(msgspec.Struct, frozen=True):
    """A model that an engine serves."""

    id: str
    """Its name in requests."""
    max_model_len: int | None = None
    """Largest number of tokens of prompt and answer."""
    root: str | None = None
    """Folder or repository that it was loaded from."""


class _Models(msgspec.Struct):
    data: list[ServedModel]


class _Tokenized(msgspec.Struct):
    tokens: list[int]


_models = msgspec.json.Decoder(_Models)
_tokenized = msgspec.json.Decoder(_Tokenized)


class Answer:
    """An answer that arrives: :meth:`pour` it, or iterate over it for the chunks of each network read."""

    def __init__(self, response: Response, stream: GenerateStream, engine: str) -> None:
        self._response = response
        self._stream = stream
        self._engine = engine
        self._first: list[Chunk] = []
        self.usage: EngineUsage | None = None
        """Tokens of the call, once the answer has ended."""

    async def start(self) -> None:
        """Wait for the first chunks.

        Raises :class:`EngineUnavailable` if the connection ends before them, and what iterating raises.
        """
        try:
            self._first = await self._next()
        except EngineBroke as error:
            raise EngineUnavailable(self._engine, f"gave no answer: {error}") from error

    def close(self) -> None:
        """End the call; what has not ended is aborted."""
        self._response.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Chunk]:
        """Return the next chunks, at least one.

        Raises:
            EngineBroke: If the connection ends before the answer does.
            EngineAnswerInvalid: If the answer cannot be used.
            EngineRefused, EngineFailed: If the engine reports an error.
        """
        chunks = self.first() or await self._next()
        if not chunks:
            raise StopAsyncIteration
        return chunks

    def first(self) -> list[Chunk]:
        """Return the chunks that arrived first, once."""
        chunks, self._first = self._first, []
        return chunks

    async def pour(self, take: Callable[[list[Chunk]], bool], drained: Callable[[], Awaitable[None]]) -> EngineUsage:
        """Pass the chunks on to ``take`` as they arrive, at least one at a time, and return the tokens of the call.

        ``take`` is called by the event loop as soon as something is read, and returns whether more may follow at once;
        else nothing more is passed on until ``drained`` returns. Raises what iterating and ``take`` raise.
        """
        raised: Exception | None = None

        def receive(data: bytes) -> bool:
            nonlocal raised
            try:
                chunks = self._stream.feed(data)
                return take(chunks) if chunks else True
            except Exception as error:  # noqa: BLE001 - raised below
                raised = error
                return False

        goes_on = not self._first or take(self.first())
        while self.usage is None:
            if not goes_on:
                await drained()
            try:
                goes_on = has_ended = await self._response.pour(receive)
            except OSError as error:
                raise self._broke(error) from error
            if raised is not None:
                raise raised
            if has_ended:
                self.usage = self._stream.end()
        return self.usage

    def _broke(self, error: OSError) -> EngineBroke:
        return EngineBroke(self._engine, f"broke off its answer: {redacted(repr(error))}")

    async def _next(self) -> list[Chunk]:
        while self.usage is None:
            try:
                data = await self._response.read()
            except OSError as error:
                raise self._broke(error) from error
            if not data:
                self.usage = self._stream.end()
            elif chunks := self._stream.feed(data):
                return chunks
        return []


class Engine:
    """A client of one vLLM server. Use it in an ``async with``, or ``await .close()``."""

    def __init__(self, url: str, key: str | None = None, *, read_timeout_s: float = 300.0) -> None:
        """
        Args:
            url: Address of the server, without ``/v1``.
            key: Its API key (``--api-key``), if it needs one.
            read_timeout_s: Longest time without a byte of an answer; it includes the wait for the first token.
        """
        self.url = url.rstrip("/")
        self.shown = redacted_address(self.url)
        """Its address without secrets."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # The number of connections is limited by the pool's calls in flight.
        self._http = EngineHttp(self.url, headers, read_timeout_s=read_timeout_s)
        self._probe = LogprobsProbe(self.shown)

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the served models. Raises :class:`EngineError`."""
        return tuple(self._decoded(_models, await self._call("GET", "/v1/models", None, MAX_LISTED_BYTES)).data)

    async def render(self, path: str, body: bytes) -> tuple[RenderedRequest, ...]:
        """Return the prompt and the parameters of a client's request; Completions may have several prompts.

        Args:
            path: The client's endpoint: ``/v1/chat/completions``, ``/v1/completions``, ``/v1/messages`` or
                ``/v1/responses``.
            body: Its request, JSON.

        Raises:
            EngineRefused: If the request is invalid, with the engine's words.
            EngineError: If the engine cannot answer.
        """
        try:
            return parse_rendered(await self._call("POST", f"{path}/render", body, MAX_RENDERED_BYTES))
        except NotRendered as error:
            raise EngineAnswerInvalid(self.shown, f"sent a prompt that cannot be used: {error}") from error

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        """Return the tokens of ``text``, without special tokens at its ends. Raises :class:`EngineError`."""
        request = {"prompt": text, "add_special_tokens": False} | ({"model": model} if model else {})
        body = await self._call("POST", "/tokenize", msgspec.json.encode(request), MAX_RENDERED_BYTES)
        return self._decoded(_tokenized, body).tokens

    @asynccontextmanager
    async def generate(self, request: GenerateRequest) -> AsyncIterator[Answer]:
        """Send ``request`` and wait for the first chunks. Leaving the block aborts what has not ended.

        Raises what :meth:`start` raises.
        """
        answer = await self.start(request)
        try:
            yield answer
        finally:
            answer.close()

    async def start(self, request: GenerateRequest) -> Answer:
        """Send ``request`` and return its answer once the first chunks have arrived; it must be closed.

        Raises:
            EngineUnavailable: If nothing of an answer arrived: another engine may be asked.
            EngineRefused: If the engine refuses the request.
            EngineError: If it fails otherwise; see :meth:`Answer.__anext__`.
        """
        stream = GenerateStream(
            self.shown,
            choices=request.choices,
            max_tokens=request.max_tokens,
            with_entries=request.with_alternatives,
            prompt=(request.prompt_ids, request.prompt_json),
        )
        answer = Answer(await self._open("POST", GENERATE, request.body, is_repeatable=False), stream, self.shown)
        try:
            await answer.start()
        except BaseException:
            answer.close()
            raise
        return answer

    async def logprobs_mode(self, sampling: Sampling, prompt_ids: IntArray, model: str | None) -> LogprobsOf | None:
        """Return which log-probabilities tokens sampled with ``sampling`` have here; at most one request a minute asks.

        ``prompt_ids`` (int32, not empty) and ``model`` are those of any request. Raises :class:`EngineError`.
        """

        async def sample(sampling_params: dict[str, Any]) -> FloatArray:
            probe = generate_request(
                RenderedRequest(RenderedIds.of(prompt_ids), sampling_params, {"model": model}), prompt_ids
            )
            logprobs = array("f")
            async with self.generate(probe) as answer:
                async for chunks in answer:
                    for chunk in chunks:
                        logprobs += chunk.logprobs
            return logprobs

        return await self._probe.mode_for(sampling, prompt_ids, sample)

    def failed(self) -> None:
        """The engine could not be reached, or broke off an answer: what is known of it may be of an earlier process."""
        self._probe.forget()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, path: str, body: bytes | None, limit: int) -> bytes:
        response = await self._open(method, path, body, is_repeatable=True)
        parts: list[bytes] = []
        try:
            size = 0
            while part := await response.read():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise EngineAnswerInvalid(self.shown, f"answered {path} with more than {limit:,} bytes")
        except OSError as error:
            raise EngineUnavailable(self.shown, f"broke off its answer: {redacted(repr(error))}") from error
        finally:
            response.close()
        return b"".join(parts)

    def _decoded(self, decoder: "msgspec.json.Decoder[_T]", body: bytes) -> _T:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineAnswerInvalid(self.shown, f"sent what vLLM would not: {error}: {body[:200]!r}") from error

    async def _open(self, method: str, path: str, body: bytes | None, *, is_repeatable: bool) -> Response:
        """Return a response of status 200 whose body has not been read."""
        try:
            response = await self._http.request(method, path, body, is_repeatable=is_repeatable)
            if response.status == HTTPStatus.OK:
                return response
            text = b""
            try:
                while len(text) < MAX_ERROR_BYTES and (part := await response.read()):
                    text += part
            finally:
                response.close()
        except OSError as error:
            raise EngineUnavailable(self.shown, f"cannot be reached: {redacted(repr(error))}. {REMEDY}") from error
        raise error_of(self.shown, response.status, text[:MAX_ERROR_BYTES], _retry_after_s(response.headers))


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds that an engine asks to wait; 1 if it says nothing that can be read."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1.0
