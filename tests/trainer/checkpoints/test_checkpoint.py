import errno
import os
import subprocess
import sys

import pytest
import torch

from headrace.schemas.records.weights import Weights
from headrace.trainer.announcements.announcement import announcement
from headrace.trainer.checkpoints.checkpoint import (
    CheckpointError,
    CheckpointNotWritten,
    CheckpointState,
    CheckpointWriter,
    exclusive,
    load_newest,
)
from headrace.trainer.learning.optimizer_state import read_state, write_state
from headrace.trainer.model.load import load_model, save_model
from headrace.trainer.parallel.ranks import ALONE
from headrace.trainer.weights.publish import make_manifest, manifest_bytes


@pytest.fixture(scope="module")
def model(base):
    return load_model(base)


@pytest.fixture
def save(model, base, tmp_path):
    def _save(version, *, run="run", keep=2):
        writer = CheckpointWriter(tmp_path, version)
        save_model(model, writer.partial / "model", tokenizer_from=base)
        weights = writer.partial / "model" / "model.safetensors"
        manifest = make_manifest(weights, run=run, version=version, parent=None, tensors=1, canaries=[])
        (writer.partial / "manifest.json").write_bytes(manifest_bytes(manifest))
        pointer = Weights(run=run, version=version, parent=None, kind="anchor", manifest_uri="file:///m",
                          sha256="0" * 64, size=1, step=version)  # fmt: skip
        state = CheckpointState(
            run=run, version=version, offsets={0: 10 * version}, announcements=[announcement(pointer, run=run)]
        )
        optimizer = {"rng": torch.get_rng_state(), "step/w": torch.tensor(float(version))}
        write_state(optimizer, writer.partial / "optimizer", ALONE)
        return writer.commit(state, keep=keep)

    return _save


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_a_checkpoint_is_read_back_completely(save, tmp_path, model):
    save(7)
    found = load_newest(tmp_path, "run")
    assert (found.state.version, found.state.offsets) == (7, {0: 70})
    assert read_state(found.optimizer_dir, {})["step/w"].item() == 7.0
    assert found.manifest().version == 7
    again = load_model(found.model_dir)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_an_announcement_has_the_same_bytes_after_a_restart(save, tmp_path):
    before = [each.message() for each in save(1).state.announcements]
    assert [each.message() for each in load_newest(tmp_path, "run").state.announcements] == before


def test_no_checkpoint_is_not_an_error(tmp_path):
    assert load_newest(tmp_path / "missing", "run") is None
    assert load_newest(tmp_path, "run") is None


def test_only_the_newest_are_kept(save, tmp_path):
    for version in range(5):
        save(version, keep=2)
    assert names(tmp_path) == ["00000003", "00000004"]


FILES = [
    "state.json",
    "optimizer/whole.safetensors",
    "manifest.json",
    "model/model.safetensors",
    "model/config.json",
    "SHA256SUMS",
]


def test_these_are_all_the_files(save):
    assert {str(file.relative_to(path)) for path in [save(1).path] for file in path.rglob("*") if file.is_file()} == {
        *FILES,
        "model/generation_config.json",
    }


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size - 9),
    "empty": lambda file: os.truncate(file, 0),
    "flipped": flip_a_bit,
    "missing": lambda file: file.unlink(),
    "a stranger beside it": lambda file: file.with_name("extra").write_bytes(b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("victim", FILES)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(save, tmp_path, victim, damage):
    save(1)
    DAMAGES[damage](save(2).path / victim)
    assert load_newest(tmp_path, "run").state.version == 1
    save(2)
    assert load_newest(tmp_path, "run").state.version == 2


def test_every_line_of_the_sums_is_needed(save, tmp_path):
    save(1)
    sums = save(2).path / "SHA256SUMS"
    sums.write_text("".join(sums.read_text().splitlines(keepends=True)[1:]))
    assert load_newest(tmp_path, "run").state.version == 1


def test_a_trainer_that_died_while_it_wrote_its_position_leaves_a_good_checkpoint(save, tmp_path):
    save(1)
    (save(2).path / ".position.json.partial").write_text('{"half')
    assert load_newest(tmp_path, "run").state.version == 2


def test_coreutils_verify_a_checkpoint_too(save):
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(command, cwd=save(1).path, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_full_disk_harms_no_checkpoint_and_a_retry_succeeds(save, tmp_path, monkeypatch, call):
    save(1)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as refusing:
        refusing.setattr(os, call, full)
        with pytest.raises(CheckpointNotWritten, match=r"cannot store a checkpoint: .*No space left"):
            save(2)
    assert load_newest(tmp_path, "run").state.version == 1
    save(2)
    assert names(tmp_path) == ["00000001", "00000002"]


def test_with_only_damaged_checkpoints_it_raises_and_does_not_start_over(save, tmp_path):
    (save(1).path / "state.json").unlink()
    with pytest.raises(CheckpointError, match="restore"):
        load_newest(tmp_path, "run")


def test_a_checkpoint_that_was_never_finished_does_not_exist(save, tmp_path, model, base):
    save(1)
    save_model(model, CheckpointWriter(tmp_path, 2).partial / "model")
    assert load_newest(tmp_path, "run").state.version == 1
    save(2)
    assert names(tmp_path) == ["00000001", "00000002"]


def test_another_runs_checkpoint_is_refused(save, tmp_path):
    save(1, run="other")
    with pytest.raises(CheckpointError, match="of run 'other'"):
        load_newest(tmp_path, "run")


def test_one_trainer_at_a_time_and_a_dead_one_does_not_block(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom headrace.trainer.checkpoints.checkpoint import exclusive\n"
        "with exclusive(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(CheckpointError, match="another trainer"), exclusive(tmp_path):
                pass
        finally:
            holder.kill()
    with exclusive(tmp_path):
        assert (tmp_path / ".lock").exists()
