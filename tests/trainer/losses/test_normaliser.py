import pytest
import torch

from headrace.trainer.losses.normaliser import normalise
from headrace.trainer.losses.settings import Normaliser

TRAJECTORIES = torch.tensor([4, 4, 4, 7, 9, 9])


def normalised(normaliser, kept=(1, 1, 1, 1, 1, 1)):
    weights, divisor = normalise(torch.tensor(kept).bool(), TRAJECTORIES, normaliser, constant_length=10)
    return weights.tolist(), divisor


def test_the_divisor_of_each_normaliser():
    ones = [1.0] * 6
    assert normalised(Normaliser.CONSTANT_LENGTH) == (ones, 30.0)
    assert normalised(Normaliser.TOKEN_MEAN) == (ones, 6.0)
    assert normalised(Normaliser.SEQUENCE_MEAN) == (pytest.approx([1 / 3, 1 / 3, 1 / 3, 1, 1 / 2, 1 / 2]), 3.0)


def test_only_kept_tokens_and_trajectories_with_kept_tokens_count():
    kept = (1, 0, 1, 0, 1, 1)
    weights = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert normalised(Normaliser.CONSTANT_LENGTH, kept) == (weights, 20.0)
    assert normalised(Normaliser.TOKEN_MEAN, kept) == (weights, 4.0)
    assert normalised(Normaliser.SEQUENCE_MEAN, kept) == ([0.5, 0.0, 0.5, 0.0, 0.5, 0.5], 2.0)


@pytest.mark.parametrize("normaliser", Normaliser)
def test_without_kept_tokens_the_divisor_is_zero(normaliser):
    assert normalised(normaliser, (0,) * 6) == ([0.0] * 6, 0.0)


@pytest.mark.parametrize("normaliser", Normaliser)
def test_divisors_of_ranks_that_hold_whole_trajectories_add_up(normaliser):
    kept = torch.tensor([1, 0, 1, 1, 1, 1]).bool()
    parts = [slice(0, 3), slice(3, 6)]
    divisors = [normalise(kept[part], TRAJECTORIES[part], normaliser, constant_length=10)[1] for part in parts]
    assert sum(divisors) == normalise(kept, TRAJECTORIES, normaliser, constant_length=10)[1]
