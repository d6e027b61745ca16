import asyncio
from contextlib import asynccontextmanager

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.objects.unavailable import StoreUnavailable, StoreUnsuitable, unavailable


@pytest.mark.parametrize(
    ("url", "error", "remedy"),
    [
        ("file:///data", GenericError("No space left on device"), "has free space"),
        ("s3://b/p", FileNotFoundError("<Code>NoSuchBucket</Code>"), "create the bucket"),
        ("az://c/p", FileNotFoundError("<Code>ContainerNotFound</Code>"), "create the bucket"),
        ("s3://b/p", PermissionDeniedError("403 Forbidden"), "set the credentials in AWS_ACCESS_KEY_ID"),
        ("gs://b/p", PermissionDeniedError("403 Forbidden"), "set the credentials in GOOGLE_SERVICE_ACCOUNT"),
        ("s3://b/p", GenericError("error sending request"), "AWS_ENDPOINT_URL"),
        ("az://c/p", GenericError("error sending request"), "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_a_stores_error_names_the_setting_and_the_remedy(url, error, remedy):
    said = str(unavailable(url, error))
    assert said.startswith(f"store_url {url} cannot be used: {error}; ")
    assert remedy in said


def test_a_stores_message_is_truncated():
    said = str(unavailable("s3://b/p", GenericError("x" * 10_000 + "\n\nDebug source: y")))
    assert len(said) < 1000
    assert "Debug source" not in str(unavailable("s3://b/p", GenericError("down\n\nDebug source:\nGeneric {}")))


@pytest.fixture
def s3_at(monkeypatch):
    """Lead object stores to an address."""

    def _s3_at(host, port):
        known = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}
        for name, value in (known | {"ENDPOINT_URL": f"http://{host}:{port}"}).items():
            monkeypatch.setenv(f"AWS_{name}", value)

    return _s3_at


async def test_an_s3_without_a_server_is_unavailable(s3_at, tmp_path):
    s3_at("127.0.0.1", 9)
    store = ObjectStore("s3://bucket/prefix")
    for attempt in (
        store.create("a", b"x"),
        store.fetch("a", sha256="0"),
        store.download("a", tmp_path / "a", sha256="0", size=1),
    ):
        with pytest.raises(StoreUnavailable, match=r"store_url s3://bucket/prefix cannot .* error sending request"):
            await attempt


def test_a_store_whose_settings_are_missing_is_not_a_wrong_url(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreUnavailable, match="AZURE_STORAGE_ACCOUNT_NAME"):
        ObjectStore("az://container/prefix")


@asynccontextmanager
async def overlooking():
    """The address of a server that accepts every request, ignoring conditions."""

    async def answer(reader, writer):
        while b"\r\n" in (line := await reader.readline()):
            if line == b"\r\n":
                await reader.readexactly(1)
                writer.write(b'HTTP/1.1 200 OK\r\nETag: "0"\r\nContent-Length: 0\r\n\r\n')
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


async def test_a_service_that_ignores_the_condition_is_detected_before_it_overwrites_anything(s3_at):
    async with overlooking() as address:
        s3_at(*address)
        with pytest.raises(StoreUnsuitable, match="store_url s3://bucket/prefix overwrites existing objects"):
            await ObjectStore("s3://bucket/prefix").create("a", b"x")
