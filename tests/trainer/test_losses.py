import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.losses.registry import LOSSES, loss_named
from headrace.trainer.losses.settings import LossSettings

SETTINGS = LossSettings(clip_low=0.2, clip_high=0.2, ratio_max=5.0)
LOGPROBS = st.floats(-8, 0)
TOKENS = st.lists(st.tuples(LOGPROBS, LOGPROBS, st.floats(-2, 2)), min_size=1, max_size=30)


def evaluate(name, tokens, divisor=1.0, settings=SETTINGS):
    """(loss, gradient by log-probability, counts) of ``(logprob, behaviour, advantage)`` triples."""
    logprobs, behaviour, advantages = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)
    )
    logprobs.requires_grad_()
    loss, counts = loss_named(name)(logprobs, behaviour, advantages, divisor, settings)
    loss.backward()
    return loss.item(), logprobs.grad.tolist(), {key: int(value) for key, value in counts.items()}


def at_ratio(ratio, advantage):
    return (math.log(0.2), math.log(0.2 / ratio), advantage)


def test_dr_grpo_by_hand():
    tokens = [at_ratio(1.0, 1.0), at_ratio(1.5, 1.0), at_ratio(0.5, -1.0), at_ratio(1.5, -1.0), at_ratio(0.5, 1.0)]
    loss, gradient, counts = evaluate("dr_grpo", tokens, divisor=10.0)
    # min(ρA, clip(ρ)A): 1, 1.2 (clipped), −0.8 (clipped), −1.5, 0.5
    assert loss == pytest.approx(-(1 + 1.2 - 0.8 - 1.5 + 0.5) / 10)
    assert gradient == pytest.approx([-0.1, 0, 0, 0.15, -0.05])
    assert counts == {"clip_fraction_low": 1, "clip_fraction_high": 1}


def test_cispo_by_hand():
    tokens = [at_ratio(1.0, 1.0), at_ratio(8.0, 1.0), at_ratio(0.01, -1.0), at_ratio(5.0, -0.5)]
    loss, gradient, counts = evaluate("cispo", tokens, divisor=2.0)
    weights = [1.0, 5.0, -0.01, -2.5]
    assert loss == pytest.approx(-sum(weights) * math.log(0.2) / 2)
    assert gradient == pytest.approx([-weight / 2 for weight in weights])
    assert counts == {"clip_fraction_low": 0, "clip_fraction_high": 1}


@given(TOKENS)
def test_cispo_never_silences_a_token(tokens):
    _, gradient, _ = evaluate("cispo", tokens)
    for (logprob, behaviour, advantage), slope in zip(tokens, gradient, strict=True):
        assert slope == pytest.approx(-min(math.exp(logprob - behaviour), 5.0) * advantage)


@given(TOKENS)
def test_dr_grpo_has_the_policy_gradient_inside_the_clip_and_none_outside(tokens):
    _, gradient, _ = evaluate("dr_grpo", tokens)
    for (logprob, behaviour, advantage), slope in zip(tokens, gradient, strict=True):
        ratio = math.exp(logprob - behaviour)
        silenced = (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0)
        assert slope == pytest.approx(0.0 if silenced else -ratio * advantage)


@given(st.lists(st.tuples(LOGPROBS, st.floats(-2, 2)), min_size=1, max_size=30))
def test_on_policy_every_loss_has_the_plain_policy_gradient(tokens):
    on_policy = [(logprob, logprob, advantage) for logprob, advantage in tokens]
    for name in LOSSES:
        _, gradient, _ = evaluate(name, on_policy)
        assert gradient == pytest.approx([-advantage for _, advantage in tokens])


@given(TOKENS, st.integers(1, 29))
def test_a_batch_divided_into_passes_has_the_same_loss(tokens, cut):
    for name in LOSSES:
        whole, _, counts = evaluate(name, tokens, divisor=7.0)
        parts = [evaluate(name, part, divisor=7.0) for part in (tokens[:cut], tokens[cut:]) if part]
        assert sum(loss for loss, _, _ in parts) == pytest.approx(whole)
        assert {key: sum(each[key] for _, _, each in parts) for key in counts} == counts


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_token_of_a_long_answer_weighs_as_much_as_one_of_a_short_answer(name):
    _, short, _ = evaluate(name, [at_ratio(1.0, 1.0)] * 2, divisor=100.0)
    _, long, _ = evaluate(name, [at_ratio(1.0, 1.0)] * 50, divisor=100.0)
    assert short[0] == pytest.approx(long[0])


def test_an_unknown_loss_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="cispo, dr_grpo"):
        loss_named("ppo")
