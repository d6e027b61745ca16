import pytest

from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import TrainedGroup
from headrace.trainer.announcements.announcement import PublishedPosition
from headrace.trainer.checkpoints.checkpoint import Checkpoint, CheckpointError, CheckpointNotWritten, CheckpointState
from headrace.trainer.checkpoints.position import Position, position_of, read_position, write_position

PENDING = TrainedGroup(
    group_id="g", group=Reference(partition=0, offset=7), trajectory_ids=["t"],
    trajectories=[Reference(partition=1, offset=2)],
)  # fmt: skip
MOVED = Position(version=3, revision=2, offsets={0: 9}, pending=[PENDING], attempts=4, skipped=1, config_sha256="c")


@pytest.fixture
def checkpoint(tmp_path):
    state = CheckpointState(run="r", version=3, offsets={0: 5}, announcements=[])
    (tmp_path / "00000003").mkdir()
    return Checkpoint(tmp_path / "00000003", state)


def test_a_position_is_read_back_completely(checkpoint):
    write_position(checkpoint, MOVED)
    assert read_position(checkpoint, PublishedPosition(3, 2), "c") == MOVED


def test_without_one_the_checkpoints_own_counts(checkpoint):
    position = read_position(checkpoint, PublishedPosition(3), "")
    assert position == position_of(checkpoint.state)
    assert (position.revision, position.offsets, position.pending) == (0, {0: 5}, [])


def test_under_other_settings_attempts_and_skipped_steps_are_reset(checkpoint):
    write_position(checkpoint, MOVED)
    position = read_position(checkpoint, PublishedPosition(3, 2), "other")
    assert (position.attempts, position.skipped, position.pending) == (0, 0, [PENDING])


def damage(file, how):
    content = file.read_bytes()
    match how:
        case "truncated":
            file.write_bytes(content[:-20])
        case "flipped":
            file.write_bytes(content.replace(b'"0":9', b'"0":8'))
        case "empty":
            file.write_bytes(b"")
        case "missing":
            file.unlink()


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "missing"])
def test_a_damaged_position_is_skipped_only_if_nothing_of_it_was_published(checkpoint, how):
    write_position(checkpoint, MOVED)
    damage(checkpoint.path / "position.json", how)
    assert read_position(checkpoint, PublishedPosition(3, 0), "").revision == 0
    with pytest.raises(CheckpointError, match=r"position.json is (damaged|missing): the log holds revision 2"):
        read_position(checkpoint, PublishedPosition(3, 2), "")


def test_an_older_position_than_the_logs_is_refused(checkpoint):
    write_position(checkpoint, MOVED)
    with pytest.raises(CheckpointError, match="is older: the log holds revision 3"):
        read_position(checkpoint, PublishedPosition(3, 3), "")


def test_a_failed_write_leaves_the_old_position(checkpoint, monkeypatch):
    write_position(checkpoint, MOVED)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointNotWritten, match=r"cannot store a checkpoint: .*No space left"):
        write_position(checkpoint, MOVED.model_copy(update={"revision": 3}))
    assert read_position(checkpoint, PublishedPosition(3, 2), "c") == MOVED
