import math
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headrace.trainer.model.head import head_logprobs


class Memory(TorchDispatchMode):
    """Records the elements of the largest tensor of any operation, and the peak bytes of all storages."""

    def __init__(self):
        super().__init__()
        self.largest = self.held = self.peak = 0
        self._seen = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor)
        return result

    def _note(self, tensor):
        storage = tensor.untyped_storage()
        self.largest = max(self.largest, storage.nbytes() // tensor.element_size())
        if storage not in self._seen:
            self._seen.add(storage)
            self.held += storage.nbytes()
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, size):
        self.held -= size


def head(tokens, width, vocabulary, *, dtype=torch.float32, bias=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, vocabulary, (tokens,), generator=generator)
    offsets = torch.randn(vocabulary, generator=generator).to(dtype).requires_grad_() if bias else None
    upstream = torch.randn(tokens, generator=generator)
    return hidden, labels, weight, offsets, upstream


def by_definition(hidden, labels, weight, bias):
    """Returns the definition's values, in float64 from the logits of all tokens."""
    logits = hidden.double() @ weight.double().t() + (0 if bias is None else bias.double())
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(1, labels[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_values_and_gradients_are_those_of_the_whole_logits(rows, bias):
    hidden, labels, weight, offsets, upstream = head(7, 8, 30, bias=bias)
    leaves = [hidden, weight] + ([offsets] if bias else [])
    expected, entropy = by_definition(hidden, labels, weight, offsets)
    gradients = torch.autograd.grad((expected * upstream).sum(), leaves)

    found = head_logprobs(hidden, labels, weight, offsets, max_logits=rows * 30)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].double(), entropy, rtol=1e-5, atol=1e-5)
    assert not found[1].requires_grad
    for one, other in zip(torch.autograd.grad((found[0] * upstream).sum(), leaves), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_frozen_head_gets_no_gradient_and_gives_one():
    hidden, labels, weight, _, upstream = head(5, 8, 30)
    weight.requires_grad_(False)
    logprobs, _ = head_logprobs(hidden, labels, weight, max_logits=60)
    logprobs.backward(upstream)
    assert weight.grad is None
    assert hidden.grad.abs().max() > 0


def test_weights_in_16_bits_give_log_probabilities_in_32():
    hidden, labels, weight, _, upstream = head(40, 64, 500, dtype=torch.bfloat16)
    logprobs, entropy = head_logprobs(hidden, labels, weight, max_logits=5000)
    expected, _ = by_definition(hidden, labels, weight, None)
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-4)  # bfloat16 would be wrong by 0.1
    logprobs.backward(upstream)
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)


def test_logits_of_all_tokens_never_exist():
    tokens, width, vocabulary, rows = 512, 16, 150_000, 8
    hidden, labels, weight, _, upstream = head(tokens, width, vocabulary)
    with Memory() as memory:
        logprobs, _ = head_logprobs(hidden, labels, weight, max_logits=rows * vocabulary)
        logprobs.backward(upstream)
    weights, chunk = vocabulary * width, rows * vocabulary
    assert memory.largest == max(weights, chunk)
    # The weight, its gradient and two copies of a chunk; all logits would be 307 MB.
    assert 2 * chunk * 4 < memory.peak < (2 * weights + 2 * chunk) * 4 * 1.02
    assert memory.peak < tokens * vocabulary * 4 / 10


def test_the_memory_measurement_detects_full_logits():
    hidden, labels, weight, _, upstream = head(64, 16, 10_000)
    with Memory() as memory:
        logits = hidden @ weight.t()
        logits.log_softmax(-1).gather(1, labels[:, None])[:, 0].backward(upstream)
    assert memory.largest == 64 * 10_000
    assert memory.peak > 3 * 64 * 10_000 * 4


def test_a_deterministic_distribution_has_no_entropy():
    weight = torch.tensor([[100.0], [-100.0]])
    logprobs, entropy = head_logprobs(torch.ones(1, 1), torch.tensor([0]), weight, max_logits=2)
    assert (logprobs.item(), entropy.item()) == (0.0, 0.0)
    _, uniform = head_logprobs(torch.zeros(1, 1), torch.tensor([0]), weight, max_logits=2)
    assert uniform.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_each_row_has_its_temperature_forward_and_backward(rows, bias):
    """Compared with the definition in float64, and with TRL: all logits, divided, then softmax, in one graph."""
    hidden, labels, weight, offsets, upstream = head(7, 8, 30, bias=bias)
    temperatures = torch.tensor([0.6, 1.0, 1.3, 0.6, 2.0, 0.01, 1.0])
    found, entropy = head_logprobs(hidden, labels, weight, offsets, temperatures, max_logits=30 * rows)
    (found * upstream).sum().backward()
    gradients = [each.grad.clone() for each in (hidden, weight, offsets) if each is not None]
    for each in (hidden, weight, offsets):
        if each is not None:
            each.grad = None
    logits = (hidden.double() @ weight.double().t() + (0 if offsets is None else offsets.double())) / temperatures[
        :, None
    ]
    logprobs = logits.log_softmax(-1)
    expected = logprobs.gather(1, labels[:, None])[:, 0]
    (expected * upstream).sum().backward()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(logprobs.exp() * logprobs).sum(-1), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(
        gradients, [each.grad for each in (hidden, weight, offsets) if each is not None], strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_temperature_one_is_bit_identical_to_none():
    hidden, labels, weight, _, _ = head(7, 8, 30)
    plain, at_one = (head_logprobs(hidden, labels, weight, None, t, max_logits=90) for t in (None, torch.ones(7)))
    assert all(torch.equal(a, b) for a, b in zip(plain, at_one, strict=True))
