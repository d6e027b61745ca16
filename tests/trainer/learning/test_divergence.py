import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.checkpoints.checkpoint import CheckpointState
from headrace.trainer.learning.divergence import (
    DivergenceSettings,
    TrainingDiverged,
    check_numbers,
    norm_limit,
    with_norm,
)

SETTINGS = DivergenceSettings(max_norm_ratio=10, norm_window=4, norm_history=2)


def test_the_first_steps_may_have_any_norm():
    assert norm_limit([], SETTINGS, max_grad_norm=1.0) == math.inf
    assert norm_limit([5.0], SETTINGS, max_grad_norm=1.0) == math.inf
    assert norm_limit([5.0, 7.0], SETTINGS, max_grad_norm=1.0) == 60.0


def test_a_norm_below_the_clipping_norm_is_never_too_large():
    assert norm_limit([0.001, 0.001], SETTINGS, max_grad_norm=1.0) == 1.0


def test_the_rule_can_be_switched_off():
    assert norm_limit([1.0] * 9, DivergenceSettings(max_norm_ratio=None), max_grad_norm=1.0) == math.inf


@given(st.lists(st.floats(0, 1e30), min_size=2, max_size=64))
def test_one_outlier_does_not_move_the_limit_beyond_the_others(norms):
    limit = norm_limit([*norms, max(norms), 1e300], DivergenceSettings(norm_history=2), max_grad_norm=1.0)
    assert limit <= max(100 * max(norms), 1.0)


def test_only_the_newest_norms_are_kept():
    norms: list[float] = []
    for norm in range(6):
        norms = with_norm(norms, float(norm), SETTINGS)
    assert norms == [2.0, 3.0, 4.0, 5.0]


def test_norms_of_other_settings_are_not_compared_with():
    state = CheckpointState(run="run", version=3, offsets={}, announcements=[], grad_norms=[1.0], config_sha256="a")
    assert (state.norms_under("a"), state.norms_under("b")) == ([1.0], [])
    before_it_was_kept = state.model_copy(update={"config_sha256": ""})
    assert before_it_was_kept.norms_under("b") == [1.0]


def test_steps_without_a_gradient_do_not_lower_the_limit():
    norms = [5.0, 5.0]
    for _ in range(9):
        norms = with_norm(norms, 0.0, SETTINGS)
    assert norm_limit(norms, SETTINGS, max_grad_norm=1.0) == 50.0


@pytest.mark.parametrize(
    ("loss", "norm", "said"),
    [
        (math.nan, 1.0, "loss nan"),
        (math.inf, 1.0, "loss inf"),
        (0.0, math.nan, "gradient norm nan"),
        (0.0, math.inf, "gradient norm inf"),
        (0.0, 3.1, "gradient norm 3.1 while training version 7: above 3"),
    ],
)
def test_a_diverged_step_raises_with_its_figures(loss, norm, said):
    with pytest.raises(TrainingDiverged, match=said):
        check_numbers(loss, norm, limit=3.0, version=7)


def test_finite_numbers_within_the_limit_pass():
    check_numbers(-1.0, 3.0, limit=3.0, version=7)


@pytest.mark.parametrize(
    "wrong", [{"max_norm_ratio": 1.0}, {"norm_window": 0}, {"retries": -1}, {"norm_history": 65}, {"max_skipped": 0}]
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DivergenceSettings(**wrong)
