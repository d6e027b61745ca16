"""The object store on an S3 server behaves as on a folder."""

import asyncio
import hashlib
import os
import re

import pytest

from headrace.schemas.objects.store import ObjectConflict, ObjectMismatch, ObjectStore
from headrace.schemas.objects.unavailable import StoreUnavailable
from tests.s3proxy.server import BUCKET, SECRET

pytestmark = pytest.mark.s3

REQUEST_BYTES = 5 * 1024**2
"""The smallest part that S3 takes, other than the last."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def store(s3, request):
    return ObjectStore(s3.url(request.node.name), request_bytes=REQUEST_BYTES)


@pytest.fixture
def stored(s3, request):
    """The file that holds the object of a path, on the server's disk."""
    return lambda path: s3.objects / BUCKET / request.node.name / path


SMALL = b"small"
LARGE = os.urandom(2 * REQUEST_BYTES + 12_345)
"""Three parts."""


@pytest.mark.parametrize("data", [b"", SMALL, LARGE], ids=["empty", "one request", "three parts"])
async def test_an_object_is_created_once_and_comes_back_verified(store, tmp_path, data):
    await store.create("a/b", data)
    await store.create("a/b", data)
    assert await store.fetch("a/b", sha256=sha256(data)) == data
    await store.download("a/b", tmp_path / "to" / "file", sha256=sha256(data), size=len(data))
    assert (tmp_path / "to" / "file").read_bytes() == data
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["file"]


@pytest.mark.parametrize("first", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("second", [b"other", LARGE[::-1]], ids=["small", "large"])
async def test_an_object_is_never_replaced_by_another(store, tmp_path, first, second):
    file = tmp_path / "file"
    file.write_bytes(second)
    await store.create("a", first)
    for other in (second, file):
        with pytest.raises(ObjectConflict, match="choose another run"):
            await store.create("a", other)
    assert await store.fetch("a", sha256=sha256(first)) == first


@pytest.mark.parametrize("size", [1000, REQUEST_BYTES + 1], ids=["one request", "two parts"])
async def test_of_racing_writers_exactly_one_wins(store, size):
    contents = [os.urandom(size) for _ in range(4)]

    async def write(data):
        try:
            await store.create("a", data)
        except ObjectConflict:
            return None
        return data

    winners = [data for data in await asyncio.gather(*map(write, contents)) if data]
    assert len(winners) == 1
    assert await store.fetch("a", sha256=sha256(winners[0])) == winners[0]


async def test_writers_of_the_same_content_all_succeed(store):
    await asyncio.gather(*(store.create("a", LARGE) for _ in range(3)))
    assert await store.fetch("a", sha256=sha256(LARGE)) == LARGE


async def test_a_claim_is_what_sha256sum_checks(store, stored, tmp_path):
    await store.create("model.safetensors", LARGE)
    (tmp_path / "model.safetensors").write_bytes(LARGE)
    claim = await store.fetch(
        "model.safetensors.sha256", sha256=sha256(stored("model.safetensors.sha256").read_bytes())
    )
    checked = await asyncio.create_subprocess_exec(
        "sha256sum", "-c", cwd=tmp_path, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await checked.communicate(claim)
    assert said == b"model.safetensors: OK\n"


async def test_an_interrupted_upload_is_completed_by_any_writer_of_the_claimed_content(store, stored):
    await store.create("a", LARGE)
    stored("a").unlink()  # as if the writer had died after its claim
    with pytest.raises(ObjectConflict):
        await store.create("a", LARGE[::-1])
    await store.create("a", LARGE)
    assert await store.fetch("a", sha256=sha256(LARGE)) == LARGE


async def test_a_server_failure_during_an_upload_is_an_outage_and_a_retry_succeeds(s3, store, stored):
    data = LARGE * 4
    writing = asyncio.create_task(store.create("a", data))
    while not stored("a.sha256").exists():  # noqa: ASYNC110  the server tells nobody
        await asyncio.sleep(0.001)
    s3.kill()
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        await writing
    s3.start()
    await s3.until_serves()
    await store.create("a", data)
    assert await store.fetch("a", sha256=sha256(data)) == data


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["one request", "three parts"])
async def test_a_changed_object_is_refused(store, stored, tmp_path, data):
    await store.create("a", data)
    with stored("a").open("r+b") as file:
        file.seek(len(data) - 1)
        file.write(bytes([data[-1] ^ 1]))
    with pytest.raises(ObjectMismatch, match="sha256"):
        await store.fetch("a", sha256=sha256(data))
    with pytest.raises(ObjectMismatch, match="sha256"):
        await store.download("a", tmp_path / "download", sha256=sha256(data), size=len(data))
    assert list(tmp_path.iterdir()) == []


async def test_a_download_of_another_size_is_refused_before_it_is_read(store, tmp_path):
    await store.create("a", b"12345")
    with pytest.raises(ObjectMismatch, match="5 bytes, not 4"):
        await store.download("a", tmp_path / "x", sha256=sha256(b"12345"), size=4)
    with pytest.raises(ObjectMismatch, match="more than the expected 4"):
        await store.fetch("a", sha256=sha256(b"12345"), max_bytes=4)


async def test_a_missing_object_is_not_an_outage(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        await store.fetch("nowhere", sha256="0" * 64)
    with pytest.raises(FileNotFoundError):
        await store.download("nowhere", tmp_path / "x", sha256="0" * 64, size=1)


async def attempts(store, tmp_path):
    """Returns each method's error for an unusable store."""
    await asyncio.sleep(0)
    for attempt in (
        lambda: store.create("a", SMALL),
        lambda: store.create("a", LARGE),
        lambda: store.fetch("a", sha256="0" * 64),
        lambda: store.download("a", tmp_path / "x", sha256="0" * 64, size=1),
    ):
        with pytest.raises(StoreUnavailable) as raised:
            await attempt()
        yield str(raised.value)


async def test_a_missing_bucket_is_an_outage_that_names_the_setting(s3, tmp_path):
    async for said in attempts(ObjectStore("s3://nobodys/prefix", request_bytes=REQUEST_BYTES), tmp_path):
        assert said.startswith("store_url s3://nobodys/prefix cannot be used")
        assert "NoSuchBucket" in said
        assert said.endswith("create the bucket, or set store_url to an existing one")


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
async def test_wrong_credentials_are_an_outage_that_names_the_variables(s3, monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, "wrong")
    async for said in attempts(ObjectStore(s3.url("x"), request_bytes=REQUEST_BYTES), tmp_path):
        assert said.startswith(f"store_url {s3.url('x')} cannot be used")
        assert "403" in said
        assert re.search("set the credentials in .*AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY", said)
        assert len(said) < 1000
        assert SECRET not in said


async def test_objects_that_carry_their_own_checks_are_created_once_listed_and_read(s3, request):
    store = ObjectStore(s3.url(request.node.name))
    await store.create_if_absent("archive/topic=events/partition=1/1.parquet", b"first")
    assert not await store.create_if_absent("archive/topic=events/partition=1/1.parquet", b"second")
    await store.create_if_absent("archive/topic=events/partition=10/1.parquet", b"other")
    assert await store.below("archive/topic=events/partition=1") == {"archive/topic=events/partition=1/1.parquet": 5}
    assert await store.below("nothing") == {}
    assert await store.read("archive/topic=events/partition=1/1.parquet", max_bytes=5) == b"first"
    assert await store.read_end("archive/topic=events/partition=1/1.parquet", 5, 2) == b"st"
    with pytest.raises(ObjectMismatch, match="holds 5 bytes, more than the expected 4"):
        await store.read("archive/topic=events/partition=1/1.parquet", max_bytes=4)
