"""A diverged step under ``torchrun``, on a real log, is rolled back by all ranks, whichever of them detects it.

Groups of four, one per step. In a prepared run the third group makes the policy diverge, by its last member: in the
step's second update, so that all ranks have updated their weights once before the rollback.
"""

import asyncio
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from headrace.schemas.records.alert import Severity
from headrace.schemas.records.group import Reason, Stage
from headrace.schemas.topics import ALERTS, REJECTED, STEPS, WEIGHTS
from headrace.trainer.checkpoints.checkpoint import load_newest
from headrace.trainer.learning.optimizer_state import read_state
from tests.trainer.builders import member, tiny_model, training_group
from tests.trainer.feed import attempt, feed_trajectories, records, send_groups
from tests.trainer.parallel import rolling_back
from tests.trainer.parallel.rolling_back import RUNS, config_of
from tests.trainer.parallel.torchrun import start_torchrun
from tests.trainer.running import payloads, train_until

pytestmark = pytest.mark.kafka

RUIN = {"muon-planted": 1e39, "adapters-planted": 1e5}
"""Advantages that make a step diverge: infinite in float32; a gradient far above the usual."""
ALONE = {f"{run}-alone": run for run in RUIN}
"""Runs trained by one process, and the run of two ranks to compare with."""
TOLERANCE = {"muon-planted": 5e-4, "adapters-planted": 8e-3}
"""As in ``test_ranks``: Muon's bfloat16 and a published weight that rounds the other way."""


async def feed(kafka):
    """Write the same groups for every run, and the diverging one if the run is prepared."""
    groups = {}
    for run in [*RUNS, *ALONE]:
        ruin = RUIN.get(ALONE.get(run, run))
        for name, last in (("0", 0.5), ("1", -1.0), *([("bad", ruin)] if ruin else []), ("2", 1.0)):
            seeds = (10 * "012b".index(name[0]) + number for number in range(4))
            members = [attempt(f"{run}/{name}/{seed % 10}", run=run, seed=seed) for seed in seeds]
            groups[run, name] = list(zip(members, [1.0, -0.5, 0.25, last], strict=True))
    places = await feed_trajectories(kafka, [one for members in groups.values() for one, _ in members])
    await send_groups(
        kafka,
        [
            training_group(
                f"{run}/{name}",
                [member(one, advantage=advantage, at=places[one.trajectory_id]) for one, advantage in members],
                run=run,
            )
            for (run, name), members in groups.items()
        ],
    )


@pytest.fixture(scope="module")
def folder(kafka, tmp_path_factory):
    folder = tmp_path_factory.mktemp("taken-back")
    tiny_model(folder / "base")

    async def train():
        await feed(kafka)
        job = await start_torchrun(2, rolling_back.__name__, kafka, str(folder))
        try:
            said = asyncio.create_task(job.communicate())
            for run, like in ALONE.items():
                await train_until(config_of(kafka, run, folder, RUNS[like]), rolling_back.STEPS)
            output, _ = await asyncio.wait_for(said, 240)
            assert job.returncode == 0, output.decode()[-4000:]
        finally:
            if job.returncode is None:
                os.killpg(job.pid, signal.SIGKILL)
        (folder / "said").write_bytes(output)

    asyncio.run(train())
    return folder


def newest(folder, run):
    checkpoint = load_newest(folder / run, run)
    assert checkpoint.state.version == rolling_back.STEPS
    return checkpoint


def held(folder, run):
    """Returns the policy, and each rank's part of the optimiser's state."""
    checkpoint = newest(folder, run)
    shards = sorted(checkpoint.optimizer_dir.iterdir())
    assert len(shards) == 2
    return [load_file(file) for file in (checkpoint.weights, *shards)]


@pytest.mark.parametrize("run", ["muon-planted", "muon-spoiled", "adapters-planted"])
def test_after_a_rollback_all_ranks_continue_bit_identically(folder, run):
    for mine, calm in zip(held(folder, run), held(folder, run.partition("-")[0] + "-calm"), strict=True):
        assert mine.keys() == calm.keys()
        assert [name for name in mine if not torch.equal(mine[name], calm[name])] == []


@pytest.mark.parametrize(("alone", "run"), ALONE.items())
def test_weights_and_optimizer_equal_those_of_one_process(folder, alone, run):
    one, two = newest(folder, alone), newest(folder, run)
    states = [(load_file(each.weights), read_state(each.optimizer_dir, {})) for each in (one, two)]
    for mine, theirs in zip(*states, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            if name not in ("rng", "base_sha256"):
                torch.testing.assert_close(theirs[name], mine[name], atol=TOLERANCE[run], rtol=0.02, msg=name)


@pytest.mark.parametrize(("run", "why"), [("muon-planted", "loss "), ("adapters-planted", "gradient norm")])
async def test_the_groups_members_are_rejected_with_an_alert_and_training_continues(folder, kafka, run, why):
    rejected = payloads(await records(kafka, REJECTED, run))
    assert sorted(each.trajectory_id for each in rejected) == [f"{run}/bad/{number}" for number in range(4)]
    assert {(each.stage, each.reason, each.policy_version) for each in rejected} == {
        (Stage.TRAINING, Reason.DIVERGED, 0)
    }
    (alert,) = (each for each in payloads(await records(kafka, ALERTS, run)) if each.kind == "step_skipped")
    assert (alert.severity, alert.details["version"], alert.details["groups"]) == (Severity.WARNING, 2, [f"{run}/bad"])
    assert why in alert.message
    assert "tried 2 times" in alert.message
    steps = payloads(await records(kafka, STEPS, run))
    assert [group.group_id for step in steps for group in step.groups] == [f"{run}/{name}" for name in "012"]
    assert [each.version for each in payloads(await records(kafka, WEIGHTS, run))] == [0, 1, 2, 3]


async def test_broken_weights_on_one_rank_roll_back_all_ranks_and_the_step_is_retried(folder, kafka):
    """The group is sound: the second attempt succeeds, without an alert."""
    said = (folder / "said").read_text()
    assert said.count("holds values that are not finite; the step is rolled back") == 1
    assert "CHECK_WEIGHTS on rank 1: " in said
    assert await records(kafka, REJECTED, "muon-spoiled") == []
    assert [a for a in payloads(await records(kafka, ALERTS, "muon-spoiled")) if a.kind == "step_skipped"] == []
    steps = payloads(await records(kafka, STEPS, "muon-spoiled"))
    assert [group.group_id for step in steps for group in step.groups] == [f"muon-spoiled/{name}" for name in "012"]
