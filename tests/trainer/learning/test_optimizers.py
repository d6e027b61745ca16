import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from headrace.trainer.learning.optimizers import Optimizer, OptimizerName, OptimizerSettings, choose_optimizers
from headrace.trainer.model.miniature import miniature_qwen3

ADAMW, MUON = OptimizerName


def model(*, tied=False, seed=0):
    return miniature_qwen3(50, end_id=1, pad_id=0, seed=seed, tied=tied)


def give_gradients(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def moved(policy, optimizer, steps):
    for step in steps:
        give_gradients(policy, step)
        optimizer.clip(1.0)
        optimizer.step()
    return [parameter.detach().clone() for parameter in policy.parameters()]


def test_muon_updates_the_hidden_matrices_and_nothing_else():
    chosen = choose_optimizers(model(), MUON)
    assert {name.split(".", 3)[-1] for name, optimizer in chosen.items() if optimizer == MUON} == {
        *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    }
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= {
        name for name, optimizer in chosen.items() if optimizer == ADAMW
    }


def test_adamw_updates_tied_and_position_embeddings_and_biases():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    chosen = choose_optimizers(gpt2, MUON)
    assert {name for name, optimizer in chosen.items() if optimizer == MUON} == {
        f"transformer.h.0.{part}.weight" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }


def test_adamw_updates_everything_but_frozen_parameters():
    policy = model()
    policy.model.embed_tokens.weight.requires_grad_(False)
    chosen = choose_optimizers(policy, ADAMW)
    assert set(chosen.values()) == {ADAMW}
    assert set(chosen) == {name for name, _ in policy.named_parameters()} - {"model.embed_tokens.weight"}


def test_adamw_equals_torchs():
    one, other = model(), model()
    optimizer = Optimizer(one, OptimizerSettings(learning_rate=1e-2, weight_decay=0.0))
    reference = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(3):
        give_gradients(one, step)
        give_gradients(other, step)
        optimizer.step()
        reference.step()
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_a_step_of_muon_is_about_as_large_as_one_of_adamw():
    sizes = {}
    for name in OptimizerName:
        policy = model()
        before = policy.model.layers[0].mlp.up_proj.weight.detach().clone()
        moved(policy, Optimizer(policy, OptimizerSettings(name=name)), range(1))
        sizes[name] = (policy.model.layers[0].mlp.up_proj.weight - before).square().mean().sqrt().item()
    # Adam's first step is the learning rate itself; Liu et al. scale to the 0.2 of its later ones.
    assert 0.1 < sizes[MUON] / sizes[ADAMW] < 0.4


def test_norms_and_biases_do_not_decay():
    policy = model()
    optimizer = Optimizer(policy, OptimizerSettings(learning_rate=0.1, weight_decay=0.5))
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    optimizer.step()
    for parameter, old in zip(policy.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old * (0.95 if parameter.ndim >= 2 else 1.0))


@pytest.mark.parametrize("name", OptimizerName)
def test_a_restored_state_continues_bit_identically(name):
    settings = OptimizerSettings(name=name, weight_decay=0.01)
    whole = model()
    expected = moved(whole, Optimizer(whole, settings), range(5))

    first = model()
    optimizer = Optimizer(first, settings)
    moved(first, optimizer, range(2))
    tensors = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    second = model(seed=1)
    second.load_state_dict(first.state_dict())
    resumed = Optimizer(second, settings)
    resumed.restore(tensors)
    found = moved(second, resumed, range(2, 5))
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    # The optimiser copied the restored state: its next steps did not write into it.
    assert all(float(tensor) == 2.0 for key, tensor in tensors.items() if key.startswith("step/"))


def test_the_state_is_named_by_slot_and_parameter():
    policy = model()
    optimizer = Optimizer(policy, OptimizerSettings(name="muon"))
    assert optimizer.tensors() == {}
    moved(policy, optimizer, range(1))
    tensors = optimizer.tensors()
    assert tensors["momentum_buffer/model.layers.0.mlp.up_proj.weight"].shape == (288, 96)
    assert {key.split("/")[0] for key in tensors if key.endswith("/lm_head.weight")} == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }


def test_a_state_of_another_model_or_optimiser_is_refused_and_nothing_changes():
    policy = model()
    optimizer = Optimizer(policy, OptimizerSettings(name="muon"))
    moved(policy, optimizer, range(1))
    before = optimizer.tensors()
    for tensors, named in (
        ({"exp_avg/other.weight": torch.zeros(1)}, "checkpoint_dir"),
        ({"exp_avg/lm_head.weight": torch.zeros(2, 2)}, "another model"),
        ({"exp_avg/model.layers.0.mlp.up_proj.weight": torch.zeros(288, 96)}, "optimizer.name"),
    ):
        with pytest.raises(ValueError, match=named):
            optimizer.restore(tensors)
    assert {key: id(tensor) for key, tensor in optimizer.tensors().items()} == {
        key: id(tensor) for key, tensor in before.items()
    }


def test_restoring_nothing_clears_the_state():
    policy = model()
    optimizer = Optimizer(policy, OptimizerSettings())
    moved(policy, optimizer, range(1))
    optimizer.restore({})
    assert optimizer.tensors() == {}


def test_a_rate_is_a_share_of_the_learning_rate():
    policy = model()
    optimizer = Optimizer(policy, OptimizerSettings(name="muon", learning_rate=1e-2))
    assert optimizer.set_rate(0.5) == 5e-3
    assert optimizer.set_rate(0.0) == 0.0
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, moved(policy, optimizer, range(1)), strict=True))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "sgd"}, "name"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"momentum": 1.0}, "momentum"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"epsilon": 0.0}, "epsilon"),
    ],
)
def test_an_invalid_setting_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        OptimizerSettings(**settings)


def test_a_completely_frozen_model_is_refused():
    policy = model()
    for parameter in policy.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable"):
        Optimizer(policy, OptimizerSettings())
