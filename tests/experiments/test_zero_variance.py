"""The short form of ``zero_variance.py``: one seed."""

import pytest

from tests.experiments.zero_variance import LOSSES, compare, difference


@pytest.mark.parametrize("loss", LOSSES)
def test_dropping_groups_of_equal_rewards_changes_no_gradient_but_the_batch_size(loss):
    run = compare(loss, seed=0, drop=False, steps=20)
    assert any(0 < step.equal < 1 for step in run)
    assert difference(run) < 1e-5
    for step in run:
        assert step.ratio == pytest.approx(step.size, rel=1e-3)


def test_off_policy_only_kimis_penalty_changes_the_gradient():
    def at(loss):
        return difference(compare(loss, seed=0, drop=False, steps=20, off_policy=True))

    assert at("dr_grpo") < 1e-5
    assert at("kimi") > 1e-3
