"""What the servers log of a client that does not speak HTTP."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.agents.server_log import SERVER_LOG
from tests.agents.gateway.running import running_gateway
from tests.agents.gateway.scripted_engine import answering
from tests.agents.otel.test_receiver import receiving

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
REFUSED = [
    HEAD + b"Authorization: Bearer sk-4711\x01\r\n\r\n",
    HEAD + b"Authorization : Bearer sk-4711\r\n\r\n",
    HEAD + b"Authorization: Bearer sk-4711" + b"x" * 10_000 + b"\r\n\r\n",
    b"POST /feedback/fb_4711\x01 HTTP/1.1\r\n\r\n",
]


async def answered(url: str, data: bytes) -> bytes:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


@pytest.mark.parametrize("data", REFUSED)
async def test_no_key_in_a_request_that_cannot_be_parsed_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    async with (
        answering("fine") as engine,
        running_gateway(tmp_path / "gateway", [engine.url]) as gateway,
        receiving(tmp_path / "receiver") as receiver,
    ):
        for url in (gateway.url, receiver):
            assert b"400 Bad Request" in await answered(url, data)
    assert "4711" not in caplog.text


def test_a_servers_own_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        SERVER_LOG.exception("Unhandled exception")
    SERVER_LOG.error("another")
    assert "ValueError: a bug" in caplog.text
    assert "another" in caplog.text
