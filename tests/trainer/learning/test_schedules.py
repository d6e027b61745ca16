import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.learning.schedules import RateShape, ScheduleSettings, rate_share


def shares(steps, **settings):
    return [rate_share(ScheduleSettings(**settings), step) for step in range(steps)]


def test_a_constant_rate_does_not_change():
    assert shares(3) == [1.0, 1.0, 1.0]


def test_a_warm_up_begins_above_0_and_ends_at_1():
    assert shares(5, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_linear_decay_ends_at_the_set_step():
    expected = [1 / 2, 1.0, 1.0, 0.775, 0.55, 0.325, 0.1, 0.1]
    assert shares(8, shape="linear", warmup_steps=2, decay_steps=6, final_share=0.1) == pytest.approx(expected)


def test_a_cosine_decay_is_half_way_in_the_middle():
    found = shares(8, shape="cosine", decay_steps=4)
    assert found == pytest.approx([1.0, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2, 0, 0, 0, 0])


@given(
    st.sampled_from([RateShape.LINEAR, RateShape.COSINE]),
    st.integers(0, 20),
    st.integers(1, 50),
    st.floats(0, 1),
)
def test_after_the_warm_up_it_never_rises_and_ends_at_the_final_share(shape, warmup, decay, final):
    settings = ScheduleSettings(shape=shape, warmup_steps=warmup, decay_steps=warmup + decay, final_share=final)
    found = [rate_share(settings, step) for step in range(warmup + decay + 3)]
    assert all(later <= earlier + 1e-12 for earlier, later in zip(found[warmup:], found[warmup + 1 :], strict=False))
    assert found[:warmup] == sorted(found[:warmup])
    assert found[-3:] == pytest.approx([final] * 3)
    assert all(0 <= share <= 1 for share in found)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"shape": "exponential"}, "shape"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"final_share": 1.5}, "final_share"),
        ({"decay_steps": 5}, "decay_steps"),
        ({"shape": "cosine", "warmup_steps": 5, "decay_steps": 5}, "decay_steps"),
    ],
)
def test_an_invalid_setting_is_named(settings, named):
    with pytest.raises(ValueError, match=named):
        ScheduleSettings(**settings)


def test_a_decay_without_an_end_is_refused():
    with pytest.raises(ValueError, match="decay_steps"):
        rate_share(ScheduleSettings(shape="cosine"), 0)
