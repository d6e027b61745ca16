"""The HTTP client of engines, against a server that sends given bytes in given pieces."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.agents.gateway import engine_http
from headrace.agents.gateway.engine_http import ConnectionBroke, EngineHttp, Response
from tests.agents.gateway.scripted_engine import until

BODY = b'data: {"choices":[]}\n\n' * 3
CHUNKED = b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (BODY[:7], BODY[7:])
)
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY
FORMS = {
    "chunked": CHUNKED + b"0\r\n\r\n",
    "with trailers": CHUNKED + b"0\r\nX-Time: 7\r\n\r\n",
    "whole": WHOLE,
    "until closed": UNTIL_CLOSED,
    "after an interim one": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE,
}


@dataclass
class Server:
    """Answers each request with the next of ``answers``; ``None`` closes the connection."""

    answers: Sequence[Sequence[bytes | None]]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    open: int = 0
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers[(len(self.requests) - 1) % len(self.answers)]:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def http_to(
    *answers: Sequence[bytes | None], read_timeout_s: float = 30
) -> AsyncIterator[tuple[EngineHttp, Server]]:
    server = Server(answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    async with EngineHttp(f"{server.url}/engine", {"X-Key": "k"}, read_timeout_s=read_timeout_s) as http:
        yield http, server
    listening.close()
    await until(lambda: not server.open)


async def body_of(response: Response) -> bytes:
    parts = []
    while part := await response.read():
        parts.append(part)
    return b"".join(parts)


async def poured(response: Response, refuses_every: int) -> bytes:
    parts: list[bytes] = []

    def receive(data: bytes) -> bool:
        parts.append(data)
        return len(parts) % refuses_every > 0

    has_ended = False
    while not has_ended:
        has_ended = await response.pour(receive)
        await asyncio.sleep(0)
    return b"".join(parts)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(FORMS)), st.lists(st.integers(1, 60), max_size=30), st.sampled_from([None, 1, 2]))
def test_a_response_is_the_same_however_the_network_cuts_it(
    form: str, cuts: list[int], refuses_every: int | None
) -> None:
    """It is read part by part, or poured, in the latter case to one who refuses now and then."""
    data, pieces = FORMS[form], []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]

    async def read() -> None:
        async with http_to([*filter(None, (*pieces, data)), *([None] if form == "until closed" else [])]) as (
            http,
            _,
        ):
            response = await http.request("POST", "/render", b"{}")
            body = await (body_of(response) if refuses_every is None else poured(response, refuses_every))
            assert (response.status, body, response.is_complete) == (200, BODY, True)
            assert "link" not in response.headers
            assert (await response.read()) == b""

    asyncio.run(read())


async def test_a_request_has_path_headers_and_body() -> None:
    async with http_to([WHOLE]) as (http, server):
        await body_of(await http.request("POST", "/v1/render", b"[1]"))
        address = server.url.removeprefix("http://")
    expected = (
        f"POST /engine/v1/render HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\nX-Key: k\r\nContent-Length: 3\r\n\r\n[1]"
    )
    assert server.requests == [expected.encode()]


async def test_a_connection_is_used_again_unless_something_is_left_on_it() -> None:
    extra = WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
    async with http_to([WHOLE], [CHUNKED, b"0\r\n\r\n"], [extra], [UNTIL_CLOSED, None]) as (http, server):
        for number, connections in enumerate((1, 1, 1, 2, 3)):
            response = await http.request("GET", "/", None)
            assert await body_of(response) == BODY, number
            assert server.connections == connections, number


async def test_a_late_second_response_ends_the_connection() -> None:
    async with http_to([WHOLE, WHOLE]) as (http, server):
        assert await body_of(await http.request("GET", "/", None)) == BODY
        await until(lambda: not server.open)
        assert await body_of(await http.request("GET", "/", None)) == BODY
        assert server.connections == 2


async def test_an_unused_connection_is_closed_before_the_server_does() -> None:
    async with http_to([WHOLE]) as (http, server):
        await body_of(await http.request("GET", "/", None))
        with patch.object(engine_http, "IDLE_S", 0.0):
            await asyncio.sleep(0.01)
            await body_of(await http.request("GET", "/", None))
        assert server.connections == 2
        await until(lambda: server.open == 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([None], "was closed"),
        ([b"HTTP/1.1 200"], "nothing arrived"),
        ([b"SSH-2.0-x\r\n\r\n"], "not HTTP"),
        (
            [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
            "not HTTP|nothing arrived",
        ),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000], "more than 65,536 bytes"),
        ([CHUNKED, b"zz\r\n"], "not HTTP"),
        ([CHUNKED, None], "was closed"),
        ([WHOLE[:-1], None], "was closed"),
        ([CHUNKED], "nothing arrived for 0.2 s"),
    ],
)
async def test_a_response_that_does_not_arrive_is_an_error(answer: list[bytes | None], message: str) -> None:
    async with http_to(answer, read_timeout_s=0.2) as (http, server):
        with pytest.raises(OSError, match=message) as caught:
            await body_of(await http.request("GET", "/", None))
        assert isinstance(caught.value, ConnectionBroke | TimeoutError)
        await until(lambda: not server.open)


async def test_what_arrived_before_an_error_is_read_first() -> None:
    async with http_to([CHUNKED, None]) as (http, _):
        response = await http.request("GET", "/", None)
        read = b""
        while len(read) < len(BODY):
            read += await response.read()
        assert read == BODY
        with pytest.raises(ConnectionBroke):
            await response.read()


async def test_closing_early_closes_the_connection() -> None:
    async with http_to([CHUNKED]) as (http, server):
        response = await http.request("GET", "/", None)
        response.close()
        await until(lambda: not server.open)
        with pytest.raises(ConnectionBroke, match="given up"):
            await body_of(response)


async def test_a_reader_that_is_slow_makes_the_server_wait_and_is_not_timed_out() -> None:
    piece = b"x" * 65_536
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (400 * len(piece)))
        for _ in range(400):
            writer.write(piece)
            await writer.drain()
            sent += 1
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with EngineHttp(url, {}, read_timeout_s=0.2) as http:
            response = await http.request("GET", "/", None)
            await asyncio.sleep(0.6)
            assert sent < 400  # the sockets' own buffers are full
            assert len(await body_of(response)) == 400 * len(piece)


async def test_an_address_may_have_a_user() -> None:
    async with (
        http_to([WHOLE]) as (_, server),
        EngineHttp(server.url.replace("//", "//user:p%20w@"), {}, read_timeout_s=1) as http,
    ):
        await body_of(await http.request("GET", "/", None))
    assert b"Authorization: Basic " + base64.b64encode(b"user:p w") in server.requests[0]
    assert b"user" not in server.requests[0]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|[Pp]ort"):
        EngineHttp(url, {}, read_timeout_s=1)


def test_a_key_with_a_line_end_is_refused() -> None:
    with pytest.raises(ValueError, match="does not allow"):
        EngineHttp("http://host", {"Authorization": "Bearer a\r\nX: y"}, read_timeout_s=1)


async def test_a_connection_that_is_closed_without_a_word_is_replaced() -> None:
    async with http_to([WHOLE, None]) as (http, server):
        for _ in range(6):
            assert await body_of(await http.request("POST", "/render", b"{}", is_repeatable=True)) == BODY
        assert (len(server.requests), server.connections) == (6, 6)


async def test_a_request_that_is_not_repeatable_is_sent_once() -> None:
    async with http_to([WHOLE], [None]) as (http, server):
        await body_of(await http.request("POST", "/generate", b"{}"))
        with pytest.raises(ConnectionBroke):
            await http.request("POST", "/generate", b"{}")
        assert (len(server.requests), server.connections) == (2, 1)


async def test_a_new_connection_that_is_closed_without_a_word_is_an_error() -> None:
    async with http_to([None]) as (http, server):
        with pytest.raises(ConnectionBroke):
            await http.request("POST", "/render", b"{}")
        assert server.connections == 1


async def test_a_used_connection_that_breaks_after_a_part_of_the_answer_is_an_error() -> None:
    async with http_to([WHOLE], [WHOLE[:9], None]) as (http, server):
        await body_of(await http.request("POST", "/render", b"{}"))
        with pytest.raises(ConnectionBroke):
            await http.request("POST", "/render", b"{}", is_repeatable=True)
        assert (len(server.requests), server.connections) == (2, 1)


async def test_endless_trailers_end_the_connection() -> None:
    async with http_to([CHUNKED + b"0\r\n", *[b"X-I: %b\r\n" % (b"v" * 1_000)] * 200]) as (http, _):
        response = await http.request("POST", "/render", b"{}")
        with pytest.raises(ConnectionBroke, match="not HTTP"):
            await body_of(response)
        assert "x-i" not in response.headers


async def test_closing_ends_the_responses_in_progress() -> None:
    async with http_to([CHUNKED]) as (http, _):
        response = await http.request("POST", "/render", b"{}")
        reading = asyncio.create_task(body_of(response))
        await asyncio.sleep(0)
        await http.close()
        with pytest.raises(ConnectionBroke):
            await asyncio.wait_for(reading, 5)


async def test_a_connection_with_unsent_bytes_is_not_used_again() -> None:
    early = asyncio.Event()

    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await early.wait()
        writer.close()

    listening = await asyncio.start_server(answer_early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with EngineHttp(url, {}, read_timeout_s=30) as http:
        for _ in range(2):
            response = await http.request("POST", "/render", b"x" * 30_000_000)
            assert (response.status, await body_of(response)) == (413, b"")
        early.set()
    listening.close()
