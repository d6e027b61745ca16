import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.objects.store import file_sha256
from headrace.trainer.batches.packing import pack
from headrace.trainer.model.architectures import TESTED
from headrace.trainer.model.load import load_model, save_model
from headrace.trainer.model.logprobs import token_logprobs
from headrace.trainer.model.lora import LoraSettings, add_adapters, has_adapters
from headrace.trainer.model.published import as_published, published_tensors
from tests.trainer.builders import random_sequences
from tests.trainer.zoo import write_model

RANK = LoraSettings(rank=4, alpha=8.0)


def adapted(directory, settings=RANK, *, seed=0, dtype="float32"):
    model = load_model(directory, dtype=dtype)
    add_adapters(model, settings, seed=seed)
    return model


def trainable(model):
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def train(model):
    """Set adapters to values as after some training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def published(model, path, dtype=torch.float32):
    save_model(model, path, published_tensors(model, dtype))
    return path / "model.safetensors"


def plain_logprobs(path, sequences):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        tables = [model(torch.tensor(ids)[None]).logits[0].log_softmax(-1) for ids, _ in sequences]
    rows = zip(tables, sequences, strict=True)
    return torch.stack([table[index - 1, ids[index]] for table, (ids, mask) in rows for index in np.flatnonzero(mask)])


@pytest.mark.parametrize("model_type", sorted(TESTED))
def test_the_published_model_is_the_base_at_first_and_then_the_merged_one(tmp_path, model_type):
    directory = write_model(tmp_path / "base", model_type)
    model = adapted(directory)
    first = published(model, tmp_path / "first")
    assert file_sha256(first) == file_sha256(directory / "model.safetensors")

    train(model)
    sequences = random_sequences(5)
    with torch.no_grad():
        trained = token_logprobs(model, pack(sequences)).logprobs
        with as_published(model):
            merged = token_logprobs(model, pack(sequences)).logprobs
    again = published(model, tmp_path / "trained")
    served = plain_logprobs(tmp_path / "trained", sequences)
    torch.testing.assert_close(served, merged, atol=2e-5, rtol=0)
    torch.testing.assert_close(served, trained, atol=2e-4, rtol=0)
    assert (served - plain_logprobs(directory, sequences)).abs().max() > 0.05
    assert file_sha256(published(model, tmp_path / "twice")) == file_sha256(again)
    assert {file.name for file in (tmp_path / "trained").iterdir()} == {file.name for file in directory.iterdir()}


def test_only_adapters_are_trainable_and_the_base_is_untouched(tmp_path):
    directory = write_model(tmp_path / "base", "qwen3")
    model, base = adapted(directory), load_model(directory)
    assert has_adapters(model)
    assert not has_adapters(base)
    assert len(trainable(model)) == 2 * 2 * 7
    assert all(".lora_A." in name or ".lora_B." in name for name in trainable(model))
    token_logprobs(model, pack(random_sequences(3))).logprobs.sum().backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == set(trainable(model))
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert all(torch.equal(one, other) for one, other in zip(frozen, base.parameters(), strict=True))


def test_merging_is_the_frozen_weight_plus_alpha_over_rank_times_the_product(tmp_path):
    model = adapted(write_model(tmp_path / "base", "llama"), LoraSettings(rank=4, alpha=2.0, targets=("v_proj",)))
    train(model)
    layer = model.model.layers[1].self_attn.v_proj
    expected = layer.base_layer.weight + 0.5 * layer.lora_B.default.weight @ layer.lora_A.default.weight
    found = published_tensors(model, torch.float32)["model.layers.1.self_attn.v_proj.weight"]
    torch.testing.assert_close(found, expected)


def test_targets_choose_matrices_and_an_unknown_one_is_named(tmp_path):
    directory = write_model(tmp_path / "base", "llama")
    model = adapted(directory, LoraSettings(rank=2, targets=("q_proj", "v_proj")))
    assert {name.split(".")[4] for name in trainable(model)} == {"q_proj", "v_proj"}
    with pytest.raises(ValueError, match=r"targets query: the layers have .*q_proj"):
        adapted(directory, LoraSettings(rank=2, targets=("query",)))


def test_adapters_depend_on_the_seed_alone(tmp_path):
    directory = write_model(tmp_path / "base", "llama")
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    one, same, other = (adapted(directory, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected)
    first = {name: parameter for name, parameter in trainable(one).items() if "lora_A" in name}
    assert all(torch.equal(parameter, trainable(same)[name]) for name, parameter in first.items())
    assert not any(torch.equal(parameter, trainable(other)[name]) for name, parameter in first.items())


def test_adapters_of_frozen_bfloat16_weights_are_float32(tmp_path):
    directory = write_model(tmp_path / "base", "llama", dtype=torch.bfloat16)
    model = adapted(directory, dtype="bfloat16")
    assert {parameter.dtype for parameter in trainable(model).values()} == {torch.float32}
    assert model.model.layers[0].mlp.up_proj.base_layer.weight.dtype == torch.bfloat16
    first = published(model, tmp_path / "first", torch.bfloat16)
    assert file_sha256(first) == file_sha256(directory / "model.safetensors")


def test_in_bfloat16_adapters_compute_as_they_are_published_and_only_while_that_is_asked_for(tmp_path):
    """A separate adapter rounds differently from a merged one."""
    model = adapted(write_model(tmp_path / "base", "llama", dtype=torch.bfloat16), dtype="bfloat16")
    train(model)
    published(model, tmp_path / "trained", torch.bfloat16)
    packed = pack(random_sequences(5))
    with torch.no_grad():
        before = token_logprobs(model, packed).logprobs
        with as_published(model):
            merged = token_logprobs(model, packed).logprobs
        after = token_logprobs(model, packed).logprobs
        served = token_logprobs(load_model(tmp_path / "trained", dtype="bfloat16"), packed).logprobs
    assert torch.equal(merged, served)
    assert (before - served).abs().max() > 1e-3
    assert torch.equal(before, after)


def test_only_one_layer_is_merged_at_a_time(tmp_path):
    model = adapted(write_model(tmp_path / "base", "llama"))
    weights = [layer.mlp.up_proj.base_layer.weight for layer in model.model.layers]
    seen = []

    def look(*_):
        seen.append([layer.mlp.up_proj.base_layer.weight is not w for layer, w in zip(model.model.layers, weights)])  # noqa: B905

    for layer in model.model.layers:
        layer.mlp.register_forward_hook(look)
    with as_published(model):
        token_logprobs(model, pack(random_sequences(3)))
    look()
    assert seen == [[True, False], [False, True], [False, False]]


def test_the_weights_are_restored_if_a_layer_fails(tmp_path):
    model = adapted(write_model(tmp_path / "base", "llama"))
    before = list(model.parameters())

    def fail(*_):
        raise KeyError

    model.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(KeyError), as_published(model):
        token_logprobs(model, pack(random_sequences(3)))
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    assert not any(layer._forward_pre_hooks for layer in model.model.layers)


@pytest.mark.parametrize(
    ("settings", "named"), [({"rank": -1}, "rank"), ({"alpha": 0.0}, "alpha"), ({"targets": ()}, "targets")]
)
def test_an_invalid_setting_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        LoraSettings(**settings)
