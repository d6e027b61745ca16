import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.objects.store import file_sha256
from headrace.trainer.batches.packing import pack
from headrace.trainer.learning.optimizers import Optimizer, OptimizerSettings
from headrace.trainer.model.layers import LayerSettings, prepare_layers
from headrace.trainer.model.load import load_model, save_model
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.model.precision import unpublished_weights, weight_copies, with_weights
from headrace.trainer.model.published import published_tensors
from tests.trainer.builders import random_sequences
from tests.trainer.zoo import write_model

BF16 = torch.bfloat16


@pytest.fixture
def directory(tmp_path):
    return write_model(tmp_path / "base", "qwen3")


def backward(model, dtype, seed=0):
    copies = weight_copies(model, dtype)
    with with_weights(model, copies):
        logprobs = token_logprobs(model, pack(random_sequences(6, seed=seed))).logprobs
        logprobs.mean().backward()
    return logprobs.detach()


def gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_a_pass_in_bfloat16_has_float32_gradients_near_those_of_a_float32_pass(directory):
    exact, rounded = load_model(directory), load_model(directory)
    expected, found = backward(exact, torch.float32), backward(rounded, BF16)
    assert 0 < (found - expected).abs().max() < 0.1
    assert found.dtype == gradient(rounded).dtype == torch.float32
    assert torch.cosine_similarity(gradient(exact), gradient(rounded), dim=0) > 0.995


def test_gradients_of_several_passes_add_up_in_float32(directory):
    model, one, other = (load_model(directory) for _ in range(3))
    for seed in (1, 2):
        backward(model, BF16, seed)
    backward(one, BF16, 1)
    backward(other, BF16, 2)
    assert torch.equal(gradient(model), gradient(one) + gradient(other))


def test_a_pass_is_what_a_bfloat16_model_computes(directory, tmp_path):
    found = backward(load_model(directory), BF16)
    served = load_model(directory, dtype="bfloat16")
    with torch.no_grad():
        assert torch.equal(found, token_logprobs(served, pack(random_sequences(6))).logprobs)


def test_checkpointed_activations_are_computed_again_with_the_same_copies(directory):
    plain, checkpointed = load_model(directory), load_model(directory)
    prepare_layers(checkpointed, LayerSettings(activation_checkpointing=True))
    backward(plain, BF16)
    backward(checkpointed, BF16)
    assert torch.equal(gradient(plain), gradient(checkpointed))


def test_the_weights_are_restored_after_an_error(directory):
    model = load_model(directory)
    before = list(model.parameters())

    def fail():
        with with_weights(model, weight_copies(model, BF16)):
            assert model.dtype == BF16
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))


def test_small_steps_change_float32_weights_but_not_bfloat16_ones(directory):
    """At a learning rate of 1e-6, as in reinforcement learning, 40 steps of one sign."""
    pure, trained = load_model(directory, dtype="bfloat16"), load_model(directory)
    start = published_tensors(trained, BF16)
    name = "model.layers.0.mlp.up_proj.weight"
    optimizers = [Optimizer(model, OptimizerSettings(learning_rate=1e-6)) for model in (pure, trained)]
    for _ in range(40):
        for model, optimizer in zip((pure, trained), optimizers, strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    large = start[name].abs() > 2**-9  # 1e-6 is less than half of the last place of every one of these
    assert large.float().mean() > 0.9
    assert torch.equal(pure.state_dict()[name][large], start[name][large])
    moved = trained.state_dict()[name] - start[name].float()
    assert moved[large].mean().item() == pytest.approx(-40e-6, rel=0.2)
    assert (published_tensors(trained, BF16)[name] != start[name]).float().mean() > 0.05


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_bfloat16_model_is_saved_unchanged(tmp_path, tied):
    directory = write_model(tmp_path / "in", "llama", dtype=BF16, tie_word_embeddings=tied)
    model = load_model(directory)
    assert model.dtype == torch.float32
    save_model(model, tmp_path / "out", published_tensors(model, BF16))
    assert file_sha256(tmp_path / "out" / "model.safetensors") == file_sha256(directory / "model.safetensors")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == BF16


def test_in_float32_no_weights_are_copied_and_all_are_published(directory):
    model = load_model(directory)
    assert weight_copies(model, torch.float32) == {}
    assert all(
        published_tensors(model, torch.float32)[name].data_ptr() == parameter.data_ptr()
        for name, parameter in model.named_parameters()
    )
    assert unpublished_weights(model, torch.float32) == {}
    assert set(unpublished_weights(model, BF16)) == {name for name, _ in model.named_parameters()}
