import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.trainer.losses.corrections import correct
from headrace.trainer.losses.settings import CorrectionSettings, Level
from tests.trainer.losses.builders import at_ratio, evaluate


def corrected(ratios, *, trajectories=None, lags=None, **options):
    prox = torch.tensor(ratios, dtype=torch.float64).log()
    return correct(
        prox,
        torch.zeros_like(prox),
        torch.tensor(lags or [0] * len(ratios)),
        torch.tensor(trajectories or [0] * len(ratios)),
        CorrectionSettings(**options),
    )


def test_without_a_correction_all_tokens_weigh_the_same():
    found = corrected([0.1, 1.0, 50.0])
    assert found.weights.tolist() == [1.0, 1.0, 1.0]
    assert found.metrics == {
        "tokens_kept": 3.0,
        "tokens_kept_share": 1.0,
        "tokens_masked_stale": 0.0,
        "tokens_masked_ratio": 0.0,
    }


def test_truncation_bounds_the_weight_from_above_alone():
    found = corrected([0.1, 1.0, 1.9, 50.0], importance="truncate")
    assert found.weights.tolist() == pytest.approx([0.1, 1.0, 1.9, 2.0])
    assert found.metrics["tokens_kept"] == 4
    assert found.metrics["correction_weight_mean"] == pytest.approx(5.0 / 4)
    assert found.metrics["correction_truncated"] == 0.25


def test_the_mask_keeps_what_is_inside_its_bounds_with_its_weight():
    found = corrected([0.49, 0.51, 1.9, 2.1], importance="mask")
    assert found.weights.tolist() == pytest.approx([0.0, 0.51, 1.9, 0.0])
    assert (found.metrics["tokens_kept"], found.metrics["tokens_masked_ratio"]) == (2, 2)
    assert found.metrics["correction_weight_mean"] == pytest.approx(2.41 / 2)


def test_a_trajectorys_ratio_is_the_mean_or_the_product_of_its_tokens():
    ratios, trajectories = [4.0, 1.0, 1.5], [0, 0, 1]
    mean = corrected(ratios, trajectories=trajectories, importance="truncate", level="geometric_mean", ratio_max=10)
    assert mean.weights.tolist() == pytest.approx([2.0, 2.0, 1.5])
    product = corrected(ratios, trajectories=trajectories, importance="truncate", level="product", ratio_max=3)
    assert product.weights.tolist() == pytest.approx([3.0, 3.0, 1.5])
    masked = corrected(ratios, trajectories=trajectories, importance="mask", level="product", ratio_max=3)
    assert masked.weights.tolist() == pytest.approx([0.0, 0.0, 1.5])


@pytest.mark.parametrize(("level", "ratio"), [("geometric_mean", 2.0), ("product", 4.0)])
def test_stale_tokens_are_masked_and_excluded_from_their_trajectorys_ratio(level, ratio):
    found = corrected(
        [9.0, 4.0, 1.0], lags=[3, 2, 0], max_token_staleness=2, importance="truncate", level=level, ratio_max=100.0
    )
    assert found.weights.tolist() == pytest.approx([0.0, ratio, ratio])
    assert (found.metrics["tokens_masked_stale"], found.metrics["tokens_masked_ratio"]) == (1, 0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-200, 200), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30),
    st.sampled_from(["none", "truncate", "mask"]),
    st.sampled_from(Level),
)
def test_every_token_is_kept_or_masked_for_one_reason_and_no_weight_is_unbounded(tokens, importance, level):
    log_ratios, trajectories, lags = (torch.tensor(column) for column in zip(*tokens, strict=True))
    options = {} if importance == "none" else {"importance": importance, "level": level}
    found = correct(
        log_ratios,
        torch.zeros_like(log_ratios),
        lags,
        trajectories,
        CorrectionSettings(max_token_staleness=2, **options),
    )
    counted = [found.metrics[name] for name in ("tokens_kept", "tokens_masked_stale", "tokens_masked_ratio")]
    assert sum(counted) == len(tokens)
    assert (found.weights > 0).sum() == counted[0]
    assert ((found.weights >= 0) & (found.weights <= 2)).all()


@pytest.mark.parametrize("loss", ["dapo", "dr_grpo", "cispo", "gspo", "kimi"])
def test_masked_tokens_do_not_count_in_the_divisor(loss):
    kept = [at_ratio(1.1, prox_ratio=1.1), at_ratio(1.2, prox_ratio=1.2)]
    gone = [at_ratio(30.0, prox_ratio=30.0), at_ratio(1.0, lag=9)]
    correction = CorrectionSettings(importance="mask", max_token_staleness=3)
    with_them = evaluate(loss, [[*kept, *gone], gone], correction=correction)
    without = evaluate(loss, [kept], correction=correction)
    assert with_them.gradient == pytest.approx([*without.gradient, 0.0, 0.0, 0.0, 0.0])
    assert with_them.loss == pytest.approx(without.loss)
    assert with_them.metrics["tokens_masked_stale"] == 2


def test_with_a_correction_the_losss_ratio_is_relative_to_the_policy_before_the_step():
    # π / π_prox = 1.1 is inside the clip, π / π_b = 3.3 would be outside; π_prox / π_b = 3 is truncated to 2.
    (slope,) = evaluate(
        "dapo", [[at_ratio(3.3, prox_ratio=3.0)]], correction=CorrectionSettings(importance="truncate")
    ).gradient
    assert slope == pytest.approx(-2 * 1.1)
    assert evaluate("dapo", [[at_ratio(3.3, prox_ratio=3.0)]]).gradient == [0.0]


def test_decoupled_equals_the_clip_with_an_unreached_truncation():
    tokens = [
        [at_ratio(3.3, prox_ratio=3.0), at_ratio(0.3, -1.0, prox_ratio=0.2)],
        [at_ratio(8.0, -2.0, prox_ratio=9.0)],
    ]
    never = CorrectionSettings(importance="truncate", ratio_max=1e6)
    assert evaluate("decoupled", tokens).gradient == pytest.approx(
        evaluate("dapo", tokens, correction=never, clip_high=0.2).gradient
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ratio_max": 3.0}, "ratio_max"),
        ({"level": "product"}, "level is product"),
        ({"importance": "truncate", "ratio_min": 0.1}, "ratio_min"),
        ({"importance": "mask", "ratio_min": 3.0}, "ratio_min is 3.0 and ratio_max 2.0"),
        ({"importance": "truncate", "ratio_max": math.nan}, "ratio_max"),
        ({"importance": "clip"}, "importance is 'clip': choose one of none, truncate, mask"),
        ({"max_token_staleness": -1}, "max_token_staleness"),
    ],
)
def test_contradictory_settings_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        CorrectionSettings(**options)
