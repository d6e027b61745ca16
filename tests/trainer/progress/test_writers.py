"""TensorBoard and W&B receive a step's metrics; a failing writer affects nothing else."""

import json
import struct
import threading
import time

import pytest

from headrace.trainer.progress.progress import Progress
from headrace.trainer.progress.sections import grouped
from headrace.trainer.progress.settings import WandbMode, WriterSettings
from headrace.trainer.progress.writers import BackgroundWriter, open_writers

STEPS = [(step, {"loss": 0.5 / step, "kl_k3": 0.01 * step}) for step in (1, 2, 3)]


def test_metrics_are_grouped_by_subject():
    assert grouped({"loss": 1.0, "kl_k3": 2.0, "mine": 3.0}) == {
        "learning/loss": 1.0, "off-policy/kl_k3": 2.0, "other/mine": 3.0,
    }  # fmt: skip


def test_only_configured_writers_are_opened():
    with open_writers(WriterSettings(), "r", {}) as writers:
        assert writers == []


def test_tensorboard_reads_back_what_was_written(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for steps in (STEPS[:2], STEPS[2:]):  # a restart adds a file
        with open_writers(WriterSettings(tensorboard_dir=tmp_path), "run-1", {}) as writers:
            progress = Progress(writers)
            for step, metrics in steps:
                progress.stepped(step, metrics)
    read = event_accumulator.EventAccumulator(str(tmp_path / "run-1")).Reload()
    assert sorted(read.Tags()["scalars"]) == ["learning/loss", "off-policy/kl_k3"]
    assert [(one.step, pytest.approx(one.value)) for one in read.Scalars("learning/loss")] == [
        (step, metrics["loss"]) for step, metrics in STEPS
    ]


def wandb_history(file):
    """The points in a W&B file: 7 bytes, then records of a checksum (4 bytes), a length (2), a kind (1), a message."""
    from wandb.proto.wandb_internal_pb2 import Record

    at = 7
    while at < len(file):
        (length,) = struct.unpack_from("<H", file, at + 4)
        record = Record.FromString(file[at + 7 : at + 7 + length])
        if record.HasField("history"):
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        at += 7 + length


def test_wandb_keeps_a_run_offline(tmp_path):
    pytest.importorskip("wandb")
    settings = WriterSettings(wandb_project="p", wandb_mode=WandbMode.OFFLINE, wandb_dir=tmp_path)
    with open_writers(settings, "run-1", {"loss": "cispo"}) as writers:
        progress = Progress(writers)
        for step, metrics in STEPS:
            progress.stepped(step, metrics)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-run-1.wandb")
    # W&B's own process writes the file, and may be a moment behind.
    for _ in range(300):
        if len(points := [*wandb_history(file.read_bytes())]) == len(STEPS):
            break
        time.sleep(0.1)
    assert [(point["_step"], point["learning/loss"]) for point in points] == [
        (step, metrics["loss"]) for step, metrics in STEPS
    ]


def test_a_failing_writer_is_reported_and_stops_no_other(caplog):
    class Full:
        def write(self, step, metrics):
            raise OSError(28, "No space left on device")

        def close(self):
            raise OSError("not even closed")

    def unreachable():
        raise ConnectionError("nobody there")

    writers = [BackgroundWriter("full", Full), BackgroundWriter("unreachable", unreachable)]
    progress = Progress(writers)
    for step, metrics in STEPS:
        progress.stepped(step, metrics)
    for writer in writers:
        writer.close()
    assert progress.steps == 3
    assert [writer.dropped for writer in writers] == [3, 3]
    assert "full: 1 steps not written so far: OSError: [Errno 28] No space left" in caplog.text
    assert "unreachable: 1 steps not written so far: ConnectionError: nobody there" in caplog.text
    assert "full could not be closed" in caplog.text


def test_a_hanging_writer_blocks_nothing_and_its_queue_is_bounded(caplog):
    going_on, written = threading.Event(), []

    class Slow:
        def write(self, step, metrics):
            going_on.wait(60)
            written.append(step)

        def close(self):
            written.append("closed")

    writer = BackgroundWriter("slow", Slow)
    progress = Progress([writer])
    for step in range(1200):
        progress.stepped(step, {"loss": 1.0})
    assert 199 <= writer.dropped <= 200
    assert "1000 steps wait to be written" in caplog.text
    going_on.set()
    writer.close()
    assert written == [*sorted(written[:-1]), "closed"]
    assert len(written) == 1201 - writer.dropped
