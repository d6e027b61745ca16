import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.events import VersionSpan
from headrace.schemas.records.trajectory import Segment
from headrace.trainer.batches.advantages import shuffle_advantages
from headrace.trainer.batches.batch import Batch, make_batch
from headrace.trainer.batches.packing import pack
from headrace.trainer.batches.update import Update
from headrace.trainer.config import TrainerConfig
from headrace.trainer.learning.divergence import TrainingDiverged
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.plausibility import ImplausibleLogprobs, PlausibilitySettings
from headrace.trainer.losses.registry import LOSSES
from headrace.trainer.losses.settings import CorrectionSettings, KlSettings, LossSettings
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.weights.canary import max_error
from tests.trainer.builders import UNCHECKED, admitted, off_policy_batch, segment, tiny_model, trajectory


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def config_of(directory, *, learning_rate=1e-3, **settings):
    settings.setdefault("optimizer", OptimizerSettings(learning_rate=learning_rate))
    settings.setdefault("plausibility", UNCHECKED)
    return TrainerConfig("localhost:1", "run", directory, directory / "checkpoints", "file:///nowhere", **settings)


def learner_of(directory, **settings):
    return Learner(load_model(directory), config_of(directory, **settings).learner)


def on_policy_batch(learner):
    """A batch whose recorded log-probabilities are the learner's own."""
    parts = [segment("cc" + "S" * n + "c" * n, vocabulary=41) for n in range(1, 9)]
    batch = make_batch(
        [admitted("g", *(trajectory(f"t{i}", part) for i, part in enumerate(parts)), advantages=[1, -1] * 4)]
    )
    with torch.no_grad():
        logprobs = token_logprobs(learner.model, batch.packed).logprobs.numpy()
    return Batch(batch.packed, logprobs, batch.advantages, batch.versions, batch.trajectories, batch.rewards)


def weights_of(learner):
    return [parameter.detach().clone() for parameter in learner.model.parameters()]


def test_on_policy_the_metrics_show_no_mismatch(directory):
    learner = learner_of(directory)
    metrics = learner.step(on_policy_batch(learner), 0)
    assert metrics["importance_ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["effective_sample_size"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["mismatch_logprob_max"] < 1e-4
    assert (metrics["staleness_max"], metrics["staleness_zero"]) == (0.0, 1.0)
    assert (metrics["tokens_trained"], metrics["trajectories"], metrics["sequences"]) == (36.0, 8.0, 8.0)
    assert 0 < metrics["entropy"] < math.log(50)
    assert metrics["grad_norm"] > 0


def test_a_step_raises_good_actions_and_lowers_bad_ones(directory):
    learner = learner_of(directory, learning_rate=1e-3)
    batch = on_policy_batch(learner)
    learner.step(batch, 0)
    with torch.no_grad():
        after = token_logprobs(learner.model, batch.packed).logprobs.numpy()
    assert float(((after - batch.behaviour_logprobs) * batch.advantages).sum()) > 0


CORRECTIONS = {
    "stale": CorrectionSettings(max_token_staleness=2),
    "truncate": CorrectionSettings(importance="truncate"),
    "mask": CorrectionSettings(importance="mask", level="geometric_mean", ratio_min=0.01, ratio_max=50),
}


@pytest.mark.parametrize(
    ("loss", "kind"),
    [(loss, kind) for loss in sorted(LOSSES) for kind in CORRECTIONS if loss != "decoupled" or kind == "stale"],
)
def test_the_number_of_passes_changes_memory_and_not_the_gradient(directory, loss, kind):
    batch = off_policy_batch()
    one, other = (
        learner_of(directory, loss=loss, correction=CORRECTIONS[kind], max_tokens_per_pass=size).step(batch, 3)
        for size in (8192, 10)
    )
    assert one["grad_norm"] > 0
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-4, abs=1e-6)
    assert 0 < one["tokens_kept"] == other["tokens_kept"]


@pytest.mark.parametrize("reference", ["base", "behaviour"])
def test_a_trajectory_too_long_for_a_pass_is_divided_and_its_loss_is_still_of_the_whole(directory, reference):
    batch = off_policy_batch()
    base = load_model(tiny_model(directory / "base", seed=1)) if reference == "base" else None

    def step(max_tokens):
        config = config_of(
            directory,
            loss="gspo",
            loss_settings=LossSettings(clip_low=0.5, clip_high=2.0),
            correction=CORRECTIONS["stale"],
            kl=KlSettings(0.1, reference),
            max_tokens_per_pass=max_tokens,
        )
        learner, passes = Learner(load_model(directory), config.learner, base), []
        run = learner._policy.logprobs
        learner._policy.logprobs = lambda packed: passes.append(len(packed.token_ids)) or run(packed)
        return learner.step(batch, 3), passes

    longest = int(batch.packed.lengths.max())
    (whole, once), (divided, often) = step(8192), step(longest)
    assert (len(once), max(often)) == (1, longest)
    for name in ("loss", "grad_norm", "kl_reference", "clip_fraction_low", "clip_fraction_high", "entropy", "kl_k3"):
        assert divided[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name
    assert whole["grad_norm"] > 1e-3
    assert whole["clip_fraction_low"] + whole["clip_fraction_high"] > 0


def test_substeps_hold_whole_trajectories():
    batch = off_policy_batch()
    update = Update(batch, batch.behaviour_logprobs, np.ones_like(batch.behaviour_logprobs))
    owners = [set(part.batch.trajectories.tolist()) for part in update.parts(3)]
    assert owners == [{0, 1, 2}, {3, 4, 5}, {6, 7}]
    assert sum(len(part.weights) for part in update.parts(3)) == len(batch.packed.targets)
    assert len(list(update.parts(100))) == 8


def test_masked_tokens_are_counted_by_reason_and_change_nothing(directory):
    learner = learner_of(directory, correction=CorrectionSettings(importance="mask", max_token_staleness=2))
    metrics = learner.step(off_policy_batch(), 3)
    kinds = ["tokens_kept", "tokens_masked_stale", "tokens_masked_ratio"]
    assert sum(metrics[kind] for kind in kinds) == metrics["tokens_trained"]
    assert metrics["tokens_masked_stale"] == (off_policy_batch().versions < 1).sum()


def test_a_completely_masked_batch_makes_no_update(directory):
    learner = learner_of(directory, correction=CorrectionSettings(max_token_staleness=1))
    batch = off_policy_batch()
    learner.step(batch, 3)  # gives the optimiser a momentum
    before = weights_of(learner)
    metrics = learner.step(batch, 100)
    assert (metrics["tokens_kept"], metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(learner), strict=True))


def test_on_policy_a_correction_and_decoupling_change_nothing(directory):
    batch = on_policy_batch(learner_of(directory))
    norms = [
        learner_of(directory, **settings).step(batch, 0)["grad_norm"]
        for settings in (
            {"loss": "dapo"},
            {"loss": "decoupled"},
            {"loss": "dapo", "correction": CorrectionSettings(importance="truncate")},
            {"loss": "dapo", "correction": CorrectionSettings(importance="mask", level="product")},
        )
    ]
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


def test_the_kl_penalty_pulls_towards_the_reference(directory):
    reference = load_model(directory)
    learner = Learner(
        load_model(tiny_model(directory / "other", seed=1)),
        config_of(directory, kl=KlSettings(0.1), learning_rate=1e-2).learner,
        reference,
    )
    batch = on_policy_batch(learner)
    idle = replace(batch, advantages=np.zeros_like(batch.advantages))
    divergences = [learner.step(idle, 0)["kl_reference"] for _ in range(8)]
    assert divergences[-1] < divergences[0] - 0.1
    assert all(
        torch.equal(a, b) for a, b in zip(reference.parameters(), load_model(directory).parameters(), strict=True)
    )
    near = learner_of(directory, kl=KlSettings(0.1, "behaviour"))
    assert near.step(on_policy_batch(near), 0)["kl_reference"] == pytest.approx(0.0, abs=1e-5)


def test_a_missing_or_unused_reference_is_refused(directory):
    with pytest.raises(ValueError, match="kl: the base model is given exactly if"):
        learner_of(directory, kl=KlSettings(0.1))
    with pytest.raises(ValueError, match="kl: the base model is given exactly if"):
        Learner(load_model(directory), config_of(directory).learner, load_model(directory))


def test_the_loss_is_divided_by_trajectories_times_the_constant_length(directory):
    batch = on_policy_batch(learner_of(directory))
    losses = [
        learner_of(directory, loss="dr_grpo", constant_length=length).step(batch, 0)["loss"] for length in (10, 20)
    ]
    assert losses[0] == pytest.approx(2 * losses[1], rel=1e-4)
    assert losses[0] == pytest.approx(-float(batch.advantages.sum()) / (8 * 10), abs=1e-5)


def test_substeps_are_several_updates_on_disjoint_parts(directory):
    learner = learner_of(directory, substeps=4)
    metrics = learner.step(on_policy_batch(learner), 0)
    assert {int(value) for name, value in learner.optimizer_tensors().items() if name.startswith("step/")} == {4}
    assert metrics["tokens_trained"] == 36.0
    assert metrics["substep_ratio_max"] > 1.0001  # later parts see the weights that earlier ones made


def test_tokens_are_trained_at_the_temperature_they_were_sampled_at(directory):
    learner, chance = learner_of(directory), np.random.default_rng(0)
    parts = [
        segment("cc" + "S" * 9, vocabulary=41, temperatures=chance.choice([0.6, 1.0, 1.3], 9).tolist())
        for _ in range(4)
    ]
    batch = make_batch([admitted("g", *(trajectory(f"t{i}", part) for i, part in enumerate(parts)))])
    with torch.no_grad():
        plain = (
            AutoModelForCausalLM.from_pretrained(directory)(torch.from_numpy(batch.packed.token_ids[:11])[None])
            .logits[0]
            .double()
        )
    logits = plain[1:-1] / torch.from_numpy(batch.packed.temperatures[:9, None])
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(batch.packed.token_ids[2:11, None]))[:, 0]
    found = learner._evaluate(batch).logprobs
    assert found[:9] == pytest.approx(expected.numpy(), abs=1e-4)
    assert learner.step(replace(batch, behaviour_logprobs=found), 0)["mismatch_kl"] < 1e-9


@pytest.mark.parametrize("substeps", [1, 2, 8])
def test_a_bit_identical_engine_shows_no_mismatch_with_any_number_of_substeps(directory, substeps):
    learner = learner_of(directory, substeps=substeps, learning_rate=3e-2)
    batch = on_policy_batch(learner)
    batch = replace(batch, behaviour_logprobs=learner._evaluate(batch).logprobs)
    metrics = learner.step(batch, 0)
    expected = {"mismatch_kl": 0.0, "mismatch_logprob_max": 0.0, "kl_k1": 0.0, "kl_k3": 0.0, "chi2": 0.0}
    expected |= {"importance_ratio_mean": 1.0, "importance_ratio_max": 1.0, "effective_sample_size": 1.0}
    assert {name: metrics[name] for name in expected} == expected
    assert ("substep_kl" in metrics) == (substeps > 1)
    assert substeps == 1 or metrics["substep_kl"] > 0.01


@pytest.mark.parametrize("substeps", [1, 4])
def test_the_engines_mismatch_is_measured_before_the_first_update(directory, substeps):
    learner = learner_of(directory, substeps=substeps)
    batch = on_policy_batch(learner)
    before = learner._evaluate(batch).logprobs
    off = np.random.default_rng(1).normal(0, 0.1, len(before)).astype(np.float32)
    metrics = learner.step(replace(batch, behaviour_logprobs=before - off), 0)
    assert metrics["mismatch_kl"] == pytest.approx(float((np.exp(off) - 1 - off).mean()), rel=1e-3)
    assert metrics["chi2"] == pytest.approx(float(np.exp(2 * off).mean() - 1), rel=1e-3)


def test_a_single_update_computes_no_extra_pass(directory):
    for settings, count in (({}, 1), ({"substeps": 2}, 3), ({"loss": "decoupled"}, 2)):
        learner, passes = learner_of(directory, **settings), []
        run = learner._policy.logprobs
        learner._policy.logprobs = lambda packed, run=run, passes=passes: passes.append(1) or run(packed)
        learner.step(on_policy_batch(learner), 0)
        assert len(passes) == count, settings


@pytest.mark.parametrize("substeps", [1, 4])
@pytest.mark.parametrize("reference", ["base", "behaviour"])
def test_the_kl_from_the_reference_by_hand(directory, reference, substeps):
    """KL(π ‖ reference) of the policy before the step, from another policy's samples: each weighs ρ."""
    batch, base = off_policy_batch(), None
    base = load_model(tiny_model(directory / "base", seed=1)) if reference == "base" else None
    config = config_of(directory, kl=KlSettings(0.1, reference), substeps=substeps)
    learner = Learner(load_model(directory), config.learner, base)
    policy, behaviour = (
        learner._evaluate(batch).logprobs.astype(np.float64),
        batch.behaviour_logprobs.astype(np.float64),
    )
    compared = behaviour if base is None else learner._evaluate(batch, learner._reference).logprobs
    expected = (np.exp(policy - behaviour) * (policy - compared)).mean()
    assert learner.step(batch, 3)["kl_reference"] == pytest.approx(expected, rel=1e-4)


def test_the_same_batch_gives_the_same_bits(directory):
    learners = [learner_of(directory), learner_of(directory)]
    batch = on_policy_batch(learners[0])
    for learner in learners:
        for version in range(3):
            learner.step(batch, version)
    assert all(torch.equal(a, b) for a, b in zip(*map(weights_of, learners), strict=True))


def test_a_restored_optimiser_continues_bit_identically(directory, tmp_path):
    learner = learner_of(directory)
    batch = on_policy_batch(learner)
    learner.step(batch, 0)
    learner.model.save_pretrained(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in learner.optimizer_tensors().items()}
    learner.step(batch, 1)

    restored = Learner(load_model(tmp_path), config_of(directory).learner)
    restored.restore_optimizer(tensors)
    restored.step(batch, 1)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(learner), weights_of(restored), strict=True))


def test_another_models_optimiser_is_refused(directory):
    with pytest.raises(ValueError, match="checkpoint_dir"):
        learner_of(directory).restore_optimizer({"rng": torch.get_rng_state(), "exp_avg/other.weight": torch.zeros(1)})


@pytest.mark.parametrize("settings", [{}, {"substeps": 3}, {"loss": "decoupled"}], ids=str)
def test_implausible_records_are_found_before_any_update(directory, settings):
    learner = learner_of(directory, plausibility=PlausibilitySettings(), **settings)
    batch = on_policy_batch(learner)
    before = weights_of(learner)
    for poison, lag in ((-20.0, 3), (0.0, 0)):
        recorded = np.where(np.isin(batch.trajectories, (6, 7)), np.float32(poison), batch.behaviour_logprobs)
        with pytest.raises(ImplausibleLogprobs) as raised:
            learner.step(replace(batch, behaviour_logprobs=recorded), lag)
        assert raised.value.trajectories == (6, 7)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(learner), strict=True))
    learner.step(batch, 0)
    untouched = learner_of(directory, **settings)
    untouched.step(batch, 0)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(untouched), weights_of(learner), strict=True))


def test_a_loss_that_is_not_finite_changes_nothing(directory):
    learner = learner_of(directory)
    batch = on_policy_batch(learner)
    before = weights_of(learner)
    poisoned = Batch(
        batch.packed,
        np.full_like(batch.behaviour_logprobs, np.nan),
        batch.advantages,
        batch.versions,
        batch.trajectories,
        batch.rewards,
    )
    with pytest.raises(TrainingDiverged, match="gradient norm nan"):
        learner.step(poisoned, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(learner), strict=True))


def test_canaries_are_the_policys_own_and_distinguish_policies(directory):
    learner = learner_of(directory)
    canaries = learner.canaries(seed=3)
    packed = pack([(canary.token_ids, [0] + [1] * 31) for canary in canaries])

    def engine():
        with torch.no_grad():
            return token_logprobs(learner.model, packed).logprobs.view(4, 31).tolist()

    assert max_error(canaries, engine()) < 1e-5
    learner.step(on_policy_batch(learner), 0)
    assert max_error(canaries, engine()) > 1e-3


def attempts_at_a_bandit(learner, generator, version, count=16):
    """Single tokens sampled after one prompt: the smallest task there is. Token 7 is right."""
    prompt = [1, 2, 3]
    every_token = pack([([*prompt, token], [0, 0, 0, 1]) for token in range(50)])
    with torch.no_grad():
        logprobs = token_logprobs(learner.model, every_token).logprobs
    tokens = torch.multinomial(logprobs.exp(), count, replacement=True, generator=generator).tolist()
    attempts = [
        trajectory(
            f"t{number:02d}",
            Segment(
                token_ids=[*prompt, token],
                loss_mask=[0, 0, 0, 1],
                logprobs=[float(logprobs[token])],
                version_spans=[VersionSpan(version=version, start=0, end=1)],
            ),
        )
        for number, token in enumerate(tokens)
    ]
    return attempts, [float(token == 7) for token in tokens], float(logprobs[7].exp())


@pytest.mark.parametrize("loss", ["cispo", "dr_grpo"])
@pytest.mark.parametrize("control", [False, True], ids=["rewarded", "control"])
def test_it_learns_rewarded_actions_and_nothing_from_shuffled_advantages(directory, loss, control):
    learner = learner_of(directory, loss=loss, learning_rate=3e-3, constant_length=1)
    with torch.no_grad():
        learner.model.get_input_embeddings().weight.mul_(0.1)  # near uniform: token 7 is seen, and rarely
    generator = torch.Generator().manual_seed(0)
    chances = []
    for version in range(60):
        attempts, rewards, chance = attempts_at_a_bandit(learner, generator, version)
        chances.append(chance)
        if len(set(rewards)) == 1:
            continue
        mean = sum(rewards) / len(rewards)
        groups = [admitted("g", *attempts, advantages=[reward - mean for reward in rewards])]
        if control:
            groups = shuffle_advantages(groups, seed=0, step=version)
        learner.step(make_batch(groups), version)
    if control:
        assert chances[-1] < 0.5
    else:
        assert chances[0] < 0.2
        assert chances[-1] > 0.9
