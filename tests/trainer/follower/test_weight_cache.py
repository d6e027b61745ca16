import os
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.weights import Canary, Manifest
from headrace.trainer.follower.weight_cache import (
    UnusableWeights,
    checked_file,
    drop_old,
    fetch_weights,
)
from headrace.trainer.weights.canary import MAX_CANARY_TOKENS
from headrace.trainer.weights.publish import make_manifest, make_pointer, upload
from headrace.trainer.weights.signing import SigningKey


async def published(folder, content="weights"):
    store = ObjectStore(f"file://{folder}/objects")
    file = folder / "made"
    file.write_text(content)
    canary = Canary(token_ids=[1, 2], logprobs=[-1.0])
    manifest = make_manifest(file, run="run", version=3, parent=2, tensors=1, canaries=[canary])
    await upload(store, manifest, file)
    return make_pointer(store, manifest, step=3, key=SigningKey(Ed25519PrivateKey.generate())), store


async def test_a_version_is_fetched_from_its_place_in_the_store(tmp_path):
    local = await fetch_weights(*await published(tmp_path), tmp_path / "cache")
    assert local.file.read_text() == "weights"
    assert local.file.is_relative_to(tmp_path / "cache")
    assert local.file.stem == local.sha256
    assert [list(canary.token_ids) for canary in local.manifest.canaries] == [[1, 2]]


async def test_what_is_on_disk_already_is_used_once_its_hash_was_checked(tmp_path):
    pointer, store = await published(tmp_path)
    first = await fetch_weights(pointer, store, tmp_path / "cache")
    inode = first.file.stat().st_ino
    assert (await fetch_weights(pointer, store, tmp_path / "cache")).file.stat().st_ino == inode
    first.file.write_text("spoilt on disk")
    assert (await fetch_weights(pointer, store, tmp_path / "cache")).file.read_text() == "weights"


async def test_a_delta_is_refused_as_incomplete_weights(tmp_path):
    pointer, store = await published(tmp_path)
    with pytest.raises(UnusableWeights, match="delta"):
        await fetch_weights(pointer.model_copy(update={"kind": "delta"}), store, tmp_path / "cache")


PATH = "weights/run/00000003/model.safetensors"
SHA256 = "0" * 64
CANARY = Canary(token_ids=[1, 2], logprobs=[-1.0])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"files": {}}, "expected one object"),
        ({"files": {PATH: SHA256, "b.safetensors": SHA256}}, "expected one object"),
        ({"files": {"weights/run/00000004/model.safetensors": SHA256}}, "expected one object"),
        (
            {"files": {"../../model.safetensors": SHA256}, "sizes": {"../../model.safetensors": 7}},
            "expected one object",
        ),
        ({"files": {"/etc/model.safetensors": SHA256}}, "expected one object"),
        ({"sizes": {}}, "expected one object"),
        ({"files": {PATH: "../../../tmp/owned"}}, "64 hex digits"),
        ({"files": {PATH: SHA256.upper().replace("0", "A")}}, "64 hex digits"),
        ({"files": {PATH: SHA256 + "\n"}}, "64 hex digits"),
        ({"sizes": {PATH: 2**62}}, "bytes"),
        ({"sizes": {PATH: -1}}, "bytes"),
        ({"sizes": {PATH: 8}}, "bytes"),
        ({"canaries": []}, "canaries"),
        ({"canaries": [Canary(token_ids=[1] * (MAX_CANARY_TOKENS + 1), logprobs=[])]}, "canaries"),
        ({"canaries": [Canary(token_ids=[1, 2, 3], logprobs=[-1.0])]}, "canary 0"),
        ({"canaries": [CANARY, Canary(token_ids=[1, -2], logprobs=[-1.0])]}, "canary 1"),
        ({"canaries": [Canary(token_ids=[1], logprobs=[])]}, "canary 0"),
        ({"canaries": [CANARY.model_copy(update={"parent_logprobs": [-1.0, -2.0]})]}, "canary 0"),
    ],
)
async def test_a_manifest_out_of_bounds_is_refused_before_anything_is_fetched(tmp_path, changed, problem):
    pointer, _ = await published(tmp_path)
    manifest = Manifest(
        run="run", version=3, parent=2, files={PATH: SHA256}, sizes={PATH: 7}, tensors=1, canaries=[CANARY]
    )
    assert checked_file(manifest, pointer) == (PATH, SHA256)
    with pytest.raises(UnusableWeights, match=problem):
        checked_file(manifest.model_copy(update=changed), pointer)


def test_old_files_are_deleted_and_needed_ones_kept(tmp_path):
    files = [tmp_path / f"{number}.safetensors" for number in range(5)]
    for age, file in enumerate(files):
        file.touch()
        os.utime(file, (time.time() - age, time.time() - age))
    drop_old(tmp_path, 2, needed=[files[4]])
    assert sorted(tmp_path.iterdir()) == [files[0], files[1], files[4]]


def test_remains_of_a_killed_download_are_deleted_once_they_are_old(tmp_path):
    old, fresh = tmp_path / ".x.safetensors.1.partial", tmp_path / ".y.safetensors.2.partial"
    for file in (old, fresh):
        file.touch()
    os.utime(old, (0, 0))
    drop_old(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [fresh]
