"""The miniature is small and reproducible, and does not change the caller's random state."""

import torch

from headrace.trainer.model.miniature import miniature_qwen3


def weights(seed: int) -> torch.Tensor:
    model = miniature_qwen3(208, end_id=1, pad_id=0, seed=seed)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_weights_depend_on_the_seed_alone() -> None:
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_it_has_about_a_third_of_a_million_float32_parameters() -> None:
    assert 300_000 < len(weights(0)) < 400_000
    assert weights(0).dtype is torch.float32


def test_a_tied_one_shares_its_embedding_with_the_head() -> None:
    model = miniature_qwen3(208, end_id=1, pad_id=0, seed=0, tied=True)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_global_generator_is_unchanged() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    weights(0)
    assert torch.equal(torch.rand(3), expected)


def test_heads_can_have_keys_of_their_own() -> None:
    model = miniature_qwen3(208, end_id=1, pad_id=0, seed=0, key_value_heads=3)
    assert model.model.layers[0].self_attn.k_proj.weight.shape == (96, 96)
    assert miniature_qwen3(208, end_id=1, pad_id=0, seed=0).model.layers[0].self_attn.k_proj.weight.shape == (32, 96)
