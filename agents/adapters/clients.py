"""OpenAI's and Anthropic's clients, whose calls are recorded: ``headrace.wrap(client)``.

Both libraries send every request of a resource through its ``_post``: ``create``, ``parse`` and ``stream``, synchronous
or not. That function is replaced on the resources of the given client. It sees the request's body as it is sent.
Transports, which differ (httpx, httpx2), are left alone.
"""

import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from headrace.agents.adapters.gateway_session import session_headers
from headrace.agents.adapters.recorder import RecordedCall, Recorder
from headrace.agents.adapters.requests import read_answer
from headrace.agents.adapters.streamed_answers import STREAMS
from headrace.agents.gateway.canonical import Api
from headrace.agents.raised import Raised, type_name
from headrace.agents.trajectory import CURRENT

Client = TypeVar("Client")

RESOURCES = ("chat.completions", "beta.chat.completions", "responses", "messages", "beta.messages")
"""Resources whose calls are recorded, where a client has them."""

_PATHS = {
    "/chat/completions": Api.CHAT,
    "/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages?beta=true": Api.MESSAGES,
}
_RAW_HEADER = "X-Stainless-Raw-Response"
"""With ``true`` both libraries return the response, whose ``parse`` makes the object that is returned without it; with
``stream`` they return it before its body was read."""

_COPIES = ("copy", "with_options")
"""Methods that return another client with other options."""


def wrap(client: Client, recorder: Recorder) -> Client:
    """Have ``recorder`` record the calls of ``client`` and of its copies; return ``client``. Wrapping twice records
    once. Raises ``TypeError`` if it is no client of OpenAI or Anthropic."""
    found = [resource for path in RESOURCES if (resource := _resource(client, path)) is not None]
    if not found:
        raise TypeError(
            f"wrap() got a {type_name(type(client))}: expected a client of openai (2 or later) or anthropic, "
            "such as OpenAI() or AsyncAnthropic(), or a session of mcp"
        )
    for resource in found:
        if not hasattr(resource._post, "__wrapped__"):
            resource._post = _recorded(resource._post, recorder)
    for name in _COPIES:
        copy = getattr(client, name, None)
        if copy is not None and not hasattr(copy, "__wrapped__"):
            setattr(client, name, _wrapped_copy(copy, recorder))
    return client


def _resource(client: Any, path: str) -> Any:
    for name in path.split("."):
        client = getattr(client, name, None)
    return client if hasattr(client, "_post") else None


def _wrapped_copy(copy: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(copy)
    def copied(*arguments: Any, **keywords: Any) -> Any:
        return wrap(copy(*arguments, **keywords), recorder)

    return copied


def _recorded(post: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """Return ``post`` with its calls recorded."""
    if inspect.iscoroutinefunction(post):

        @functools.wraps(post)
        async def post_async(path: str, **keywords: Any) -> Any:
            call = _begin(recorder, path, keywords)
            if call is None:
                return await post(path, **_named(path, keywords))
            try:
                result = await post(path, **_to_record(call, keywords))
            except BaseException as error:
                call.failed(error)
                raise
            result = _noted(call, _PATHS[path], keywords, result)
            return await result if inspect.isawaitable(result) else result

        return post_async

    @functools.wraps(post)
    def post_sync(path: str, **keywords: Any) -> Any:
        call = _begin(recorder, path, keywords)
        if call is None:
            return post(path, **_named(path, keywords))
        try:
            result = post(path, **_to_record(call, keywords))
        except BaseException as error:
            call.failed(error)
            raise
        return _noted(call, _PATHS[path], keywords, result)

    return post_sync


def _begin(recorder: Recorder, path: str, keywords: dict[str, Any]) -> RecordedCall | None:
    body = keywords.get("body")
    if path not in _PATHS or not isinstance(body, Mapping):
        return None
    if _raw(keywords) == "stream" and not keywords.get("stream"):
        return None  # the host reads the bytes
    return recorder.call(_PATHS[path], body)


def _raw(keywords: dict[str, Any]) -> str:
    """Return what the host asked for with the header for raw responses; empty if nothing."""
    headers = keywords.get("options", {}).get("headers")
    return str(headers.get(_RAW_HEADER, "")) if isinstance(headers, Mapping) else ""


def _with_headers(keywords: dict[str, Any], added: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of ``_post`` with further headers, which the host's own take precedence over."""
    options = keywords.get("options", {})
    given = options.get("headers")
    headers = dict(given) if isinstance(given, Mapping) else {}
    names = {name.lower() for name in headers}
    headers |= {name: value for name, value in added.items() if name.lower() not in names}
    return keywords | ({"options": {**options, "headers": headers}} if headers else {})


def _to_record(call: RecordedCall, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``_post`` for a call that is recorded."""
    # A raw response is the only way to the headers of an answer; a stream has them.
    raw = {} if keywords.get("stream") else {_RAW_HEADER: "true"}
    return _with_headers(keywords, call.headers | raw)


def _named(path: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``_post`` for a call that is not recorded, with the name of its session."""
    return _with_headers(keywords, session_headers(CURRENT.get())) if path in _PATHS else keywords


def _noted(call: RecordedCall, api: Api, keywords: dict[str, Any], result: Any) -> Any:
    """Record ``result``, or have its stream recorded, and return what the host is to receive."""
    if keywords.get("stream"):
        if _raw(keywords):
            _tee_parsed(call, api, result)
        else:
            _tee(call, api, result)
        return result
    response = getattr(result, "http_response", None)
    if response is None:
        return result
    call.answered(response.headers, lambda: read_answer(api, json.loads(response.content)))
    return result if _raw(keywords) else result.parse()


class _Reading:
    """A stream that the host reads. Its answer is recorded once: at its end, its failure, when it is closed, or at the
    end of its trajectory."""

    def __init__(self, call: RecordedCall, api: Api, headers: Mapping[str, str]) -> None:
        self._call = call
        self._api = api
        self._headers = headers
        self._answer = STREAMS[api]()
        self._is_recorded = False
        call.open_streams[self] = None

    def add(self, chunk: Any) -> None:
        with self._call.quietly:
            self._answer.add(chunk)

    def finish(self, **extra: Any) -> None:
        """Record what was read. ``extra``: further fields of the event."""
        if not self._is_recorded:
            self._is_recorded = True
            self._call.open_streams.pop(self, None)
            self._call.answered(self._headers, lambda: read_answer(self._api, self._answer.body()), **extra)

    def cut(self) -> None:
        """Record what was read until the trajectory's end: the host has stopped reading without closing the stream."""
        self.finish(delivered=False)

    def stop(self, error: BaseException) -> None:
        """Record what was read before ``error`` ended the stream."""
        if isinstance(error, GeneratorExit):
            self.finish(delivered=False)
        else:
            self.finish(delivered=False, error=Raised.of(error))


def _tee_parsed(call: RecordedCall, api: Api, response: Any) -> None:
    """Have the stream of a raw response noted, once the host asks for it."""
    parse = getattr(response, "parse", None)
    if inspect.iscoroutinefunction(parse):

        @functools.wraps(parse)
        async def parsed_async(*arguments: Any, **keywords: Any) -> Any:
            stream = await parse(*arguments, **keywords)
            _tee(call, api, stream)
            return stream

        response.parse = parsed_async
    elif parse is not None:

        @functools.wraps(parse)
        def parsed(*arguments: Any, **keywords: Any) -> Any:
            stream = parse(*arguments, **keywords)
            _tee(call, api, stream)
            return stream

        response.parse = parsed


def _tee(call: RecordedCall, api: Api, stream: Any) -> None:
    """Have the chunks of ``stream`` noted when the host reads them; the stream remains the library's own object."""
    if not hasattr(stream, "_iterator") or hasattr(stream.close, "__wrapped__"):
        return  # the host has it parsed as something else, or once more
    with call.quietly:
        reading = _Reading(call, api, stream.response.headers)
        iterator, close = stream._iterator, stream.close
        if hasattr(iterator, "__anext__"):
            stream._iterator, stream.close = _noted_async(reading, iterator), _closed_async(reading, close)
        else:
            stream._iterator, stream.close = _noted_sync(reading, iterator), _closed_sync(reading, close)


def _noted_sync(reading: _Reading, chunks: Any) -> Iterator[Any]:
    try:
        for chunk in chunks:
            reading.add(chunk)
            yield chunk
    except BaseException as error:
        reading.stop(error)
        raise
    else:
        reading.finish()
    finally:
        chunks.close()


async def _noted_async(reading: _Reading, chunks: Any) -> AsyncIterator[Any]:
    try:
        async for chunk in chunks:
            reading.add(chunk)
            yield chunk
    except BaseException as error:
        reading.stop(error)
        raise
    else:
        reading.finish()
    finally:
        await chunks.aclose()


def _closed_sync(reading: _Reading, close: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(close)
    def closed() -> None:
        reading.finish(delivered=False)
        close()

    return closed


def _closed_async(reading: _Reading, close: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    @functools.wraps(close)
    async def closed() -> None:
        reading.finish(delivered=False)
        await close()

    return closed
