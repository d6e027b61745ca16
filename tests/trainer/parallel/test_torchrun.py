"""The trainer's loop on a real log under ``torchrun``."""

import asyncio
import os
import signal

import psutil
import pytest
import torch

from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.processes.train import trainer_config
from headrace.schemas.records.step import Step
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import STEPS, WEIGHTS
from headrace.trainer.batches.packing import pack
from headrace.trainer.checkpoints.checkpoint import load_newest
from headrace.trainer.loop import run_trainer
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.step_effects import Effect
from headrace.trainer.weights.canary import max_error
from tests.trainer.builders import tiny_model
from tests.trainer.feed import feed_groups, records
from tests.trainer.parallel.torchrun import start_torchrun


@pytest.mark.kafka
async def test_two_ranks_train_from_the_log_stop_together_and_one_process_resumes(kafka, tmp_path):
    groups = await feed_groups(kafka, list("abcdef"), run="ranks")
    file = tmp_path / "run.toml"
    file.write_text(
        f'bootstrap = "{kafka}"\nrun = "ranks"\nmodel_dir = "{tiny_model(tmp_path / "base")}"\n'
        f'checkpoint_dir = "{tmp_path}/checkpoints"\nstore_url = "file://{tmp_path}/objects"\n'
        "groups_per_step = 2\nmax_staleness = 100\nthreads = 1\nmax_tokens_per_pass = 40\nsteps = 2\n"
        "optimizer = { learning_rate = 1e-3 }\n"
    )
    job = await start_torchrun(2, "headrace.deploy.cli", "train", "--config", str(file), "--progress", "lines")
    try:
        said = asyncio.create_task(job.communicate())
        async with asyncio.timeout(240):
            while len(await records(kafka, WEIGHTS, "ranks")) < 3 and not said.done():  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        assert not said.done(), said.result()[0].decode()[-4000:]
        ranks = {child.environ()["RANK"]: child for child in psutil.Process(job.pid).children()}
        ranks["1"].kill()
        output, _ = await asyncio.wait_for(said, 90)
        assert job.returncode not in (0, None)
        assert "exitcode: -9" in output.decode()
        assert not ranks["0"].is_running()
    finally:
        if job.returncode is None:
            os.killpg(job.pid, signal.SIGKILL)

    config = trainer_config(load_settings(), file, ["steps=3"])
    checkpoint = load_newest(config.checkpoint_dir, "ranks")
    assert checkpoint is not None
    assert checkpoint.state.version == 2
    assert len(list(checkpoint.optimizer_dir.glob("*.safetensors"))) == 2
    canaries = checkpoint.manifest().canaries
    packed = pack([(canary.token_ids, [0] + [1] * (len(canary.token_ids) - 1)) for canary in canaries])
    with torch.no_grad():
        logprobs = token_logprobs(load_model(checkpoint.model_dir), packed).logprobs.view(len(canaries), -1).tolist()
    assert max_error(canaries, logprobs) < 1e-5

    stop = asyncio.Event()

    def reached(effect, version):
        if (effect, version) == (Effect.ANNOUNCED, 3):
            stop.set()

    await asyncio.wait_for(run_trainer(config, stop=stop, ready=lambda: None, reached=reached), 120)
    steps: list[Step] = [step for _, step in await records(kafka, STEPS, "ranks")]
    weights: list[Weights] = [each for _, each in await records(kafka, WEIGHTS, "ranks")]
    assert [step.step for step in steps] == [1, 2, 3]
    assert [each.version for each in weights] == [0, 1, 2, 3]
    assert [group.group_id for step in steps for group in step.groups] == [group.group_id for group in groups]
    assert steps[0].metrics["tokens_trained"] == sum(
        one.sampled_tokens for group in groups[:2] for one in group.members
    )
