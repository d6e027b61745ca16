import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.alert import Severity
from headrace.trainer.learning.alarms import AlarmSettings, watch
from headrace.trainer.learning.metric_registry import METRICS


def alerts_of(values, settings=None, *, metric="kl_k3"):
    """Returns the steps at which an alarm of ``metric`` is raised; one value per step, ``None``: a step without it."""
    raised, found = {}, []
    for step, value in enumerate(values, 1):
        metrics = {} if value is None else {metric: value}
        alerts, raised = watch(metrics, raised, settings or AlarmSettings(), run="run", step=step)
        found += [alert.details["step"] for alert in alerts]
    return found


@pytest.mark.parametrize(
    ("metric", "value", "kind"),
    [
        ("effective_sample_size", 0.29, "effective_sample_size_below"),
        ("kl_k3", 0.11, "kl_k3_above"),
        ("chi2", 1.01, "chi2_above"),
        ("mismatch_kl", 0.011, "mismatch_kl_above"),
        ("clip_fraction_low", 0.6, "clip_fraction_low_above"),
        ("clip_fraction_high", 0.6, "clip_fraction_high_above"),
        ("tokens_kept_share", 0.4, "tokens_kept_share_below"),
        ("correction_truncated", 0.6, "correction_truncated_above"),
    ],
)
def test_every_threshold_raises_an_alert_with_a_remedy(metric, value, kind):
    ((alert,), raised) = watch({metric: value}, {}, AlarmSettings(), run="r", step=7)
    assert (alert.run, alert.source, alert.kind, alert.severity) == ("r", "trainer", kind, Severity.WARNING)
    assert alert.message.startswith(f"{metric} is {value:.3g} at step 7, ")
    assert alert.details["value"] == value
    assert raised == {kind: 0}
    bound = METRICS[metric].warn_above or METRICS[metric].warn_below
    assert watch({metric: bound}, {}, AlarmSettings(), run="r", step=7) == ([], {})


def test_an_episode_raises_one_alert_however_long_it_lasts():
    assert alerts_of([0.0, 0.2, 0.3, 0.2, 0.5]) == [2]


def test_a_metric_that_oscillates_around_its_bound_is_one_episode():
    assert alerts_of([0.2, 0.0, 0.2, 0.0, 0.0, 0.2, 0.0]) == [1]


def test_after_enough_steps_inside_the_bound_a_new_episode_begins():
    assert alerts_of([0.2, 0.0, 0.0, 0.0, 0.2]) == [1, 5]
    assert alerts_of([0.2, 0.0, 0.2], AlarmSettings(clear_after=1)) == [1, 3]


def test_a_step_without_the_metric_neither_begins_nor_ends_an_episode():
    assert alerts_of([None, 0.2, None, None, None, 0.2, 0.0, None, 0.0, None, 0.0, 0.2]) == [2, 12]


def test_nan_is_beyond_every_bound():
    assert alerts_of([math.nan]) == [1]
    assert alerts_of([math.nan], metric="effective_sample_size") == [1]


def test_a_bound_can_be_changed_or_removed():
    assert alerts_of([0.2], AlarmSettings(kl_k3_above=0.5)) == []
    assert alerts_of([9.0], AlarmSettings(kl_k3_above=None)) == []
    assert alerts_of([5.0], metric="staleness_p95") == []
    assert alerts_of([5.0], AlarmSettings(staleness_p95_above=4), metric="staleness_p95") == [1]
    with pytest.raises(ValueError, match="clear_after"):
        AlarmSettings(clear_after=0)


def test_every_threshold_of_the_registry_has_an_alarm_and_every_alarm_its_metric():
    declared = {
        (name, side)
        for name, metric in METRICS.items()
        for side, bound in (("below", metric.warn_below), ("above", metric.warn_above))
        if bound is not None
    }
    assert {tuple(kind.rsplit("_", 1)) for kind in AlarmSettings().bounds()} == declared


@given(st.lists(st.sampled_from([0.0, 0.2, None]), max_size=40), st.integers(1, 4))
def test_an_alert_follows_enough_steps_inside_the_bound(values, clear_after):
    measured = [(step, value > 0.1) for step, value in enumerate(values, 1) if value is not None]
    expected, quiet = [], None
    for step, beyond in measured:
        if beyond and (quiet is None or quiet >= clear_after):
            expected.append(step)
        quiet = 0 if beyond else None if quiet is None else quiet + 1
    assert alerts_of(values, AlarmSettings(clear_after=clear_after)) == expected
