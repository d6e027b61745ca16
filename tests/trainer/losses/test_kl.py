import pytest
import torch

from headrace.trainer.losses.kl import penalised_advantages
from headrace.trainer.losses.settings import KlSettings


def policies():
    generator = torch.Generator().manual_seed(1)
    logits, reference = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), reference.log_softmax(-1)


def test_as_a_loss_k1_has_no_gradient_on_average_over_the_policys_own_samples():
    logits, reference = policies()
    logprobs = logits.log_softmax(-1)
    mean_k1 = (logprobs.exp().detach() * (logprobs - reference)).sum()  # every action, as often as it is sampled
    (gradient,) = torch.autograd.grad(mean_k1, logits)
    assert gradient.abs().max() < 1e-15
    # A single sample has a gradient: noise that averages out.
    (noise,) = torch.autograd.grad(logits.log_softmax(-1)[3] - reference[3], logits)
    assert noise.abs().max() > 0.1


def test_in_the_advantage_k1_has_the_gradient_of_the_kl_divergence():
    logits, reference = policies()
    logprobs = logits.log_softmax(-1)
    advantages = penalised_advantages(torch.zeros(12, dtype=torch.float64), logprobs, reference, 0.5)
    assert not advantages.requires_grad
    (found,) = torch.autograd.grad((logprobs.exp().detach() * advantages * logprobs).sum(), logits)
    divergence = (logits.log_softmax(-1).exp() * (logits.log_softmax(-1) - reference)).sum()
    (expected,) = torch.autograd.grad(-0.5 * divergence, logits)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-15)
    assert expected.abs().max() > 0.01


def test_the_penalty_by_hand():
    found = penalised_advantages(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]), 0.1)
    assert found.tolist() == pytest.approx([0.95, -0.9])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"coefficient": -1.0}, "coefficient"),
        ({"reference": "behaviour"}, "no coefficient"),
        ({"reference": "x"}, "base, b"),
    ],
)
def test_invalid_settings_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        KlSettings(**options)
