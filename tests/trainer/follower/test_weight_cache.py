import os
import time

import pytest

from headrace.schemas.records.weights import Canary, Manifest, Weights
from headrace.trainer.follower.weight_cache import UnusableWeights, drop_old, fetch_weights, single_file, store_of
from headrace.trainer.weights.publish import make_manifest, make_pointer, upload
from headrace.trainer.weights.store import ObjectStore


async def published(folder, content="weights"):
    store = ObjectStore(f"file://{folder}/objects")
    file = folder / "made"
    file.write_text(content)
    canary = Canary(token_ids=[1, 2], logprobs=[-1.0])
    manifest = make_manifest(file, run="a run/with a slash", version=3, parent=2, tensors=1, canaries=[canary])
    await upload(store, manifest, file)
    return make_pointer(store, manifest, step=3)


async def test_a_version_is_fetched_from_where_its_record_points(tmp_path):
    local = await fetch_weights(await published(tmp_path), tmp_path / "cache")
    assert local.file.read_text() == "weights"
    assert local.file.is_relative_to(tmp_path / "cache")
    assert local.file.stem == local.sha256
    assert [list(canary.token_ids) for canary in local.canaries] == [[1, 2]]


async def test_what_is_on_disk_already_is_used_once_its_hash_was_checked(tmp_path):
    pointer = await published(tmp_path)
    first = await fetch_weights(pointer, tmp_path / "cache")
    inode = first.file.stat().st_ino
    assert (await fetch_weights(pointer, tmp_path / "cache")).file.stat().st_ino == inode
    first.file.write_text("spoilt on disk")
    assert (await fetch_weights(pointer, tmp_path / "cache")).file.read_text() == "weights"


async def test_a_delta_is_not_taken_for_complete_weights(tmp_path):
    pointer = await published(tmp_path)
    with pytest.raises(UnusableWeights, match="delta"):
        await fetch_weights(pointer.model_copy(update={"kind": "delta"}), tmp_path / "cache")


@pytest.mark.parametrize("files", [{}, {"a.bin": "0"}, {"a.safetensors": "0", "b.safetensors": "1"}])
def test_a_manifest_must_name_exactly_one_safetensors_object(files):
    manifest = Manifest(
        run="r", version=1, parent=0, files=files, sizes=dict.fromkeys(files, 1), tensors=1, canaries=[]
    )
    with pytest.raises(UnusableWeights, match="safetensors"):
        single_file(manifest)


def test_an_address_of_another_form_is_refused():
    pointer = Weights(
        run="r", version=1, parent=0, kind="anchor", manifest_uri="file:///etc/passwd", sha256="0", size=1, step=1
    )
    with pytest.raises(UnusableWeights, match="/etc/passwd"):
        store_of(pointer)


def test_old_files_go_and_needed_ones_stay(tmp_path):
    files = [tmp_path / f"{number}.safetensors" for number in range(5)]
    for age, file in enumerate(files):
        file.touch()
        os.utime(file, (time.time() - age, time.time() - age))
    drop_old(tmp_path, 2, needed=[files[4]])
    assert sorted(tmp_path.iterdir()) == [files[0], files[1], files[4]]


def test_a_killed_downloads_leavings_go_once_they_are_surely_nobodys(tmp_path):
    old, fresh = tmp_path / ".x.safetensors.1.partial", tmp_path / ".y.safetensors.2.partial"
    for file in (old, fresh):
        file.touch()
    os.utime(old, (0, 0))
    drop_old(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [fresh]
