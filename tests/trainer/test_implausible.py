"""Poisoned log-probabilities: rejected before the step, once, and the weights are those of a run without them."""

from array import array

import pytest
import torch

from headrace.schemas.objects.store import file_sha256
from headrace.schemas.records.group import Reason, Stage
from headrace.schemas.topics import ALERTS, REJECTED, STEPS
from headrace.trainer.batches.packing import pack
from headrace.trainer.checkpoints.checkpoint import load_newest
from headrace.trainer.learning.plausibility import PlausibilitySettings
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import member, training_group
from tests.trainer.feed import attempt, feed_trajectories, hash_of, records, send_groups
from tests.trainer.running import payloads, train_until, trainer_config

pytestmark = pytest.mark.kafka

STEPS_MADE = 10


def with_logprobs(of, known):
    """Returns ``of`` with the log-probabilities from ``known`` for each segment."""
    segments = [each.model_copy(update={"logprobs": array("f", known(each))}) for each in of.segments]
    return of.model_copy(update={"segments": segments})


def poisoned(of):
    return with_logprobs(of, lambda segment: [-20.0] * len(segment.logprobs))


async def feed(kafka, base, run, *, poison):
    """A group of four a step. With ``poison`` each has a fifth member, and after every other group there is one of
    nothing else; the advantages of the others are the same with and without."""
    model = load_model(base)

    def of_the_base_model(segment):
        with torch.no_grad():
            known = token_logprobs(model, pack([(segment.token_ids, segment.loss_mask)])).logprobs
        return [min(each, 0.0) for each in known.tolist()]

    attempts = {}
    for step in range(STEPS_MADE):
        made = [attempt(f"{run}/{step}/{i}", run=run, seed=hash_of("story", step, i)) for i in range(5)]
        members = [with_logprobs(each, of_the_base_model) for each in made[:4]]
        attempts[f"{run}/{step}"] = [*members, poisoned(made[4])] if poison else members
        if poison and step % 2:
            attempts[f"{run}/{step}/poison"] = [poisoned(attempt(f"{run}/{step}/p", run=run, seed=step))]
    places = await feed_trajectories(kafka, [each for members in attempts.values() for each in members])
    groups = []
    for name, trajectories in attempts.items():
        members = [
            member(each, advantage=i - 1.5, reward=float(i), at=places[each.trajectory_id])
            for i, each in enumerate(trajectories)
        ]
        groups.append(training_group(name, members, run=run))
    await send_groups(kafka, groups)


def weights_of(config):
    return file_sha256(load_newest(config.checkpoint_dir, config.run).weights)


async def test_ten_poisoned_batches_give_the_weights_of_a_clean_run(kafka, base, tmp_path):
    shared = {"groups_per_step": 1, "loss": "dr_grpo", "plausibility": PlausibilitySettings(), "steps": STEPS_MADE}
    clean = trainer_config(kafka, "clean", base, tmp_path, **shared)
    dirty = trainer_config(kafka, "dirty", base, tmp_path, **shared)
    for config in (clean, dirty):
        await feed(kafka, base, config.run, poison=config is dirty)
    await train_until(clean, STEPS_MADE)
    for version in (3, 6, STEPS_MADE):  # it is stopped in between, and resumes
        await train_until(dirty, version)

    assert weights_of(dirty) == weights_of(clean)
    assert payloads(await records(kafka, REJECTED, "clean")) == []
    rejected = payloads(await records(kafka, REJECTED, "dirty"))
    assert {(each.stage, each.reason) for each in rejected} == {(Stage.TRAINING, Reason.IMPLAUSIBLE_LOGPROBS)}
    trained = [
        name
        for step in payloads(await records(kafka, STEPS, "dirty"))
        for group in step.groups
        for name in group.trajectory_ids
    ]
    fates = sorted([each.trajectory_id for each in rejected] + trained)
    # The poisoned group after the last step's stays pending.
    expected = {f"dirty/{step}/{i}" for step in range(STEPS_MADE) for i in range(5)}
    expected |= {f"dirty/{step}/p" for step in range(1, STEPS_MADE - 1, 2)}
    assert fates == sorted(expected)
    alerts = [each for each in payloads(await records(kafka, ALERTS, "dirty")) if each.kind == "implausible_logprobs"]
    assert len(alerts) >= STEPS_MADE
