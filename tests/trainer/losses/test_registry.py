import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.trainer.losses.registry import LOSSES, loss_named
from headrace.trainer.losses.settings import AdvantageScale, CorrectionSettings, LossSettings, Normaliser
from tests.trainer.losses.builders import Token, at_ratio, evaluate

NAMES = sorted(LOSSES)
CLIPPED = ["dapo", "dr_grpo", "grpo"]
LOGPROBS = st.floats(-8, 0)
TOKENS = st.builds(Token, LOGPROBS, LOGPROBS, st.floats(-2, 2), LOGPROBS, st.integers(0, 3))
few = settings(max_examples=20, deadline=None)
TRAJECTORIES = st.lists(st.lists(TOKENS, min_size=1, max_size=8), min_size=1, max_size=6)


def test_the_clipped_losses_by_hand():
    # min(ρA, clip(ρ)A): 1, 1.2 (clipped), −0.8 (clipped) | −1.5, 0.5
    first = [at_ratio(1.0), at_ratio(1.5), at_ratio(0.5, -1.0)]
    second = [at_ratio(1.5, -1.0), at_ratio(0.5)]
    found = evaluate("dr_grpo", [first, second], constant_length=5)
    assert found.loss == pytest.approx(-(1 + 1.2 - 0.8 - 1.5 + 0.5) / (2 * 5))
    assert found.gradient == pytest.approx([-0.1, 0, 0, 0.15, -0.05])
    assert found.clipped == {"clip_fraction_low": 1, "clip_fraction_high": 1}

    found = evaluate("grpo", [first, second])
    assert found.loss == pytest.approx(-((1 + 1.2 - 0.8) / 3 + (-1.5 + 0.5) / 2) / 2)
    assert found.gradient == pytest.approx([-1 / 6, 0, 0, 1.5 / 4, -0.5 / 4])

    found = evaluate("dapo", [first, second])
    assert found.loss == pytest.approx(-(1 + 1.28 - 0.8 - 1.5 + 0.5) / 5)
    assert found.gradient == pytest.approx([-0.2, 0, 0, 0.3, -0.1])


def test_gspo_by_hand():
    # s = √(1.2 · 0.9) = 1.0392 is clipped with A > 0 and not with A < 0; s = 1.0002 is inside.
    up, down = ([at_ratio(1.2, advantage), at_ratio(0.9, advantage)] for advantage in (1.0, -2.0))
    near = [at_ratio(1.0004), at_ratio(1.0)]
    s, t = math.sqrt(1.08), math.sqrt(1.0004)
    found = evaluate("gspo", [up, down, near])
    assert found.loss == pytest.approx(-(1.0004 - 2 * s + t) / 3)
    assert found.gradient == pytest.approx([0, 0, s / 3, s / 3, -t / 6, -t / 6])
    assert found.clipped == {"clip_fraction_low": 0, "clip_fraction_high": 2}


def test_gspos_sequence_is_the_trajectory_in_all_its_segments():
    trajectory = [at_ratio(1.0003), at_ratio(0.9998), at_ratio(1.0004)]
    whole = evaluate("gspo", [trajectory, [at_ratio(1.0)]])
    divided = evaluate("gspo", [trajectory, [at_ratio(1.0)]], segments=[3, 1])
    assert divided.gradient == whole.gradient
    assert divided.loss == whole.loss


def test_cispo_by_hand():
    tokens = [at_ratio(1.0), at_ratio(8.0), at_ratio(0.01, -1.0), at_ratio(5.0, -0.5)]
    found = evaluate("cispo", [tokens], constant_length=2)
    weights = [1.0, 5.0, -0.01, -2.5]
    assert found.loss == pytest.approx(-sum(weights) * math.log(0.2) / 2)
    assert found.gradient == pytest.approx([-weight / 2 for weight in weights])
    assert found.clipped == {"clip_fraction_low": 0, "clip_fraction_high": 1}


def test_kimi_by_hand():
    tokens = [at_ratio(1.5, 2.0), at_ratio(3.0, 1.0), at_ratio(3.0, -1.0), at_ratio(0.25, 1.0), at_ratio(0.25, -1.0)]
    found = evaluate("kimi", [tokens], log_ratio_penalty=0.5)
    log = math.log(1.5)
    outside = 2 - 2 + 0.5 - 0.5 - 4 * 0.5 * math.log(2) ** 2
    assert found.loss == pytest.approx(-(1.5 * 2.0 - 0.5 * log**2 + outside) / 5)
    assert found.gradient == pytest.approx([-(1.5 * 2.0 - 2 * 0.5 * log) / 5, 0, 0, 0, 0])
    assert found.clipped == {"clip_fraction_low": 2, "clip_fraction_high": 2}


def test_decoupled_by_hand():
    # π_prox / π_b = 3, 0.5, 2 and u = 1.1 (inside), 1.5 with A > 0 (clipped), 1.5 with A < 0 (not)
    tokens = [
        at_ratio(3.3, 1.0, prox_ratio=3.0),
        at_ratio(0.75, 1.0, prox_ratio=0.5),
        at_ratio(3.0, -1.0, prox_ratio=2.0),
    ]
    found = evaluate("decoupled", [tokens])
    assert found.loss == pytest.approx(-(3 * 1.1 + 0.5 * 1.2 - 2 * 1.5) / 3)
    assert found.gradient == pytest.approx([-3.3 / 3, 0, 3.0 / 3])
    assert found.clipped == {"clip_fraction_low": 0, "clip_fraction_high": 1}


@pytest.mark.parametrize("name", NAMES)
@few
@given(st.lists(st.lists(st.tuples(LOGPROBS, st.floats(-2, 2)), min_size=1, max_size=5), min_size=1, max_size=4))
def test_on_policy_every_loss_has_the_plain_policy_gradient(name, trajectories):
    tokens = [[Token(logprob, logprob, a, logprob) for logprob, a in each] for each in trajectories]
    # A ratio of whole trajectories gives their tokens one advantage; elsewhere they may differ, as with the KL penalty.
    if loss_named(name).whole_trajectories:
        tokens = [[token._replace(advantage=each[0].advantage) for token in each] for each in tokens]
    found = evaluate(name, tokens, normaliser="token_mean")
    flat = [token.advantage for each in tokens for token in each]
    assert found.gradient == pytest.approx([-a / len(flat) for a in flat])


@few
@given(TRAJECTORIES)
def test_cispo_leaves_every_token_a_gradient(trajectories):
    found = evaluate("cispo", trajectories, normaliser="token_mean")
    tokens = [token for each in trajectories for token in each]
    for token, slope in zip(tokens, found.gradient, strict=True):
        ratio = math.exp(token.logprob - token.behaviour)
        assert slope == pytest.approx(-min(ratio, 5.0) * token.advantage / len(tokens))


@pytest.mark.parametrize("name", CLIPPED)
@few
@given(trajectories=TRAJECTORIES)
def test_the_clip_removes_the_gradient_beyond_the_bound(name, trajectories):
    found = evaluate(name, trajectories, normaliser="token_mean", clip_low=0.2, clip_high=0.3)
    tokens = [token for each in trajectories for token in each]
    for token, slope in zip(tokens, found.gradient, strict=True):
        ratio = math.exp(token.logprob - token.behaviour)
        silenced = (ratio > 1.3 and token.advantage > 0) or (ratio < 0.8 and token.advantage < 0)
        assert slope == pytest.approx(0.0 if silenced else -ratio * token.advantage / len(tokens))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo"])
def test_with_a_dual_clip_a_token_recorded_far_too_low_does_not_outweigh_others(name):
    """Its ratio is e^15; without the bound its gradient is a million times that of the others."""
    poisoned = [[at_ratio(math.exp(15.0), -1.0), at_ratio(1.0, -1.0)]]
    far, near = evaluate(name, poisoned).gradient
    assert far > 1e6 * near > 0
    far, kept = evaluate(name, poisoned, dual_clip=3.0).gradient
    assert (far, kept) == (0.0, near)
    for ratio, advantage in ((2.9, -1.0), (3.1, 1.0), (0.5, -1.0), (1.1, 1.0)):
        (bounded,) = evaluate(name, [[at_ratio(ratio, advantage)]], dual_clip=3.0).gradient
        assert bounded == evaluate(name, [[at_ratio(ratio, advantage)]]).gradient[0]


def test_a_dual_clip_that_would_clip_unchanged_tokens_is_refused():
    with pytest.raises(ValueError, match="dual_clip is 1"):
        LossSettings(dual_clip=1.0)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize(("ratio", "inside"), [(0.45, False), (0.6, True), (1.9, True), (2.2, False)])
def test_kimis_mask_is_the_same_for_either_sign(ratio, advantage, inside):
    (slope,) = evaluate("kimi", [[at_ratio(ratio, advantage)]]).gradient
    assert (slope != 0) == inside


@pytest.mark.parametrize("ratio", [10.0, 0.01])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_outside_the_clip_cispo_has_a_gradient_and_grpo_does_not(ratio, advantage):
    (kept,) = evaluate("cispo", [[at_ratio(ratio, advantage)]]).gradient
    (clipped,) = evaluate("grpo", [[at_ratio(ratio, advantage)]]).gradient
    assert kept != 0
    assert (clipped == 0) == ((ratio > 1) == (advantage > 0))


@pytest.mark.parametrize("name", NAMES)
@few
@given(trajectories=TRAJECTORIES, data=st.data())
def test_the_gradient_does_not_depend_on_the_division_into_passes(name, trajectories, data):
    whole_trajectories = loss_named(name).whole_trajectories
    segments = [data.draw(st.integers(1, 3)) for _ in trajectories]
    normaliser = data.draw(st.sampled_from(Normaliser))
    whole = evaluate(name, trajectories, segments=segments, normaliser=normaliser)
    count = sum(min(parts, len(each)) for parts, each in zip(segments, trajectories, strict=True))
    owners = [n for n, each in enumerate(trajectories) for _ in range(min(segments[n], len(each)))]
    pass_of = [data.draw(st.integers(0, 3)) for _ in range(count)]
    if whole_trajectories:
        pass_of = [pass_of[owner] for owner in owners]
    passes = [[s for s in range(count) if pass_of[s] == number] for number in range(4)]

    divided = evaluate(
        name, trajectories, segments=segments, passes=[each for each in passes if each], normaliser=normaliser
    )

    assert divided.loss == pytest.approx(whole.loss, rel=1e-6, abs=1e-9)
    assert divided.gradient == pytest.approx(whole.gradient, rel=1e-6, abs=1e-9)
    assert divided.clipped == whole.clipped


@pytest.mark.parametrize("name", NAMES)
@few
@given(trajectories=TRAJECTORIES, order=st.randoms(use_true_random=False))
def test_the_order_of_trajectories_does_not_matter(name, trajectories, order):
    places = list(range(len(trajectories)))
    order.shuffle(places)
    found = evaluate(name, trajectories)
    permuted = evaluate(name, [trajectories[place] for place in places])
    assert permuted.loss == pytest.approx(found.loss)
    bounds = [0]
    for each in trajectories:
        bounds.append(bounds[-1] + len(each))
    expected = [slope for place in places for slope in found.gradient[bounds[place] : bounds[place + 1]]]
    assert permuted.gradient == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
def test_an_overflowing_ratio_gives_finite_values(name):
    far = [[Token(0.0, -500.0, advantage, -250.0), Token(-500.0, 0.0, advantage, -250.0)] for advantage in (1.0, -1.0)]
    found = evaluate(name, far, dtype=np.float32)
    assert all(map(math.isfinite, [found.loss, *found.gradient]))


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_has_the_settings_it_was_published_with(name):
    published = {
        "grpo": (Normaliser.SEQUENCE_MEAN, AdvantageScale.GROUP_STD),
        "dr_grpo": (Normaliser.CONSTANT_LENGTH, AdvantageScale.NONE),
        "dapo": (Normaliser.TOKEN_MEAN, AdvantageScale.GROUP_STD),
        "gspo": (Normaliser.SEQUENCE_MEAN, AdvantageScale.GROUP_STD),
        "cispo": (Normaliser.CONSTANT_LENGTH, AdvantageScale.NONE),
        "kimi": (Normaliser.TOKEN_MEAN, AdvantageScale.NONE),
        "decoupled": (Normaliser.TOKEN_MEAN, AdvantageScale.NONE),
    }
    loss = loss_named(name)
    assert (loss.normaliser, loss.advantage_scale) == published[name]
    changed = loss_named(name, LossSettings(normaliser=Normaliser.TOKEN_MEAN, advantage_scale=AdvantageScale.NONE))
    assert (changed.normaliser, changed.advantage_scale) == (Normaliser.TOKEN_MEAN, AdvantageScale.NONE)


def test_the_error_for_an_unknown_loss_lists_the_known_ones():
    with pytest.raises(ValueError, match=f"choose one of {', '.join(NAMES)}$"):
        loss_named("no such loss")


@pytest.mark.parametrize(
    ("name", "bound"), [("cispo", "clip_high"), ("grpo", "ratio_max"), ("kimi", "clip_low"), ("dapo", "log_ratio_min")]
)
def test_a_setting_that_the_loss_does_not_know_is_refused(name, bound):
    with pytest.raises(ValueError, match=f"{bound} is not a setting of the loss {name}"):
        loss_named(name, LossSettings(**{bound: 0.0}))


def test_decoupled_with_an_importance_correction_is_refused():
    with pytest.raises(ValueError, match="importance is truncate and the loss decoupled"):
        loss_named("decoupled", correction=CorrectionSettings(importance="truncate"))
