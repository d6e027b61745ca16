"""Verdicts on swaps of an engine that rounds to bfloat16: real forward passes, resampled.

The engine is Hugging Face's model in bfloat16, the trainer's log-probabilities are those of the published weights in
float32. Versions are at least one AdamW step at a learning rate of 1e-6 apart, and are rounded for publishing.
"""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.deploy.configuration.settings import base_model_dir
from headrace.trainer.follower.verdict import SwapEvidence, allowed_error, judge_swap, rms, rows_of

SEQUENCES, TOKENS, DRAWN, TIMES = 256, 64, 64, 1000
BOUNDS = {"tolerance": 0.15, "noise": 0.15}
FLOAT32 = {"tolerance": 0.02, "noise": 1e-3}


@dataclasses.dataclass
class Version:
    """A published version, with the trainer's and the engine's log-probabilities."""

    exact: np.ndarray
    engine: np.ndarray
    model: torch.nn.Module


class Steps:
    """A run in which each step is AdamW's, on weights in float32 that are rounded to bfloat16 for publishing."""

    def __init__(self, learning_rate):
        self.model = AutoModelForCausalLM.from_pretrained(base_model_dir(), dtype=torch.bfloat16).float()
        vocabulary = self.model.config.vocab_size
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, vocabulary, (SEQUENCES, TOKENS), generator=generator)
        self.trained = torch.randint(0, vocabulary, (8, 64), generator=generator)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.0)

    def step(self):
        logits = self.model(self.trained).logits[:, :-1]
        logprobs = torch.log_softmax(logits, -1).gather(-1, self.trained[:, 1:, None])
        self.optimizer.zero_grad()
        (-logprobs.mean()).backward()
        self.optimizer.step()

    def published(self):
        model = copy.deepcopy(self.model)
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        return Version(self.score(model), self.score(copy.deepcopy(model).bfloat16()), model)

    @torch.no_grad()
    def score(self, model):
        logits = model(self.tokens).logits[:, :-1].float()
        return torch.log_softmax(logits, -1).gather(-1, self.tokens[:, 1:, None]).squeeze(-1).double().numpy()


def a_step(learning_rate):
    """Two versions one step apart, a few steps into a run."""
    steps = Steps(learning_rate)
    steps.step()
    old = steps.published()
    steps.step()
    return steps, old, steps.published()


@pytest.fixture(scope="module")
def small_step():
    return a_step(1e-6)


@pytest.fixture(scope="module")
def large_step():
    return a_step(2e-4)


def judged(old, new, served, rng, *, own_noise, exact=True, usual=None, bounds=BOUNDS, known=True):
    """Returns the verdicts on ``TIMES`` swaps after which the engine serves ``served``, each on its own sequences."""
    verdicts = []
    for _ in range(TIMES):
        drawn = rng.choice(SEQUENCES, DRAWN, replace=False)

        def asked(rows, drawn=drawn):
            return rows[drawn] + own_noise * rng.standard_normal((DRAWN, rows.shape[1]))

        before, after = ([asked(rows) for _ in range(2)] for rows in (old.engine, served))
        verdicts.append(
            judge_swap(
                new.exact[drawn], before, after, old=old.exact[drawn] if known else None,
                exact=exact, usual=usual, **bounds,
            )
        )  # fmt: skip
    return verdicts


@pytest.mark.parametrize(("own_noise", "exact"), [(0.0, True), (1e-3, False), (5e-3, True)])
def test_at_a_rate_of_1e_6_in_bfloat16_every_empty_swap_is_refused_and_every_good_one_accepted(
    small_step, own_noise, exact
):
    _, old, new = small_step
    assert rms(new.exact - old.exact) < 1e-3 * 0.2 < 0.02 < rms(new.engine - new.exact)  # far below the rounding
    rng = np.random.default_rng(7)
    good = judged(old, new, new.engine, rng, own_noise=own_noise, exact=exact, usual=rms(old.engine - old.exact))
    empty = judged(old, new, old.engine, rng, own_noise=own_noise, exact=exact, usual=rms(old.engine - old.exact))
    assert sum(verdict.problem is None for verdict in good) == TIMES
    assert sum(verdict.problem is None for verdict in empty) == 0
    assert {verdict.evidence for verdict in good} == {SwapEvidence.CHANGE}


def test_an_engine_with_varying_answers_is_accepted_by_its_distance(small_step):
    _, old, new = small_step
    noise = rms(new.engine - new.exact)
    rng = np.random.default_rng(8)
    good = judged(old, new, new.engine, rng, own_noise=3 * noise, usual=3 * noise)
    assert all(verdict.problem is None for verdict in good)
    assert SwapEvidence.DISTANCE in {verdict.evidence for verdict in good}


def test_if_a_step_moves_as_much_as_the_rounding_the_position_decides():
    _, old, new = a_step(1e-4)
    rng = np.random.default_rng(9)
    usual = rms(old.engine - old.exact)
    for served, accepted in ((new.engine, TIMES), (old.engine, 0)):
        verdicts = judged(old, new, served, rng, own_noise=1e-3, usual=usual)
        assert sum(verdict.problem is None for verdict in verdicts) == accepted
        assert not accepted or {verdict.evidence for verdict in verdicts} == {SwapEvidence.POSITION}


@pytest.mark.parametrize("part", ["layers.1.", "embed_tokens"])
def test_a_partial_swap_is_refused(large_step, part):
    steps, old, new = large_step
    half = copy.deepcopy(new.model)
    kept = dict(old.model.named_parameters())
    for name, parameter in half.named_parameters():
        if part in name:
            parameter.data = kept[name].data
    served = steps.score(half.bfloat16())
    verdict = judge_swap(
        new.exact, [old.engine] * 2, [served] * 2, old=old.exact, exact=True,
        usual=rms(old.engine - old.exact), **BOUNDS,
    )  # fmt: skip
    assert verdict.problem is not None


@pytest.mark.parametrize("learning_rate", [1e-6, 1e-3])
def test_in_float32_a_good_swap_is_accepted_and_empty_or_headless_ones_are_refused(learning_rate):
    steps, old, new = a_step(learning_rate)
    rng = np.random.default_rng(3)
    noise = 1e-6

    def engine(rows):
        return [rows + noise * rng.standard_normal(rows.shape) for _ in range(2)]

    def accepted(served):
        verdict = judge_swap(
            new.exact, engine(old.exact), engine(served), old=old.exact, exact=True, usual=noise, **FLOAT32
        )
        return verdict.problem is None, verdict.evidence

    assert accepted(new.exact) == (True, SwapEvidence.POSITION)
    assert not accepted(old.exact)[0]
    if learning_rate == 1e-3:  # at 1e-6 the head moves less than a tenth of all
        half = copy.deepcopy(new.model)  # head tied to its embeddings: the packed copy may be old
        half.get_output_embeddings().weight = torch.nn.Parameter(
            old.model.get_output_embeddings().weight.detach().clone()
        )
        assert not accepted(steps.score(half))[0]


def test_a_version_that_does_not_differ_is_accepted_by_its_distance(small_step):
    _, old, _ = small_step
    verdict = judge_swap(old.exact, [old.engine] * 2, [old.engine] * 2, old=old.exact, exact=True, usual=None, **BOUNDS)
    assert (verdict.problem, verdict.evidence, verdict.position) == (None, SwapEvidence.DISTANCE, None)


def test_a_larger_distance_than_the_engine_ever_had_is_refused(small_step):
    _, old, new = small_step
    usual = rms(old.engine - old.exact)
    off = new.engine + 2 * usual * np.random.default_rng(1).standard_normal(new.engine.shape)
    for known, allowed in ((usual, False), (None, True)):
        verdict = judge_swap(new.exact, [old.engine] * 2, [off] * 2, old=old.exact, exact=True, usual=known, **BOUNDS)
        assert (verdict.problem is None) is allowed
    assert judge_swap(new.exact, [old.engine], [off + 1], old=None, exact=True, usual=None, **BOUNDS).problem


@pytest.mark.parametrize(
    ("before", "allowed"), [(3.0, 0.02), (0.04, 0.02), (0.004, 0.002), (0.0001, 0.001), (float("inf"), 0.02)]
)
def test_without_a_known_old_version_a_swap_must_halve_the_distance(before, allowed):
    assert allowed_error(before, **FLOAT32) == pytest.approx(allowed)


@pytest.mark.parametrize("answer", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("old", [None, rows_of([[-1.5, -2.5], [-3.0]])])
def test_answers_that_are_not_finite_are_refused(answer, old):
    new, broken = rows_of([[-1.0, -2.0], [-3.0]]), rows_of([[-1.0, answer], [-3.0]])
    before = new if old is None else old
    verdict = judge_swap(new, [before] * 2, [broken] * 2, old=old, exact=True, usual=None, **FLOAT32)
    assert verdict.problem is not None
    assert verdict.rms_error == float("inf")
