import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from headrace.trainer.batches.packing import pack
from headrace.trainer.model.attention import make_layout, packed_attention
from tests.trainer.builders import random_sequences

HEADS, KEY_HEADS, WIDTH = 4, 2, 16


def random_heads(tokens, *, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, tokens, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def each_alone(packed, query, key, value):
    bounds = packed.cu_seqlens.tolist()
    alone = [
        scaled_dot_product_attention(*(x[:, :, a:b] for x in (query, key, value)), is_causal=True, enable_gqa=True)
        for a, b in itertools.pairwise(bounds)
    ]
    return torch.cat(alone, dim=2).transpose(1, 2)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_each_sequence_attends_to_itself_alone(count):
    packed = pack(random_sequences(count))
    heads = random_heads(len(packed.token_ids))
    found, _ = packed_attention(torch.nn.Identity(), *heads, None, layout=make_layout(packed, torch.device("cpu")))
    torch.testing.assert_close(found, each_alone(packed, *heads), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_gpus_variable_length_kernel_does_the_same():
    packed = pack(random_sequences(30))
    heads = random_heads(len(packed.token_ids), device="cuda", dtype=torch.bfloat16)
    found, _ = packed_attention(torch.nn.Identity(), *heads, None, layout=make_layout(packed, torch.device("cuda")))
    torch.testing.assert_close(found, each_alone(packed, *heads), atol=2e-2, rtol=2e-2)


def test_a_missing_layout_or_a_short_window_is_refused():
    packed = pack([([1, 2, 3], [0, 0, 1])])
    heads = random_heads(3)
    with pytest.raises(ValueError, match="layout"):
        packed_attention(torch.nn.Identity(), *heads, None)
    layout = make_layout(packed, torch.device("cpu"))
    with pytest.raises(ValueError, match="sliding"):
        packed_attention(torch.nn.Identity(), *heads, None, layout=layout, sliding_window=2)
