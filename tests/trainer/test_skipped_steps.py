"""Diverged steps are rolled back, and skipped with a reason and an alert."""

from dataclasses import replace

import pytest
import torch

from headrace.schemas.objects.store import file_sha256
from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.step import Step
from headrace.schemas.topics import ALERTS, REJECTED, STEPS
from headrace.trainer.checkpoints.checkpoint import load_newest
from headrace.trainer.learning.divergence import DivergenceSettings, TrainingDiverged
from headrace.trainer.learning.optimizer_state import read_state
from headrace.trainer.learning.optimizers import OptimizerSettings
from tests.trainer.builders import member, training_group
from tests.trainer.feed import attempt, feed_groups, feed_trajectories, records, send_groups
from tests.trainer.running import payloads, train_until, trainer_config

pytestmark = pytest.mark.kafka


@pytest.fixture
def config(kafka, base, tmp_path):
    def _config(run, **settings):
        return trainer_config(kafka, run, base, tmp_path, **({"groups_per_step": 1, "loss": "dr_grpo"} | settings))

    return _config


async def feed_group(kafka, name, *, run, advantage=0.5):
    """A group of one whose loss grows with ``advantage``."""
    only = attempt(f"{run}/{name}/0", run=run, seed=1)
    places = await feed_trajectories(kafka, [only])
    members = [member(only, advantage=advantage, at=places[only.trajectory_id])]
    await send_groups(kafka, [training_group(f"{run}/{name}", members, run=run)])


def kept(config):
    """The hash of the newest weights, and the optimiser's tensors."""
    checkpoint = load_newest(config.checkpoint_dir, config.run)
    return file_sha256(checkpoint.weights), read_state(checkpoint.optimizer_dir, {})


def assert_same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


async def test_an_exploding_gradient_is_skipped_with_an_alert(kafka, config):
    settings = config("exploding", divergence=DivergenceSettings(max_norm_ratio=20, norm_history=2), steps=4)
    calm = config("unexploded", divergence=settings.divergence, steps=4)
    for run in ("exploding", "unexploded"):
        for number in range(4):
            if number == 3 and run == "exploding":
                await feed_group(kafka, "huge", run=run, advantage=1e4)
            await feed_group(kafka, f"{number}", run=run)
    await train_until(settings, 4)
    await train_until(calm, 4)

    (rejection,) = payloads(await records(kafka, REJECTED, "exploding"))
    assert isinstance(rejection, Rejection)
    assert (rejection.trajectory_id, rejection.stage, rejection.reason, rejection.policy_version) == (
        "exploding/huge/0", Stage.TRAINING, Reason.DIVERGED, 0,
    )  # fmt: skip
    (alert,) = (each for each in payloads(await records(kafka, ALERTS, "exploding")) if each.kind == "step_skipped")
    assert isinstance(alert, Alert)
    assert (alert.severity, alert.details["version"], alert.details["groups"]) == (
        Severity.WARNING, 3, ["exploding/huge"],
    )  # fmt: skip
    assert "gradient norm" in alert.message
    assert "tried 2 times" in alert.message
    steps: list[Step] = payloads(await records(kafka, STEPS, "exploding"))
    assert [group.group_id for step in steps for group in step.groups] == [f"exploding/{number}" for number in range(4)]
    assert (steps[3].metrics["rejected"], steps[3].metrics["rejected_age_3_4"]) == (1.0, 1.0)
    assert_same(kept(settings), kept(calm))


async def test_weights_that_are_not_finite_after_an_update_are_never_kept(kafka, config):
    """A learning rate of 1e38 passes every check of loss and gradient: only the weights show it."""
    await feed_groups(kafka, ["a", "b"], run="overflown")
    settings = config(
        "overflown",
        optimizer=OptimizerSettings(learning_rate=1e38, weight_decay=1e3),
        divergence=DivergenceSettings(retries=0, max_skipped=2),
    )
    with pytest.raises(TrainingDiverged, match="2 consecutive steps after version 0"):
        await train_until(settings, 1)
    assert load_newest(settings.checkpoint_dir, "overflown").state.version == 0
    assert len(payloads(await records(kafka, REJECTED, "overflown"))) == 8


async def test_many_consecutive_skips_stop_the_trainer_until_the_settings_change(kafka, config):
    for number in range(3):
        await feed_group(kafka, f"bad{number}", run="hopeless", advantage=1e39)
    await feed_group(kafka, "good", run="hopeless")
    settings = config("hopeless", divergence=DivergenceSettings(retries=0, max_skipped=2))
    for _ in range(2):  # restarts by a supervisor skip no further groups
        with pytest.raises(TrainingDiverged, match="2 consecutive steps"):
            await train_until(settings, 1)
        alerts = [each for each in payloads(await records(kafka, ALERTS, "hopeless")) if each.kind == "step_skipped"]
        assert [each.severity for each in alerts] == [Severity.WARNING, Severity.CRITICAL]
    assert await records(kafka, STEPS, "hopeless") == []
    await train_until(replace(settings, max_grad_norm=0.5), 1)
    (step,) = payloads(await records(kafka, STEPS, "hopeless"))
    assert step.groups[0].group_id == "hopeless/good"
    rejected = payloads(await records(kafka, REJECTED, "hopeless"))
    assert [each.trajectory_id for each in rejected] == [f"hopeless/bad{number}/0" for number in range(3)]


async def test_groups_that_kill_every_process_that_trains_them_are_skipped(kafka, config, monkeypatch):
    """Errors that the trainer cannot catch (out of memory, a kernel's fault): it counts the processes that began."""
    from headrace.trainer.learning.learner import Learner

    await feed_group(kafka, "poison", run="crashing")
    await feed_group(kafka, "sound", run="crashing")
    settings = config("crashing", divergence=DivergenceSettings(max_attempts=2))
    step = Learner.step

    def crash(*_, **__):
        raise MemoryError("as if the process had ended")

    monkeypatch.setattr(Learner, "step", crash)
    for _ in range(2):
        with pytest.raises(MemoryError):
            await train_until(settings, 1)
    monkeypatch.setattr(Learner, "step", step)
    await train_until(settings, 1)
    (rejection,) = payloads(await records(kafka, REJECTED, "crashing"))
    assert (rejection.trajectory_id, rejection.reason) == ("crashing/poison/0", Reason.CRASHED)
    (trained,) = payloads(await records(kafka, STEPS, "crashing"))
    assert trained.groups[0].group_id == "crashing/sound"
