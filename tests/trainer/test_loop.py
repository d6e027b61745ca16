"""The trainer on a real log: steps, records, restarts."""

import asyncio
import gc
import shutil
from dataclasses import replace
from statistics import stdev

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, BUDGET, REJECTED, STEPS, WEIGHTS
from headrace.trainer.admission.bounds import AdmissionBounds
from headrace.trainer.announcements.announcement import announcement
from headrace.trainer.batches.packing import pack
from headrace.trainer.checkpoints.checkpoint import CheckpointError, load_newest
from headrace.trainer.learning.alarms import AlarmSettings
from headrace.trainer.learning.metric_registry import metric_named
from headrace.trainer.loop import TrainerConfig, run_trainer
from headrace.trainer.losses.settings import KlSettings
from headrace.trainer.model.architectures import UnsupportedModel
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.publishing.announcer import Announcer, TrainerReplaced
from headrace.trainer.retries.broker import LogUnavailable
from headrace.trainer.weights.canary import max_error
from headrace.trainer.weights.published import fetch_manifest
from headrace.trainer.weights.signing import SigningKey, is_signed_by, load_or_create_key
from tests.trainer.builders import UNCHECKED, member, segment, training_group, trajectory
from tests.trainer.feed import attempt, feed_groups, feed_trajectories, records, send_groups
from tests.trainer.running import payloads, train_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def config(kafka, tmp_path, base, request):
    def _config(run, **settings):
        known = {"groups_per_step": 2, "max_staleness": 100, "threads": 1, "plausibility": UNCHECKED}
        places = {"checkpoint_dir": tmp_path / "checkpoints", "store_url": f"file://{tmp_path}/objects"}
        return TrainerConfig(kafka, run, base, **(places | known | settings))

    return _config


async def test_three_steps_are_trained_and_published(kafka, config, tmp_path):
    groups = await feed_groups(kafka, list("abcdefg"), run="three")
    settings = config("three")
    await train_until(settings, 3)

    steps: list[Step] = payloads(await records(kafka, STEPS, "three"))
    weights: list[Weights] = payloads(await records(kafka, WEIGHTS, "three"))
    assert [step.step for step in steps] == [1, 2, 3]
    assert [(each.version, each.parent, each.step) for each in weights] == [
        (0, None, 0),
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 3),
    ]

    trained = [(group.group_id, group.trajectory_ids) for step in steps for group in step.groups]
    assert trained == [(each.group_id, [one.trajectory_id for one in each.members]) for each in groups[:6]]
    assert steps[0].groups[0].trajectories == [one.trajectory for one in groups[0].members]
    assert {step.config_sha256 for step in steps} == {settings.sha256()}
    assert len({step.data_sha256 for step in steps}) == 3
    expected = sum(one.sampled_tokens for group in groups[:2] for one in group.members)
    assert steps[0].metrics["tokens_trained"] == expected
    assert steps[2].metrics["staleness_max"] == 2.0
    assert {"entropy", "grad_norm", "kl_k3", "effective_sample_size", "seconds_train"} <= set(steps[0].metrics)

    store = ObjectStore(settings.store_url)
    for pointer in weights:
        manifest = await fetch_manifest(store, pointer)
        ((path, sha256),) = manifest.files.items()
        target = tmp_path / "served" / str(pointer.version)
        await store.download(path, target / "model.safetensors", sha256=sha256, size=manifest.sizes[path])
        (target / "config.json").write_text((settings.model_dir / "config.json").read_text())
        served = load_model(target)
        packed = pack([(each.token_ids, [0] + [1] * 31) for each in manifest.canaries])
        with torch.no_grad():
            assert max_error(manifest.canaries, token_logprobs(served, packed).logprobs.view(4, 31).tolist()) < 1e-5


async def test_members_not_admitted_are_rejected_with_the_next_step(kafka, config):
    await feed_groups(kafka, ["old"], run="admission", version=0)
    (mixed_attempt, foreign) = attempt("fits", run="admission", seed=1), attempt("foreign", run="elsewhere", seed=2)
    places = await feed_trajectories(kafka, [mixed_attempt, foreign])
    mixed = training_group(
        "mixed", [member(each, at=places[each.trajectory_id]) for each in (mixed_attempt, foreign)], run="admission"
    )
    lost = member(attempt("lost", run="admission", seed=3), at=places["fits"])
    await send_groups(kafka, [mixed, training_group("lost", [lost], run="admission")])
    await feed_groups(kafka, ["late"], run="admission", version=0)
    await feed_groups(kafka, ["new"], run="admission", version=1)

    await train_until(config("admission", groups_per_step=1, max_staleness=0), 2)
    steps: list[Step] = payloads(await records(kafka, STEPS, "admission"))
    rejected: list[Rejection] = payloads(await records(kafka, REJECTED, "admission"))
    assert [[group.group_id for group in step.groups] for step in steps] == [["admission/old"], ["admission/new"]]
    assert all(each.stage == Stage.ADMISSION for each in rejected)
    assert {each.trajectory_id: each.reason for each in rejected} == {
        "fits": Reason.STALE,
        "foreign": Reason.STALE,
        "lost": Reason.STALE,
        **{f"admission/late/{number}": Reason.STALE for number in range(4)},
    }
    assert len(rejected) == 7


async def test_rejections_are_published_once_without_a_further_step_and_across_a_restart(kafka, config):
    await feed_groups(kafka, ["first", "stale"], run="starved")
    settings = config("starved", groups_per_step=1, max_staleness=0)
    for published in (4, 8):
        stop = asyncio.Event()
        task = asyncio.create_task(run_trainer(settings, stop=stop, ready=lambda: None))
        async with asyncio.timeout(120):
            while len(await records(kafka, REJECTED, "starved")) < published:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        stop.set()
        await asyncio.wait_for(task, 60)
        await feed_groups(kafka, ["stale too"], run="starved")
    rejected = await records(kafka, REJECTED, "starved")
    expected = [f"starved/{group}/{number}" for group in ("stale", "stale too") for number in range(4)]
    assert sorted(payload.trajectory_id for _, payload in rejected) == sorted(expected)
    assert len(await records(kafka, STEPS, "starved")) == 1


async def test_bounds_in_tokens_hold_and_ages_are_counted(kafka, config):
    await feed_groups(kafka, ["a", "b"], run="bounds", version=0)
    long = segment("c" * 60 + "S", versions=[0])
    places = await feed_trajectories(kafka, [trajectory("bounds/long", long, run="bounds")])
    only = member(trajectory("bounds/long", long, run="bounds"), at=places["bounds/long"])
    await send_groups(kafka, [training_group("bounds/long", [only], run="bounds")])
    await feed_groups(kafka, ["c", "fresh"], run="bounds", version=1)
    bounds = AdmissionBounds(stale_after=0, max_stale_share=0.5, max_segment_tokens=40)
    await train_until(config("bounds", groups_per_step=2, admission=bounds), 2)

    steps: list[Step] = payloads(await records(kafka, STEPS, "bounds"))
    assert [[group.group_id for group in step.groups] for step in steps] == [
        ["bounds/a", "bounds/b"],
        ["bounds/c", "bounds/fresh"],
    ]
    (rejection,) = payloads(await records(kafka, REJECTED, "bounds"))
    assert (rejection.trajectory_id, rejection.reason) == ("bounds/long", Reason.TOO_LONG)
    first, second = (step.metrics for step in steps)
    assert (first["admitted_age_0"], first["tokens_age_0"]) == (8, first["tokens_trained"])
    assert (second["admitted_age_0"], second["rejected"], second["rejected_age_1"]) == (8, 1, 1)
    undeclared = {name for name in first if metric_named(name) is None}
    assert not undeclared


async def test_the_budget_is_published_with_each_step_and_at_each_start(kafka, config):
    await feed_groups(kafka, list("abcdef"), run="granting")
    settings = config("granting", max_steps_ahead=1, steps=2)
    await train_until(settings, 2)
    published: list[Budget] = payloads(await records(kafka, BUDGET, "granting"))
    assert [(each.version, each.max_groups) for each in published] == [(0, 4), (1, 4), (2, 0)]
    await train_until(replace(settings, steps=None, max_steps_ahead=3), 3)
    again = await records(kafka, BUDGET, "granting")
    assert [(each.version, each.max_groups) for each in payloads(again)][3:] == [(2, 8), (3, 8)]
    assert len({id for id, _ in again}) == len(again)


async def test_an_unresolved_member_does_not_reject_its_group(kafka, config):
    fits, foreign = attempt("fits2", run="members", seed=1), attempt("foreign2", run="elsewhere", seed=2)
    places = await feed_trajectories(kafka, [fits, foreign])
    members = [member(each, at=places[each.trajectory_id]) for each in (fits, foreign)]
    members.append(member(attempt("lost2", run="members", seed=3), at=places["fits2"]))
    await send_groups(kafka, [training_group("members/g", members, run="members")])
    await train_until(config("members", groups_per_step=1), 1)
    (step,) = payloads(await records(kafka, STEPS, "members"))
    assert step.groups[0].trajectory_ids == ["fits2"]
    assert {each.trajectory_id: each.reason for each in payloads(await records(kafka, REJECTED, "members"))} == {
        "foreign2": Reason.OTHER_RUN,
        "lost2": Reason.UNRESOLVED,
    }


async def test_the_control_trains_the_same_tokens_on_shuffled_advantages(kafka, config, tmp_path):
    groups = await feed_groups(kafka, ["a", "b"], run="honest")
    await feed_same(kafka, groups, run="control")
    await train_until(config("honest"), 1)
    await train_until(config("control", shuffle_advantages=True, checkpoint_dir=tmp_path / "control"), 1)
    (honest,) = payloads(await records(kafka, STEPS, "honest"))
    (control,) = payloads(await records(kafka, STEPS, "control"))
    assert control.data_sha256 != honest.data_sha256
    assert control.config_sha256 != honest.config_sha256
    for name in ("tokens_trained", "reward_mean", "kl_k3", "entropy"):
        assert control.metrics[name] == honest.metrics[name]
    assert control.metrics["loss"] != honest.metrics["loss"]


async def test_advantages_are_scaled_as_the_loss_asks_and_the_kl_reference_is_the_base_model(kafka, config):
    groups = await feed_groups(kafka, list("abcd"), run="scaled")
    settings = config("scaled", loss="grpo", kl=KlSettings(coefficient=0.1))
    await train_until(settings, 1)
    await train_until(settings, 2)  # a restart loads version 1; the reference stays version 0
    first, second = payloads(await records(kafka, STEPS, "scaled"))
    members = [one for group in groups[:2] for one in group.members]
    tokens = sum(one.sampled_tokens for one in members)
    unscaled = sum(abs(one.advantage) * one.sampled_tokens for one in members) / tokens
    assert first.metrics["advantage_abs_mean"] == pytest.approx(unscaled / stdev([0, 1, 2, 3]), rel=1e-5)
    assert first.metrics["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert abs(second.metrics["kl_reference"]) > 1e-5


async def test_after_the_last_step_it_keeps_running_without_reading(kafka, config):
    await feed_groups(kafka, list("abcd"), run="limited")
    stop, announced = asyncio.Event(), asyncio.Event()

    def reached(arrow, version):
        if (arrow, version) == ("announced", 1):
            announced.set()

    task = asyncio.create_task(run_trainer(config("limited", steps=1), stop=stop, ready=lambda: None, reached=reached))
    await asyncio.wait_for(announced.wait(), 120)
    await asyncio.sleep(1)
    assert not task.done()
    stop.set()
    await asyncio.wait_for(task, 60)
    assert len(await records(kafka, STEPS, "limited")) == 1


async def test_an_alarm_is_raised_once_per_episode_also_across_a_restart(kafka, config):
    await feed_groups(kafka, list("abcdefgh"), run="alarming")
    alarms = AlarmSettings(**dict.fromkeys(AlarmSettings().bounds()), staleness_p95_above=-1.0)  # beyond it, always
    settings = config("alarming", alarms=alarms)
    await train_until(settings, 2)
    await train_until(settings, 4)
    (alert,) = payloads(await records(kafka, ALERTS, "alarming"))
    assert isinstance(alert, Alert)
    assert (alert.kind, alert.severity, alert.details["step"]) == ("staleness_p95_above", Severity.WARNING, 1)


async def test_a_base_model_with_nan_is_never_published(kafka, config):
    plain = config("broken")
    model = load_model(plain.model_dir)
    with torch.no_grad():
        model.get_output_embeddings().weight[0, 0] = float("nan")
    model.save_pretrained(plain.checkpoint_dir.parent / "broken")
    with pytest.raises(UnsupportedModel, match="not finite"):
        await train_until(replace(plain, model_dir=plain.checkpoint_dir.parent / "broken"), 0)
    assert await records(kafka, WEIGHTS, "broken") == []
    assert load_newest(plain.checkpoint_dir, "broken") is None


async def test_checkpoints_and_log_must_belong_together(kafka, config, tmp_path):
    await feed_groups(kafka, list("abcd"), run="apart")
    settings = config("apart")
    await train_until(settings, 2)

    with pytest.raises(CheckpointError, match="choose another run"):
        await train_until(replace(settings, checkpoint_dir=tmp_path / "empty"), 3)
    (settings.checkpoint_dir / "00000002" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="do not belong together"):
        await train_until(settings, 3)


async def test_a_trainer_started_by_mistake_is_refused_and_the_running_one_continues(kafka, config, tmp_path):
    await feed_groups(kafka, list("ab"), run="healthy")
    settings = config("healthy", signing_key=tmp_path / "key.pem")
    stop, announced = asyncio.Event(), {1: asyncio.Event(), 2: asyncio.Event()}

    def reached(effect, version):
        if effect == "announced" and version in announced:
            announced[version].set()

    healthy = asyncio.create_task(run_trainer(settings, stop=stop, ready=lambda: None, reached=reached))
    await asyncio.wait_for(announced[1].wait(), 120)
    stale = tmp_path / "copy"
    shutil.copytree(settings.checkpoint_dir, stale)
    (stale / ".lock").unlink()
    with pytest.raises(CheckpointError, match="is empty"):
        await train_until(replace(settings, checkpoint_dir=tmp_path / "empty"), 9)
    await feed_groups(kafka, list("cdef"), run="healthy")
    await asyncio.wait_for(announced[2].wait(), 120)
    shutil.rmtree(stale / "00000001")
    with pytest.raises(CheckpointError, match="do not belong together"):
        await train_until(replace(settings, checkpoint_dir=stale), 9)
    await asyncio.sleep(1)
    assert not healthy.done()
    stop.set()
    await asyncio.wait_for(healthy, 60)


async def test_a_forged_version_in_the_log_does_not_stop_a_trainer(kafka, config, tmp_path):
    await feed_groups(kafka, list("abcd"), run="forged")
    settings = config("forged", signing_key=tmp_path / "key.pem")
    await train_until(settings, 1)
    (newest,) = [each for each in payloads(await records(kafka, WEIGHTS, "forged")) if each.version == 1]
    thief = SigningKey(Ed25519PrivateKey.generate())
    beyond = newest.model_copy(update={"version": 2**62, "parent": 2**62 - 1})
    async with open_producer(kafka) as producer:
        for forged in (beyond, beyond.model_copy(update={"signature": ""}), thief.sign(beyond)):
            await (await send(producer, WEIGHTS, announcement(forged, run="forged").message()))
    await train_until(settings, 2)
    assert [step.step for step in payloads(await records(kafka, STEPS, "forged"))] == [1, 2]


async def test_a_new_key_signs_the_version_that_the_old_one_signed_last(kafka, config, tmp_path):
    await feed_groups(kafka, list("ab"), run="rotated")
    settings = config("rotated", signing_key=tmp_path / "old.pem")
    await train_until(settings, 1)
    stop = asyncio.Event()
    again = replace(settings, signing_key=tmp_path / "new.pem")
    await asyncio.wait_for(run_trainer(again, stop=stop, ready=stop.set), 120)
    published = [each for each in payloads(await records(kafka, WEIGHTS, "rotated")) if each.version == 1]
    keys = [load_or_create_key(tmp_path / name).public for name in ("old.pem", "new.pem")]
    assert [each.signed_by for each in published] == keys
    assert all(is_signed_by(each, key) for each, key in zip(published, keys, strict=True))
    assert len({each.sha256 for each in published}) == 1


async def fence_the_first(kafka):
    """Run two announcers of a run, the first of which publishes again after the second."""
    alert = Alert(run="zombie", source="t", kind="k", severity=Severity.WARNING, message="m")
    first, second = (Announcer(kafka, "zombie", answer_s=30.0) for _ in range(2))
    try:
        await first.announce([announcement(alert, run="zombie")])
        await second.announce([announcement(alert, run="zombie")])
        with pytest.raises(LogUnavailable, match=r"ProducerFenced|InvalidProducerEpoch"):
            await first.announce([announcement(alert, run="zombie")])
        with pytest.raises(TrainerReplaced, match="zombie"):
            await first.announce([announcement(alert, run="zombie")])
        await second.announce([announcement(alert, run="zombie")])
    finally:
        await first.close()
        await second.close()


async def test_a_second_trainer_of_a_run_fences_the_first(kafka):
    await fence_the_first(kafka)
    # The fenced client leaves exceptions that nobody retrieves. Were they collected while pytest parses some module,
    # their traceback would be parsed inside that parse, which Python 3.11 does not survive.
    gc.collect()
    assert len(await records(kafka, ALERTS, "zombie")) == 3


async def feed_same(kafka: str, groups, *, run: str) -> None:
    """The same groups, over the same tokens, for another run."""
    from headrace.schemas.topics import TRAJECTORIES
    from headrace.schemas.wire import decode

    wanted = {each.trajectory_id for group in groups for each in group.members}
    attempts = {}
    async for record in read_to_end(kafka, TRAJECTORIES):
        _, found = decode(record.headers, record.value)
        attempts[found.trajectory_id] = found
    renamed = {
        name: each.model_copy(update={"started": each.started.model_copy(update={"run": run})})
        for name, each in attempts.items()
        if name in wanted
    }
    places = await feed_trajectories(kafka, renamed.values())
    await send_groups(
        kafka,
        [
            group.model_copy(
                update={
                    "run": run,
                    "group_id": f"{run}/{group.group_id}",
                    "members": [
                        each.model_copy(update={"trajectory": places[each.trajectory_id]}) for each in group.members
                    ],
                }
            )
            for group in groups
        ],
    )
