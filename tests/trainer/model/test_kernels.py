"""Kernels of a GPU, as far as testable without one: which kernel is chosen, and that a compiler keeps it."""

import sys

import pytest
import torch
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from headrace.trainer.batches.packing import pack
from headrace.trainer.model import attention
from headrace.trainer.model.layers import LayerSettings, prepare_layers
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import random_sequences
from tests.trainer.zoo import write_model


@pytest.fixture
def flash_on_cpu(monkeypatch):
    """The kernel's operator, computed on the CPU one sequence at a time, and chosen there for every type."""

    def kernel(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, scale=None, window_size=None,
               enable_gqa=False, seqused_k=None, block_table=None, num_splits=None):  # fmt: skip
        assert (is_causal, list(window_size), seqused_k, block_table) == (True, [-1, 0], None, None)
        calls.append(cu_seq_q.tolist())
        parts = []
        for start, end in zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True):
            q, k, v = (x[start:end].transpose(0, 1)[None] for x in (query, key, value))
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
            parts.append(out[0].transpose(0, 1))
        return torch.cat(parts), torch.zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)

    calls = []
    with torch.library._scoped_library("torch_attn", "IMPL") as library:
        library.impl("_varlen_attn", kernel, "CPU", allow_override=True)
        monkeypatch.setattr(attention, "takes_variable_lengths", lambda device, dtype: True)
        yield calls
    assert varlen._varlen_attn is not None


def test_the_variable_length_kernel_gets_what_the_rectangles_get(tmp_path, flash_on_cpu, monkeypatch):
    model = load_model(write_model(tmp_path, "qwen3"))
    flash_on_cpu.clear()
    packed = pack(random_sequences(6))
    with torch.no_grad():
        found = token_logprobs(model, packed).logprobs
        assert flash_on_cpu == [packed.cu_seqlens.tolist()] * len(model.model.layers)
        monkeypatch.setattr(attention, "takes_variable_lengths", lambda device, dtype: False)
        torch.testing.assert_close(found, token_logprobs(model, packed).logprobs)


def test_a_compiled_layer_is_one_graph_with_its_attention_in_it(tmp_path, flash_on_cpu, monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = load_model(write_model(tmp_path, "qwen3"))
    attention.register(around_compiled=False)
    with torch.no_grad():
        expected = [token_logprobs(model, pack(random_sequences(count))).logprobs for count in (6, 7, 9)]
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=True, fullgraph=True, backend=backend)
        found = [token_logprobs(model, pack(random_sequences(count))).logprobs for count in (6, 7, 9)]
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)
    assert all("_varlen_attn" in graph.code for graph in graphs)
    assert len(graphs) <= len(model.model.layers) + 1, "compiled anew for another length"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LayerSettings(flash_attention="FA3"), "layers.flash_attention FA3 needs a GPU"),
        (LayerSettings(flash_attention="FA9"), "this torch knows"),
        (LayerSettings(liger=True), "layers.liger needs a GPU"),
    ],
)
def test_kernels_that_need_a_gpu_are_refused_without_one(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        prepare_layers(load_model(write_model(tmp_path, "qwen3")), settings)


def test_kernels_whose_package_is_missing_are_refused_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    model = torch.nn.Linear(2, 2, device="meta")
    monkeypatch.setattr(torch.nn.Parameter, "device", torch.device("cuda"), raising=False)
    with pytest.raises(ValueError, match="pip install liger-kernel"):
        prepare_layers(model, LayerSettings(liger=True))
