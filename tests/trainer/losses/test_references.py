"""headrace's losses compared with those of TRL and verl, as released, on random batches in float32.

The references are installed once, without their dependencies, into a folder of the cache, and compute all cases in one
process of their own, because their imports would change transformers' behaviour in this one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.trainer.losses.settings import CorrectionSettings
from tests.conftest import CACHE
from tests.trainer.batches.test_advantages import trained_by_grpo
from tests.trainer.losses.builders import UNCORRECTED, Token, columns, evaluate, update_of
from tests.trainer.losses.random_batch import RandomBatch, random_batch
from tests.trainer.losses.references import references

ROOT = Path(__file__).parents[3]
SEEDS = range(3)


class Case:
    """A loss of headrace, with the reference that must agree."""

    def __init__(
        self,
        name: str,
        ours: dict,
        reference: str,
        options: dict,
        *,
        correction: CorrectionSettings = UNCORRECTED,
        weights: dict | None = None,
        masked: bool = False,
        spread: float = 0.3,
        advantages: float | None = None,
    ) -> None:
        self.name, self.ours, self.correction, self.spread, self.advantages = name, ours, correction, spread, advantages
        self.asked = {
            "reference": reference,
            "options": options,
            "weights": weights,
            "masked": masked,
            "proximal": name == "decoupled" or correction.importance != "none",
            "spread": spread,
            "advantages": advantages,
        }


TOKEN, SEQUENCE, CONSTANT = "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"
NO_DUAL_CLIP = {"clip_ratio_c": 1e9}


def verl_clip(mode: str, low: float = 0.2, high: float = 0.2, **options: float) -> dict:
    clips = {"clip_ratio_low": low, "clip_ratio_high": high}
    return {"loss": "vanilla", "mode": mode} | clips | NO_DUAL_CLIP | options


TRUNCATE, PRODUCT = CorrectionSettings(importance="truncate"), CorrectionSettings("truncate", "product", ratio_max=1.5)
MASK = CorrectionSettings(importance="mask", ratio_min=0.7, ratio_max=1.4)
NO_CAP = {"threshold": 1e9}

CASES = {
    "trl grpo": Case("grpo", {}, "trl", {"loss_type": "grpo"}),
    "trl grpo, other clips": Case(
        "grpo", {"clip_low": 0.1, "clip_high": 0.4}, "trl", {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.4}
    ),
    "trl dr_grpo": Case("dr_grpo", {}, "trl", {"loss_type": "dr_grpo"}),
    "trl dapo": Case("dapo", {}, "trl", {"loss_type": "dapo", "epsilon_high": 0.28}),
    "trl cispo": Case("cispo", {"normaliser": "token_mean"}, "trl", {"loss_type": "cispo", "epsilon_high": 5.0}),
    "trl cispo, cap 1.2": Case(
        "cispo", {"normaliser": "token_mean", "ratio_max": 1.2}, "trl", {"loss_type": "cispo", "epsilon_high": 1.2}
    ),
    "trl gspo": Case(
        "gspo", {}, "trl", {"loss_type": "grpo", "level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        spread=1e-3,
    ),
    "trl grpo, truncated": Case("grpo", {}, "trl", {"loss_type": "grpo"}, correction=TRUNCATE, weights={}),
    "trl dapo, truncated product": Case(
        "dapo", {}, "trl", {"loss_type": "dapo", "epsilon_high": 0.28}, correction=PRODUCT,
        weights={"level": "sequence", "threshold": 1.5},
    ),
    "trl cispo, truncated": Case(
        "cispo", {"normaliser": "token_mean"}, "trl", {"loss_type": "cispo", "epsilon_high": 5.0}, correction=TRUNCATE,
        weights={},
    ),
    "verl clip, sequence mean": Case("grpo", {}, "verl", verl_clip(SEQUENCE)),
    "verl clip, constant length": Case("dr_grpo", {}, "verl", verl_clip(CONSTANT)),
    "verl clip, token mean": Case("dapo", {}, "verl", verl_clip(TOKEN, high=0.28)),
    "verl dual clip": Case("dapo", {"dual_clip": 1.4}, "verl", verl_clip(TOKEN, high=0.28, clip_ratio_c=1.4)),
    "verl cispo": Case(
        "cispo", {"normaliser": "token_mean"}, "verl",
        {"loss": "cispo", "mode": TOKEN, "clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
    ),
    "verl gspo": Case(
        "gspo", {}, "verl", {"loss": "gspo", "mode": SEQUENCE, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
        spread=1e-3,
    ),
    "verl gspo, token mean": Case(
        "gspo", {"normaliser": "token_mean", "clip_low": 0.1, "clip_high": 0.1}, "verl",
        {"loss": "gspo", "mode": TOKEN, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1},
    ),
    "verl decoupled": Case("decoupled", {}, "verl", verl_clip(TOKEN), weights=NO_CAP),
    "verl clip, truncated": Case("dapo", {}, "verl", verl_clip(TOKEN, high=0.28), correction=TRUNCATE, weights={}),
    "verl clip, truncated product": Case(
        "dr_grpo", {}, "verl", verl_clip(CONSTANT), correction=PRODUCT, weights={"level": "sequence", "threshold": 1.5}
    ),
    "verl gspo, truncated product": Case(
        "gspo", {}, "verl", {"loss": "gspo", "mode": SEQUENCE, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
        correction=PRODUCT, weights={"level": "sequence", "threshold": 1.5}, spread=1e-3,
    ),
    "verl clip, masked, token mean": Case(
        "dapo", {}, "verl", verl_clip(TOKEN, high=0.28), correction=MASK, weights={"threshold": "0.7_1.4"}, masked=True
    ),
    "verl clip, masked, constant length": Case(
        "dr_grpo", {}, "verl", verl_clip(CONSTANT), correction=MASK, weights={"threshold": "0.7_1.4"}, masked=True
    ),
    "verl clip, masked, sequence mean": Case(
        "grpo", {}, "verl", verl_clip(SEQUENCE), correction=MASK, weights={"threshold": "0.7_1.4"}, masked=True
    ),
    "verl clip without a clip, and kimi without its own": Case(
        "kimi", {"log_ratio_min": -9.0, "log_ratio_max": 9.0, "log_ratio_penalty": 0.0}, "verl",
        verl_clip(TOKEN, 1.0, 1e9),
    ),
    "verl dro, and kimi's penalty alone": Case(
        "kimi", {"log_ratio_min": -9.0, "log_ratio_max": 9.0, "log_ratio_penalty": 0.15}, "verl",
        {"loss": "dro", "mode": TOKEN, "dro_beta": 0.3}, advantages=0.0,
    ),
}  # fmt: skip

# Intended differences, with the reference's results.
DIFFERENT = {
    "trl divides by all answers": Case(
        "dr_grpo", {}, "trl", {"loss_type": "dr_grpo"}, correction=MASK, weights={"threshold": "0.7_1.4"}
    ),
    "trl divides by all tokens": Case(
        "dapo", {}, "trl", {"loss_type": "dapo", "epsilon_high": 0.28}, correction=MASK,
        weights={"threshold": "0.7_1.4"},
    ),
    "verl clips twice": Case("dapo", {}, "verl", verl_clip(TOKEN, high=0.28, clip_ratio_c=1.3)),
    "verl's cispo has a lower bound": Case(
        "cispo", {"normaliser": "token_mean"}, "verl",
        {"loss": "cispo", "mode": TOKEN, "clip_ratio_low": 0.2, "clip_ratio_high": 4.0},
    ),
    "verl's gspo weighs each token": Case(
        "gspo", {}, "verl", {"loss": "gspo", "mode": SEQUENCE, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
        correction=TRUNCATE, weights={}, spread=1e-3,
    ),
}  # fmt: skip
GROUP_REWARDS = [[0.0, 0.0, 1.0, 0.0], [0.3, 0.7, 0.45, 0.9, 0.2]]
PENALTY = {"rewards": [0.5, -1.0, 0.0], "logprobs": [-1.0, -2.5, -0.1], "reference": [-1.5, -0.5, -0.1], "beta": 0.2}
GEOMETRIC = {"kind": "seq_mean_k1", "threshold": "0.93_1.08"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Results of the references, by case and seed."""
    asked = {(name, seed): case.asked | {"seed": seed} for name, case in (CASES | DIFFERENT).items() for seed in SEEDS}
    for seed in SEEDS:
        asked["geometric", seed] = {"reference": "verl_mask", "options": GEOMETRIC, "seed": seed, "spread": 0.3}
    numbers = [number for number, rewards in enumerate(GROUP_REWARDS) for _ in rewards]
    every = {"rewards": [reward for rewards in GROUP_REWARDS for reward in rewards], "groups": numbers}
    asked["advantages"] = {"reference": "verl_advantages", "options": every}
    asked["penalised"] = {"reference": "verl_penalised", "options": PENALTY}
    folder = tmp_path_factory.mktemp("references")
    (folder / "cases.json").write_text(json.dumps(list(asked.values())))
    module = "tests.trainer.losses.reference_losses"
    command = [sys.executable, "-m", module, references(), folder / "cases.json", folder / "results.json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(CACHE / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the imports take half a minute without
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(asked, json.loads((folder / "results.json").read_text()), strict=True))


def tokens_of(batch: RandomBatch, advantages: float | None = None) -> list[list[Token]]:
    logprobs, behaviour, prox, by_answer, mask = batch
    return [
        [
            Token(logprobs[b, t], behaviour[b, t], by_answer[b] if advantages is None else advantages, prox[b, t])
            for t in np.flatnonzero(mask[b])
        ]
        for b in range(len(mask))
    ]


def ours(case: Case, seed: int) -> tuple[float, np.ndarray]:
    tokens = tokens_of(random_batch(seed, spread=case.spread), case.advantages)
    found = evaluate(case.name, tokens, dtype=np.float32, correction=case.correction, **case.ours)
    return found.loss, np.asarray(found.gradient)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_the_reference_has_the_same_loss_and_gradient(answers, name, seed):
    loss, gradient = ours(CASES[name], seed)
    answer = answers[name, seed]
    assert loss == pytest.approx(answer["loss"], rel=1e-6, abs=1e-7)
    assert distance(gradient, np.asarray(answer["gradient"])) < 1e-6
    assert np.abs(gradient).max() > 1e-4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["trl divides by all tokens", "trl divides by all answers"])
def test_trl_divides_by_masked_tokens_too_and_headrace_by_kept_ones(answers, name, seed):
    case = DIFFERENT[name]
    loss, gradient = ours(case, seed)
    expected = np.asarray(answers[name, seed]["gradient"])
    batch, _, prox = columns(tokens_of(random_batch(seed)), dtype=np.float32)
    kept, _ = update_of(case.name, batch, prox, correction=case.correction)
    everything, _ = update_of(case.name, batch, prox)
    share = kept.divisor / everything.divisor
    assert loss * share == pytest.approx(answers[name, seed]["loss"], rel=2e-6)
    assert distance(gradient * share, expected) < 2e-6
    if share < 1:
        assert distance(gradient, expected) > 0.01
    assert share < 0.95 or case.name == "dr_grpo"  # an answer of which nothing is kept is rare


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_clips_negative_advantages_a_second_time_and_headrace_does_not(answers, seed):
    # Dual clip (Ye et al., 2020): where A < 0 and ρ > c the gradient is zero. No loss here was published with it.
    _, gradient = ours(DIFFERENT["verl clips twice"], seed)
    reference = np.asarray(answers["verl clips twice", seed]["gradient"])
    twice = np.array([t.advantage < 0 and t.logprob - t.behaviour > np.log(1.3) for t in flat(seed)])
    assert twice.any()
    assert (reference[twice] == 0).all()
    assert (gradient[twice] != 0).all()
    assert distance(gradient[~twice], reference[~twice]) < 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_verls_cispo_raises_small_ratios_and_headraces_has_no_lower_bound(answers, seed):
    # MiniMax-M1 has no lower bound either; verl's default gives a token that became rare a weight of at least 0.8.
    _, gradient = ours(DIFFERENT["verl's cispo has a lower bound"], seed)
    reference = np.asarray(answers["verl's cispo has a lower bound", seed]["gradient"])
    ratios = np.exp([np.float64(t.logprob) - t.behaviour for t in flat(seed)])
    small = ratios < 0.8
    assert small.any()
    assert distance(gradient[~small], reference[~small]) < 1e-6
    assert distance(gradient[small] * 0.8 / ratios[small], reference[small]) < 2e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_verls_gspo_weights_each_tokens_gradient_and_headraces_the_trajectorys_objective(answers, seed):
    # Ours, and TRL's: a trajectory has one objective and one ratio, so token weights act through their mean.
    _, gradient = ours(DIFFERENT["verl's gspo weighs each token"], seed)
    reference = np.asarray(answers["verl's gspo weighs each token", seed]["gradient"])
    assert distance(gradient, reference) > 1e-4
    start = 0
    for each in tokens_of(random_batch(seed, spread=1e-3)):
        part = slice(start, start + len(each))
        assert gradient[part] == pytest.approx(np.full(len(each), reference[part].mean()), rel=2e-6, abs=1e-9)
        start += len(each)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trajectory_is_masked_by_its_geometric_mean_where_verl_rejects_it(answers, seed):
    batch, _, prox = columns(tokens_of(random_batch(seed)), dtype=np.float32)
    # verl bounds −log w: its low bound is on 1/w.
    correction = CorrectionSettings("mask", "geometric_mean", ratio_min=1 / 1.08, ratio_max=1 / 0.93)
    update, _ = update_of("grpo", batch, prox, correction=correction)
    kept = (update.weights > 0).tolist()
    assert kept == answers["geometric", seed]["values"]
    assert len(set(kept)) == 2


def test_advantages_are_scaled_as_verls_grpo_does(answers):
    scaled = []
    for rewards in GROUP_REWARDS:
        found, _ = trained_by_grpo({f"t{number}": reward for number, reward in enumerate(rewards)})
        scaled += found.values()
    assert scaled == pytest.approx(answers["advantages"]["values"], rel=1e-6, abs=1e-6)


def test_the_kl_penalty_is_verls_penalty_in_the_reward(answers):
    import torch

    from headrace.trainer.losses.kl import penalised_advantages

    found = penalised_advantages(
        *(torch.tensor(PENALTY[name]) for name in ("rewards", "logprobs", "reference")), PENALTY["beta"]
    )
    assert found.tolist() == pytest.approx(answers["penalised"]["values"], rel=1e-6)


def test_the_kl_from_the_reference_is_verls_k1_on_the_policys_own_samples(answers):
    from headrace.trainer.learning.metrics import reference_kl

    logprobs, reference = (np.asarray(PENALTY[name], np.float32) for name in ("logprobs", "reference"))
    k1 = (np.asarray(PENALTY["rewards"]) - answers["penalised"]["values"]) / PENALTY["beta"]
    assert reference_kl(logprobs, logprobs, reference)["kl_reference"] == pytest.approx(k1.mean(), rel=1e-5)


def flat(seed: int) -> list[Token]:
    return [token for each in tokens_of(random_batch(seed)) for token in each]
