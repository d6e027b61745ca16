"""Every loss learns a bandit with a known optimum, with every baseline."""

import pytest

from headrace.streams.grouping.baselines import Baseline
from headrace.trainer.losses.registry import LOSSES
from tests.trainer.bandit import VOCABULARY, Bandit, BanditSettings, Policy, learn

STEPS = 40


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("baseline", Baseline)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_every_loss_approaches_the_optimum_with_every_baseline(loss, baseline, seed):
    learnt = learn(BanditSettings(loss=loss, baseline=baseline, seed=seed), STEPS)
    assert learnt.rewards[0] < 1.5 / VOCABULARY
    assert learnt.rewards[-1] > 0.8


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("baseline", [Baseline.MEAN, Baseline.RUNNING])
def test_the_control_learns_nothing_from_shuffled_advantages(loss, baseline):
    learnt = learn(BanditSettings(loss=loss, baseline=baseline, control=True), STEPS)
    assert max(learnt.rewards) < 0.3


def test_the_optimum_is_one_and_knowing_nothing_earns_a_share_of_the_vocabulary():
    import numpy as np

    bandit = Bandit(0)
    knows = np.full((*bandit.wanted.shape, VOCABULARY), -50.0)
    np.put_along_axis(knows, bandit.wanted[..., None], 0.0, -1)
    assert bandit.expected_reward(knows) == pytest.approx(1.0)
    assert bandit.expected_reward(np.full_like(knows, -np.log(VOCABULARY))) == pytest.approx(1 / VOCABULARY)
    assert {attempt.reward for attempt in bandit.sample(knows, 4)} == {1.0}
    assert bandit.expected_reward(Policy(0).logprobs()) < 0.2
