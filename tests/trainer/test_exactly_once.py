"""A trainer that is killed between any two effects of a step resumes bit-identically."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace

import pytest
import torch

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.step import Step
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, REJECTED, STEPS, TRAINING, WEIGHTS
from headrace.trainer.checkpoints.checkpoint import load_newest
from headrace.trainer.learning.optimizer_state import read_state
from headrace.trainer.publishing.announcer import newest_published
from headrace.trainer.step_effects import Effect
from headrace.trainer.weights.published import fetch_manifest
from tests.trainer.builders import member, training_group
from tests.trainer.feed import attempt, feed_trajectories, hash_of, message_of, records
from tests.trainer.killed import ENDS_WITHIN_S
from tests.trainer.running import payloads

pytestmark = pytest.mark.kafka

SETTINGS = {"substeps": 2, "loss": "dr_grpo"}
STORY = ["00", "01", "foreign", "02", "03", "04", "05", "unreadable", "06", "07", "08", "impossible", "09", "10",
         "11", "12"]  # fmt: skip
"""Groups in the log's order. Two make a step; the one of ``08`` and ``impossible`` diverges in its second sub-step."""
LAST = 6
UNREADABLE = "unreadable_group"

INSTANCES = {
    "early": ["model_written:0", "checkpointed:0", "weights_uploaded:0", "sent:0", "announced:0",
              "position_written:1", "updated:1", "trained:1", "position_written:2", "sent:2", "position_published:2",
              "optimizer_written:2", "state_written:3", f"done:{LAST}"],
    "late": ["position_written:1:1", "checkpointed:2", "weights_uploaded:3", "uploaded:3", "begun:3", "sent:3",
             "announced:3", "begun:4", "position_published:4", "model_written:4", "position_written:5:1",
             "position_written:5:2", "sent:5", "position_published:5", "trained:5", f"done:{LAST}"],
}  # fmt: skip
"""Deaths of two runs. In ``late``, ``position_written:5:2`` is the position of the skipped step, published by the next
instance."""


async def feed_story(kafka, run):
    """The story's groups for ``run``: the same tokens whatever the run."""
    attempts = {
        name: [
            attempt(f"{run}/{name}/{i}", run="elsewhere" if name == "foreign" else run, seed=hash_of("story", name, i))
            for i in range(3)
        ]
        for name in STORY
    }
    places = await feed_trajectories(kafka, [each for members in attempts.values() for each in members])
    async with open_producer(kafka) as producer:
        for name, members in attempts.items():
            size = 1e39 if name == "impossible" else 1.0  # more than a float32 can say
            group = training_group(
                f"{run}/{name}",
                [
                    member(each, advantage=size * (i - 1), reward=float(i), at=places[each.trajectory_id])
                    for i, each in enumerate(members)
                ],
                run=run,
            )
            message = message_of(group, id=group.group_id, key=group.group_id)
            if name == "unreadable":
                message = replace(message, value=message.value[:-9])
            await (await send(producer, TRAINING, message, 0))


async def run_instances(kafka, run, base, folder, deaths):
    """Run the instances of ``run``; returns how each ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.trainer.killed", kafka, run, str(base), str(folder), json.dumps(SETTINGS), *deaths,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    errors = asyncio.create_task(process.stderr.read())
    ended = []
    try:
        while line := await asyncio.wait_for(process.stdout.readline(), ENDS_WITHIN_S + 30):
            ended.append(line.decode().strip())
        return ended, (await errors).decode()[-4000:]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def published(kafka, run, folder):
    """Returns all records of ``run``, without its name, its times and their places."""
    steps: list[Step] = payloads(await records(kafka, STEPS, run))
    weights: list[Weights] = payloads(await records(kafka, WEIGHTS, run))
    rejected: list[Rejection] = payloads(await records(kafka, REJECTED, run))
    alerts: list[Alert] = payloads(await records(kafka, ALERTS, run))
    # An unreadable record belongs to no run: each trainer reports those that it reads, once.
    unreadable = [each.message for each in alerts if each.kind == UNREADABLE]
    assert len(set(unreadable)) == len(unreadable) >= 1
    store = ObjectStore(f"file://{folder}/objects")
    manifests = [await fetch_manifest(store, pointer) for pointer in weights]
    assert len({each.config_sha256 for each in steps}) == 1
    timed = ("seconds_", "tokens_per_second")
    return {
        "steps": [
            (each.step, each.version, each.data_sha256,
             [[id.removeprefix(run) for id in (group.group_id, *group.trajectory_ids)] for group in each.groups],
             {name: value for name, value in each.metrics.items() if not name.startswith(timed)})
            for each in steps
        ],
        "weights": [
            (each.version, each.parent, each.step, [*manifest.files.values()], [*manifest.sizes.values()])
            for each, manifest in zip(weights, manifests, strict=True)
        ],
        "rejected": sorted((each.trajectory_id.removeprefix(run), each.stage, each.reason) for each in rejected),
        "alerts": [(each.kind, each.details.get("version")) for each in alerts if each.kind != UNREADABLE],
    }  # fmt: skip


def kept(folder, run):
    """The newest checkpoint's state and the optimiser's tensors."""
    checkpoint = load_newest(folder / run, run)
    state = checkpoint.state
    return (state.version, state.grad_norms, state.alarms), read_state(checkpoint.optimizer_dir, {})


def test_a_trainer_dies_after_every_effect():
    died_at = {death.partition(":")[0] for deaths in INSTANCES.values() for death in deaths}
    assert died_at == {*Effect, "updated", "done"}


async def test_killed_between_any_two_effects_it_resumes_bit_identically(kafka, base, tmp_path):
    for run in (*INSTANCES, "calm"):
        await feed_story(kafka, run)
    ends = await asyncio.gather(
        *(run_instances(kafka, run, base, tmp_path, deaths) for run, deaths in INSTANCES.items()),
        run_instances(kafka, "calm", base, tmp_path, [f"done:{LAST}"]),
    )
    for (lived, error), deaths in zip(ends, INSTANCES.values(), strict=False):
        expected = [f"{death} {0 if death.startswith('done') else -signal.SIGKILL}" for death in deaths]
        assert lived == expected, error

    calm = await published(kafka, "calm", tmp_path)
    assert [step for step, *_ in calm["steps"]] == [*range(1, LAST + 1)]
    assert [version for version, *_ in calm["weights"]] == [*range(LAST + 1)]
    assert calm["rejected"] == sorted(
        [(f"/foreign/{i}", Stage.ADMISSION, Reason.OTHER_RUN) for i in range(3)]
        + [(f"/{name}/{i}", Stage.TRAINING, Reason.DIVERGED) for name in ("08", "impossible") for i in range(3)]
    )
    assert ("step_skipped", 4) in calm["alerts"]
    trained = [ids[0] for _, _, _, groups, _ in calm["steps"] for ids in groups]
    assert trained == [f"/{name}" for name in STORY if name.isdigit() and name != "08"]

    calm_state, calm_tensors = kept(tmp_path, "calm")
    for run in INSTANCES:
        found = await published(kafka, run, tmp_path)
        for topic in calm:
            assert found[topic] == calm[topic], f"{run}: {topic}"
        assert tuple(await newest_published(kafka, run)) == tuple(await newest_published(kafka, "calm"))
        state, tensors = kept(tmp_path, run)
        assert state == calm_state
        assert tensors.keys() == calm_tensors.keys()
        assert [name for name in tensors if not torch.equal(tensors[name], calm_tensors[name])] == []
