"""The divergence from a linear head, and its gradient, against autograd on plain logits."""

import pytest
import torch

from headrace.trainer.losses.settings import HintDirection
from headrace.trainer.model.divergence import head_divergence

N, H, V = 7, 5, 11


def plain(student, teacher, weight, bias, direction, temperature):
    """KL by its definition, on the logits of all rows at once."""
    first, second = (
        ((hidden @ weight.T + (0 if bias is None else bias)) / temperature).log_softmax(-1)
        for hidden in (student, teacher)
    )
    second = second.detach()
    if direction is HintDirection.FORWARD:
        first, second = second, first
    return (first.exp() * (first - second)).sum(-1)


@pytest.mark.parametrize("direction", list(HintDirection))
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("max_logits", [1, 2 * V * 3, 10**6])
def test_value_and_gradient_equal_the_definition(direction, temperature, has_bias, max_logits):
    torch.manual_seed(0)
    student, teacher, weight = torch.randn(N, H), torch.randn(N, H), torch.randn(V, H)
    bias = torch.randn(V) if has_bias else None
    factors, results = torch.randn(N), []
    for how in ("plain", "head"):
        inputs = [each.clone().requires_grad_() for each in (student, weight, *([bias] if has_bias else []))]
        bias_in = inputs[2] if has_bias else None
        if how == "plain":
            found = plain(inputs[0], teacher, inputs[1], bias_in, direction, temperature)
        else:
            found = head_divergence(
                inputs[0], teacher, inputs[1], bias_in, direction=direction, temperature=temperature,
                max_logits=max_logits,
            )  # fmt: skip
        results.append((found.detach(), torch.autograd.grad((found * factors).sum(), inputs)))
    (expected, expected_grads), (value, grads) = results
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)
    for one, other in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert expected.min() > 0


def test_equal_policies_have_no_divergence_and_no_gradient():
    hidden, weight = torch.randn(N, H), torch.randn(V, H, requires_grad=True)
    for direction in HintDirection:
        student = hidden.clone().requires_grad_()
        found = head_divergence(student, hidden, weight, direction=direction, temperature=1.0, max_logits=99)
        assert found.abs().max() < 1e-6
        (gradient,) = torch.autograd.grad(found.sum(), [student])
        assert gradient.abs().max() < 1e-6


def test_no_row_gives_an_empty_result_with_a_gradient():
    """A rank without hinted turns runs the same passes."""
    student, weight = torch.randn(0, H, requires_grad=True), torch.randn(V, H, requires_grad=True)
    found = head_divergence(
        student, torch.randn(0, H), weight, direction=HintDirection.FORWARD, temperature=1.0, max_logits=99
    )
    found.sum().backward()
    assert found.shape == (0,)
    assert weight.grad is not None
    assert not weight.grad.any()
