import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.schemas.objects.store import (
    MAX_OBJECT_BYTES,
    REQUEST_BYTES,
    ObjectConflict,
    ObjectMismatch,
    ObjectStore,
)
from headrace.schemas.records.weights import Canary
from headrace.trainer.weights.canary import make_prompts, max_error
from headrace.trainer.weights.publish import make_manifest, make_pointer, manifest_bytes, tokenizer_in, upload
from headrace.trainer.weights.published import MAX_TOKENIZER_BYTES, fetch_manifest, fetch_tokenizer
from headrace.trainer.weights.signing import SigningKey

KEY = SigningKey(Ed25519PrivateKey.generate())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def store(tmp_path):
    return ObjectStore(f"file://{tmp_path}/objects")


async def test_an_object_is_fetched_and_verified(store):
    await store.create("a/b", b"weights")
    assert await store.fetch("a/b", sha256=sha256(b"weights")) == b"weights"


async def test_creating_the_same_object_again_changes_nothing(store):
    await store.create("a", b"same")
    await store.create("a", b"same")
    assert await store.fetch("a", sha256=sha256(b"same")) == b"same"


async def test_an_object_is_never_replaced_by_another(store, tmp_path):
    await store.create("a", b"first")
    with pytest.raises(ObjectConflict, match="another run"):
        await store.create("a", b"second")
    (tmp_path / "file").write_bytes(b"third")
    with pytest.raises(ObjectConflict):
        await store.create("a", tmp_path / "file")
    assert await store.fetch("a", sha256=sha256(b"first")) == b"first"


async def test_a_changed_object_is_refused(store, tmp_path):
    await store.create("a", b"good")
    (tmp_path / "objects" / "a").write_bytes(b"evil")
    with pytest.raises(ObjectMismatch, match="sha256"):
        await store.fetch("a", sha256=sha256(b"good"))
    target = tmp_path / "download"
    with pytest.raises(ObjectMismatch, match="sha256"):
        await store.download("a", target, sha256=sha256(b"good"), size=4)
    assert list(tmp_path.glob("*download*")) == []


async def test_a_download_of_another_size_is_refused_before_it_is_read(store, tmp_path):
    await store.create("a", b"12345")
    with pytest.raises(ObjectMismatch, match="5 bytes, not 4"):
        await store.download("a", tmp_path / "x", sha256=sha256(b"12345"), size=4)
    with pytest.raises(ObjectMismatch, match="more than the expected 4"):
        await store.fetch("a", sha256=sha256(b"12345"), max_bytes=4)


async def test_a_download_is_atomic(store, tmp_path):
    data = bytes(range(256)) * 100_000
    await store.create("big", data)
    await store.download("big", tmp_path / "to" / "file", sha256=sha256(data), size=len(data))
    assert (tmp_path / "to" / "file").read_bytes() == data
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["file"]


async def test_a_missing_object_is_named(store):
    with pytest.raises(FileNotFoundError):
        await store.fetch("nowhere", sha256="0" * 64)


@pytest.mark.parametrize("url", ["data/objects", "ftp://host/objects", "s3://", "s3:///objects", "memory:///"])
def test_a_store_url_of_another_form_is_refused(url):
    with pytest.raises(ValueError, match=f"store_url '{url}' has none of these forms"):
        ObjectStore(url)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 8, 9, 1000])
async def test_only_objects_larger_than_a_request_are_claimed(tmp_path, size):
    store = ObjectStore(f"file://{tmp_path}/objects", request_bytes=4)
    data = bytes(range(256))[:size] * 5
    data = data[:size]
    await store.create("a", data)
    await store.create("a", data)
    assert (tmp_path / "objects" / "a.sha256").exists() == (size > 4)
    await store.download("a", tmp_path / "copy", sha256=sha256(data), size=size)
    assert (tmp_path / "copy").read_bytes() == data
    with pytest.raises(ObjectConflict):
        await store.create("a", data + b"more")


async def test_other_content_of_a_claimed_object_is_never_sent(tmp_path):
    store = ObjectStore(f"file://{tmp_path}/objects", request_bytes=4)
    await store.create("a", b"claimed")
    (tmp_path / "objects" / "a").unlink()
    with pytest.raises(ObjectConflict, match=r"/a\.sha256 exists"):
        await store.create("a", b"another")
    assert not (tmp_path / "objects" / "a").exists()


async def test_an_existing_object_without_a_claim_is_not_replaced(tmp_path):
    await ObjectStore(f"file://{tmp_path}/objects").create("a", b"from before")
    store = ObjectStore(f"file://{tmp_path}/objects", request_bytes=4)
    with pytest.raises(ObjectConflict, match="choose another run"):
        await store.create("a", b"another")
    assert (tmp_path / "objects" / "a").read_bytes() == b"from before"


def test_parts_of_the_largest_object_are_within_what_s3_takes():
    assert 5 * 1024**2 <= REQUEST_BYTES <= 5 * 1024**3
    assert MAX_OBJECT_BYTES / REQUEST_BYTES <= 10_000


async def test_an_object_beyond_the_largest_is_refused_before_anything_is_written(store, tmp_path):
    file = tmp_path / "sparse"
    with file.open("wb") as sparse:
        sparse.truncate(MAX_OBJECT_BYTES + 1)
    with pytest.raises(ValueError, match="more than"):
        await store.create("a", file)
    assert list((tmp_path / "objects").iterdir()) == []


async def test_a_version_is_published_and_found_again(store, tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"tensor bytes")
    canary = Canary(token_ids=[1, 2, 3], logprobs=[-1.0, -2.0])
    manifest = make_manifest(weights, run="r", version=3, parent=2, tensors=1, canaries=[canary])
    pointer = make_pointer(store, manifest, step=3, key=KEY)
    await upload(store, manifest, weights)
    await upload(store, manifest, weights)

    assert pointer.manifest_uri.endswith("/objects/weights/r/00000003/manifest.json")
    assert await fetch_manifest(store, pointer) == manifest
    ((path, digest),) = manifest.files.items()
    await store.download(path, tmp_path / "copy", sha256=digest, size=manifest.sizes[path])
    assert (tmp_path / "copy").read_bytes() == b"tensor bytes"


async def test_versions_share_one_published_tokenizer(store, tmp_path):
    (tmp_path / "model").mkdir()
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(b"x")
    assert tokenizer_in(weights.parent, "tiny") is None
    (weights.parent / "tokenizer.json").write_text('{"model": {}}')
    described = tokenizer_in(weights.parent, "tiny")
    for version in (3, 4):
        made = make_manifest(weights, run="r", version=version, parent=2, tensors=1, canaries=[], tokenizer=described)
        await upload(store, made, weights)
    manifest = await fetch_manifest(store, make_pointer(store, made, step=4, key=KEY))
    assert (manifest.tokenizer.name, manifest.tokenizer.size) == ("tiny", 13)
    assert await fetch_tokenizer(store, manifest.tokenizer) == b'{"model": {}}'
    with (weights.parent / "tokenizer.json").open("wb") as sparse:
        sparse.truncate(MAX_TOKENIZER_BYTES + 1)
    assert tokenizer_in(weights.parent, "tiny") is None


async def test_a_manifest_of_another_version_is_refused(store, tmp_path):
    weights = tmp_path / "w"
    weights.write_bytes(b"x")
    manifest = make_manifest(weights, run="r", version=3, parent=2, tensors=1, canaries=[])
    await upload(store, manifest, weights)
    pointer = make_pointer(store, manifest, step=3, key=KEY)
    with pytest.raises(ValueError, match="parent 2, not of 'r' version 3 parent None"):
        await fetch_manifest(store, pointer.model_copy(update={"parent": None}))
    await store.create("weights/r/00000004/manifest.json", manifest_bytes(manifest))
    with pytest.raises(ValueError, match="version 3"):
        await fetch_manifest(store, pointer.model_copy(update={"version": 4}))
    with pytest.raises(FileNotFoundError):
        await fetch_manifest(store, pointer.model_copy(update={"version": 5}))


def test_canary_prompts_are_the_same_for_a_seed_and_stay_in_the_vocabulary():
    prompts = make_prompts(50, seed=7)
    assert prompts == make_prompts(50, seed=7)
    assert prompts != make_prompts(50, seed=8)
    assert [len(prompt) for prompt in prompts] == [32] * 4
    assert all(0 <= token < 50 for prompt in prompts for token in prompt)


def test_the_canary_error_is_the_largest_difference():
    canaries = [Canary(token_ids=[1, 2, 3], logprobs=[-1.0, -2.0]), Canary(token_ids=[4, 5], logprobs=[-3.0])]
    assert max_error(canaries, [[-1.0, -2.0], [-3.0]]) == 0.0
    assert max_error(canaries, [[-1.5, -2.0], [-2.0]]) == 1.0


def test_a_missing_comparison_is_an_infinite_error():
    canary = Canary(token_ids=[1, 2], logprobs=[-1.0])
    assert max_error([], []) == float("inf")
    assert max_error([canary], [[float("nan")]]) == float("inf")
    with pytest.raises(ValueError, match="expected 1"):
        max_error([canary], [[-1.0, -2.0]])
