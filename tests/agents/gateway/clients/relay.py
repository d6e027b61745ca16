"""A relay in front of a server, which passes bytes on as they come, and keeps what a client sent and what it received.
A server that dies is a connection that breaks.

    async with Relay(gateway.url) as relay:  run_program(program.start(relay.url), …)
    relay.exchanges[0].outcome, relay.exchanges[0].usage
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

_PER_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection", "keep-alive", "server", "date"})


@dataclass(slots=True)
class Exchange:
    """A request and its answer, as far as it was passed on."""

    method: str
    path: str
    request: bytes
    status: int | None = None
    """``None``: the connection broke before an answer began."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer, by lower-case name."""
    body: bytes = b""
    is_whole: bool = False
    """Whether the answer ended in order."""

    @property
    def outcome(self) -> str | None:
        """What the gateway took the request for; ``None`` if it is not a model's answer."""
        return self.headers.get("x-headrace-outcome")

    @property
    def session(self) -> str | None:
        return self.headers.get("x-headrace-session")

    def asked(self) -> dict[str, Any]:
        """The request."""
        body: dict[str, Any] = json.loads(self.request)
        return body

    def events(self) -> list[dict[str, Any]]:
        """The objects of the answer: of a stream all events, else one."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return [json.loads(self.body)]
        data = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(each) for each in data if each != b"[DONE]"]

    def usage(self) -> tuple[int, int] | None:
        """Tokens of prompt and answer, if the client has received the whole of an answer."""
        if self.status != 200 or self.outcome is None or not (self.is_whole or self.has_ended):
            return None
        for event in reversed(self.events()):
            for holder in (event, event.get("response") or {}, event.get("message") or {}):
                usage = holder.get("usage") or {}
                if "prompt_tokens" in usage:
                    return usage["prompt_tokens"], usage["completion_tokens"]
                if "input_tokens" in usage:  # in the Messages API without those that were cached
                    cached = usage.get("cache_read_input_tokens") or 0
                    return usage["input_tokens"] + cached, usage["output_tokens"]
        return None

    @property
    def has_ended(self) -> bool:
        """Whether a stream's terminal event has been passed on."""
        ends = (b"event: message_stop\n", b"event: response.completed\n", b"data: [DONE]\n")
        return any(end in self.body for end in ends)


class Relay:
    """The relay. Use it in an ``async with``."""

    def __init__(self, target: str, *, heard: Callable[[Exchange], None] = lambda exchange: None) -> None:
        """``heard``: called with each piece of an answer, after it was passed on."""
        self.exchanges: list[Exchange] = []
        self.url = ""
        self._target = target
        self._heard = heard
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._client = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        assert self._runner is not None
        await self._runner.cleanup()
        await self._client.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._client is not None
        exchange = Exchange(request.method, request.path_qs, await request.read())
        self.exchanges.append(exchange)
        sent = [(name, value) for name, value in request.headers.items() if name.lower() not in _PER_HOP]
        response: web.StreamResponse = web.Response()
        try:
            async with self._client.request(
                request.method, self._target + request.path_qs, data=exchange.request, headers=sent
            ) as answer:
                exchange.headers = {name.lower(): value for name, value in answer.headers.items()}
                passed = {name: value for name, value in answer.headers.items() if name.lower() not in _PER_HOP}
                response = web.StreamResponse(status=answer.status, headers=passed)
                await response.prepare(request)
                exchange.status = answer.status
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                    exchange.body += piece
                    self._heard(exchange)
                await response.write_eof()
                exchange.is_whole = True
                self._heard(exchange)
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
        return response
