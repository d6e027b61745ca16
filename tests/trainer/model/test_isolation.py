"""Packed sequences are isolated: the results of one are bit-identical whatever the others contain."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from headrace.trainer.batches.packing import pack
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import tiny_model

VOCABULARY = 50

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Kernels that ``scaled_dot_product_attention`` may use on a CPU."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tiny_model(tmp_path_factory.mktemp("model"), tied=False)
    return {dtype: load_model(path, dtype=dtype) for dtype in ("float32", "bfloat16")}


@st.composite
def perturbed_packs(draw):
    """Draws sequences, one of which is observed, and the same with some tokens of the others changed."""
    lengths = draw(st.lists(st.integers(2, 30), min_size=2, max_size=6))
    watched = draw(st.integers(0, len(lengths) - 1))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    before = [random.integers(0, VOCABULARY, length) for length in lengths]
    after = [ids.copy() for ids in before]
    others = [number for number in range(len(lengths)) if number != watched]
    for other in draw(st.lists(st.sampled_from(others), min_size=1, max_size=len(others), unique=True)):
        at = draw(st.integers(0, lengths[other] - 1))
        after[other][at] = (after[other][at] + draw(st.integers(1, VOCABULARY - 1))) % VOCABULARY
    return before, after, watched


def numbers_of(model, sequences, watched, *, max_logits):
    """Returns the observed sequence's log-probabilities and entropies, and its loss's gradient by every parameter."""
    packed = pack([(ids, [0] + [1] * (len(ids) - 1)) for ids in sequences])
    start, end = packed.cu_seqlens[watched], packed.cu_seqlens[watched + 1]
    own = np.flatnonzero((packed.targets >= start) & (packed.targets < end))
    model.zero_grad()
    result = token_logprobs(model, packed, max_logits=max_logits)
    (result.logprobs[own] * torch.linspace(-1, 2, len(own), device=result.logprobs.device)).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    return result.logprobs[own].detach(), result.entropy[own], gradients


@pytest.mark.parametrize("max_logits", [10**6, 7 * VOCABULARY], ids=["head at once", "head in chunks"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@settings(max_examples=15, deadline=None)
@given(pack=perturbed_packs())
def test_changing_a_neighbour_changes_no_bit_of_a_sequences_logprobs_and_gradients(
    models, dtype, kernel, max_logits, pack
):
    before, after, watched = pack
    with sdpa_kernel(kernel):
        first, second = (
            numbers_of(models[dtype], sequences, watched, max_logits=max_logits) for sequences in (before, after)
        )
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert all(torch.equal(one, other) for one, other in zip(first[2], second[2], strict=True))
    assert any(gradient.abs().max() > 0 for gradient in first[2])


def test_changing_an_own_token_changes_them(models):
    before, after = [np.arange(9), np.arange(12)], [np.arange(9), np.arange(12)]
    after[1][3] = 40
    first, second = (numbers_of(models["float32"], sequences, 1, max_logits=10**6) for sequences in (before, after))
    assert torch.equal(first[0][:2], second[0][:2])  # tokens before the change
    assert not torch.isclose(first[0][2:], second[0][2:]).any()
    assert not any(torch.equal(one, other) for one, other in zip(first[2], second[2], strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@settings(max_examples=15, deadline=None)
@given(pack=perturbed_packs())
def test_the_gpus_kernel_keeps_neighbours_apart_too(models, pack):
    before, after, watched = pack
    model = models["bfloat16"].to("cuda")
    first, second = (numbers_of(model, sequences, watched, max_logits=10**6) for sequences in (before, after))
    assert torch.equal(first[0], second[0])
    for one, other in zip(first[2], second[2], strict=True):  # its backward pass sums in no fixed order
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
