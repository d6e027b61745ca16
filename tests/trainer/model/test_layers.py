import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.trainer.batches.packing import pack
from headrace.trainer.model.architectures import TESTED
from headrace.trainer.model.layers import LayerSettings, decoder_layers, prepare_layers
from headrace.trainer.model.load import load_model
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import random_sequences
from tests.trainer.zoo import write_model


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def gradients_of(model):
    model.zero_grad()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        logprobs = token_logprobs(model, pack(random_sequences(6))).logprobs
    with Products() as products:
        logprobs.sum().backward()
    return [logprobs, *(parameter.grad.clone() for parameter in model.parameters())], sum(kept), products.count


@pytest.mark.parametrize("model_type", sorted(TESTED))
def test_checkpointed_activations_keep_less_compute_again_and_give_the_same_bits(tmp_path, model_type):
    directory = write_model(tmp_path, model_type)
    plain, checkpointed = load_model(directory), load_model(directory)
    prepare_layers(checkpointed, LayerSettings(activation_checkpointing=True))
    expected, kept, products = gradients_of(plain)
    found, kept_less, products_again = gradients_of(checkpointed)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert kept_less < kept / 2
    assert products_again > products


def test_names_and_layers_do_not_change(tmp_path):
    directory = write_model(tmp_path, "qwen3")
    plain, prepared = load_model(directory), load_model(directory)
    prepare_layers(prepared, LayerSettings(activation_checkpointing=True))
    assert list(prepared.state_dict()) == list(plain.state_dict())
    assert decoder_layers(prepared) == list(prepared.model.layers)


def test_a_model_without_marked_layers_is_refused():
    with pytest.raises(ValueError, match="layers"):
        prepare_layers(nn.Linear(2, 2), LayerSettings(activation_checkpointing=True))
    prepare_layers(nn.Linear(2, 2), LayerSettings())


def test_layers_are_compiled_around_their_attention(tmp_path, monkeypatch):
    # Traces without compiling, because tracing is what a model can break.
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward, **options: compiled(forward, backend="eager", **options))
    directory = write_model(tmp_path, "qwen3")
    plain, traced = load_model(directory), load_model(directory)
    prepare_layers(traced, LayerSettings(compile=True, activation_checkpointing=True))
    expected, _, _ = gradients_of(plain)
    for _ in range(2):
        found, _, _ = gradients_of(traced)
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one, other)
