"""A full disk, an unavailable object store or broker: the trainer retries, alerts, and resumes."""

import asyncio
import resource
from contextlib import asynccontextmanager, suppress

import pytest
from aiokafka.errors import KafkaError

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.step import Step
from headrace.schemas.topics import ALERTS, STEPS, WEIGHTS
from headrace.trainer.checkpoints.checkpoint import CheckpointNotWritten, load_newest
from headrace.trainer.follower.weight_cache import fetch_weights
from headrace.trainer.loop import run_trainer
from headrace.trainer.retries.retry import OutageSettings
from tests.trainer.feed import feed_groups, records
from tests.trainer.running import payloads, train_until, trainer_config

pytestmark = pytest.mark.kafka

EAGER = OutageSettings(first_wait_s=0.1, longest_wait_s=0.5, alert_after_s=0.0)


@pytest.fixture
def config(kafka, base, tmp_path):
    def _config(run, **settings):
        return trainer_config(kafka, run, base, tmp_path, **({"outages": EAGER} | settings))

    return _config


@pytest.fixture
def full_disk():
    """``full_disk(True)``: the kernel refuses files of more than 10,000 bytes; weights are larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(full):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000 if full else soft, hard))

    yield fill
    fill(False)


@asynccontextmanager
async def training(config, reached):
    """Run the trainer, and stop it at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_trainer(config, stop=stop, ready=lambda: None, reached=reached))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def until_told(kafka, topic, run, kind, count=1):
    async with asyncio.timeout(90):
        while True:
            with suppress(KafkaError):  # the test reads from the same broker
                read = payloads(await records(kafka, topic, run))
                found = [each for each in read if getattr(each, "kind", kind) == kind]
                if len(found) >= count:
                    return found
            await asyncio.sleep(0.2)


async def steps_of(kafka, run):
    steps: list[Step] = payloads(await records(kafka, STEPS, run))
    return [(step.step, [group.group_id.rpartition("/")[2] for group in step.groups]) for step in steps]


async def test_a_full_disk_harms_no_checkpoint_and_the_step_is_written_once_there_is_room(kafka, config, full_disk):
    await feed_groups(kafka, list("abcd"), run="full")
    settings = config("full")

    def reached(effect, making):
        if (effect, making) == ("trained", 1):
            full_disk(True)

    async with training(settings, reached):
        (alert, *_) = await until_told(kafka, ALERTS, "full", "checkpoint_not_written")
        assert isinstance(alert, Alert)
        assert "File too large" in alert.message
        assert load_newest(settings.checkpoint_dir, "full").state.version == 0
        full_disk(False)
        await until_told(kafka, STEPS, "full", "", 2)
    assert await steps_of(kafka, "full") == [(1, ["a", "b"]), (2, ["c", "d"])]
    alerts = [each for each in payloads(await records(kafka, ALERTS, "full")) if each.kind == "checkpoint_not_written"]
    assert len(alerts) == 1


async def test_a_disk_that_stays_full_ends_the_trainer_which_trains_the_same_groups_again(kafka, config, full_disk):
    await feed_groups(kafka, list("ab"), run="stays")
    settings = config("stays", outages=OutageSettings(0.05, 0.1, 60.0, patience_s=0.3))

    def reached(effect, making):
        if (effect, making) == ("trained", 1):
            full_disk(True)

    with pytest.raises(CheckpointNotWritten, match="checkpoint_dir"):
        await run_trainer(settings, stop=asyncio.Event(), ready=lambda: None, reached=reached)
    full_disk(False)
    await train_until(settings, 1)
    assert await steps_of(kafka, "stays") == [(1, ["a", "b"])]


async def test_an_unavailable_object_store_is_retried_and_nothing_is_announced_before(kafka, config, tmp_path):
    await feed_groups(kafka, list("abcd"), run="away")
    settings = config("away")
    folder, hidden = tmp_path / "objects" / "weights", tmp_path / "hidden"

    def reached(effect, making):
        if (effect, making) == ("trained", 1):
            folder.rename(hidden)
            folder.write_text("a file where a folder should be: nothing can be put here")

    async with training(settings, reached):
        (alert, *_) = await until_told(kafka, ALERTS, "away", "object_store_unavailable")
        assert alert.details["version"] == 1
        assert load_newest(settings.checkpoint_dir, "away").state.version == 1  # the step is durable
        assert await steps_of(kafka, "away") == []
        assert len(await records(kafka, WEIGHTS, "away")) == 1
        folder.unlink()
        hidden.rename(folder)
        await until_told(kafka, STEPS, "away", "", 2)
    assert await steps_of(kafka, "away") == [(1, ["a", "b"]), (2, ["c", "d"])]


async def test_a_stop_while_the_object_store_is_unavailable_is_clean_and_a_restart_uploads(kafka, config, tmp_path):
    await feed_groups(kafka, list("ab"), run="stopped")
    settings = config("stopped")
    folder = tmp_path / "objects" / "weights"

    def reached(effect, making):
        if (effect, making) == ("trained", 1):
            folder.rename(tmp_path / "hidden")
            folder.write_text("")

    async with training(settings, reached):
        await until_told(kafka, ALERTS, "stopped", "object_store_unavailable")
    folder.unlink()
    (tmp_path / "hidden").rename(folder)
    await train_until(settings, 1)
    assert await steps_of(kafka, "stopped") == [(1, ["a", "b"])]


@pytest.mark.s3
async def test_a_stopped_s3_server_is_retried_and_a_follower_verifies_the_upload(kafka, config, s3, tmp_path):
    await feed_groups(kafka, list("abcd"), run="down")
    settings = config("down", store_url=s3.url("down"))
    going_down = [("weights_uploaded", 1)]
    """With the manifest still to come; it is reached again once the server is back."""

    def reached(effect, making):
        if (effect, making) in going_down:
            going_down.clear()
            s3.kill()

    async with training(settings, reached):
        (alert, *_) = await until_told(kafka, ALERTS, "down", "object_store_unavailable")
        assert f"store_url {s3.url('down')} cannot be used" in alert.message
        assert await steps_of(kafka, "down") == []
        assert len(await records(kafka, WEIGHTS, "down")) == 1
        s3.start()
        await until_told(kafka, STEPS, "down", "", 2)
    assert await steps_of(kafka, "down") == [(1, ["a", "b"]), (2, ["c", "d"])]

    pointers = payloads(await records(kafka, WEIGHTS, "down"))
    assert [pointer.version for pointer in pointers] == [0, 1, 2]
    store = ObjectStore(settings.store_url)
    fetched = [await fetch_weights(pointer, store, tmp_path / "cache") for pointer in pointers]
    newest = load_newest(settings.checkpoint_dir, "down")
    assert fetched[2].file.read_bytes() == newest.weights.read_bytes()
    assert fetched[2].manifest == newest.manifest()
    assert len({each.sha256 for each in fetched}) == 3
