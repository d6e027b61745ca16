"""A broker that is unavailable for longer than the ranks' timeout: rank 0 retries, and the others wait for rank 0."""

import asyncio
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from headrace.schemas.topics import ALERTS, STEPS, WEIGHTS
from headrace.trainer.checkpoints.checkpoint import load_newest
from tests.trainer.builders import tiny_model
from tests.trainer.feed import feed_groups, records
from tests.trainer.parallel import cut_off
from tests.trainer.parallel.torchrun import start_torchrun
from tests.trainer.running import payloads

pytestmark = pytest.mark.kafka

AWAY_S = 1.5 * cut_off.TIMEOUT_S


async def said(kafka, run):
    """Returns the records of ``run`` without its name and times."""
    steps = payloads(await records(kafka, STEPS, run))
    return (
        [(step.step, step.data_sha256, [group.group_id.removeprefix(run) for group in step.groups]) for step in steps],
        [(each.version, each.step) for each in payloads(await records(kafka, WEIGHTS, run))],
    )


async def test_all_ranks_resume_bit_identically_once_the_broker_is_back(running_kafka, kafka, tmp_path):
    tiny_model(tmp_path / "base")
    for run in cut_off.RUNS:
        await feed_groups(kafka, ["a", "b", "c"], run=run, story="story")
    job = await start_torchrun(2, cut_off.__name__, kafka, str(running_kafka.pid), str(tmp_path))
    try:
        async with asyncio.timeout(240):
            output = await job.stdout.readuntil(cut_off.FROZEN.encode())
            await asyncio.sleep(AWAY_S)
            running_kafka.freeze(False)
            output += await job.stdout.read()
            assert await job.wait() == 0, output.decode()[-4000:]
    finally:
        running_kafka.freeze(False)
        if job.returncode is None:
            os.killpg(job.pid, signal.SIGKILL)

    calm, away = [await said(kafka, run) for run in cut_off.RUNS]
    assert away == calm
    assert [step for step, *_ in calm[0]] == [1, 2, 3]
    weights = [load_newest(tmp_path / run, run).weights for run in cut_off.RUNS]
    mine, theirs = (load_file(each) for each in weights)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
    alerts = [each for each in payloads(await records(kafka, ALERTS, "away")) if each.kind == "log_unavailable"]
    assert len(alerts) == 1, output.decode()[-4000:]
    (alert,) = alerts
    assert "Kafka was unavailable for" in alert.message
