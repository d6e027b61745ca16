"""The control chart: what it learns, when it alarms, and what does not make it alarm."""

from dataclasses import replace
from random import Random

import pytest

from headrace.streams.watch.chart import (
    Chart,
    ChartRule,
    Direction,
    is_off,
    judge,
    learnt,
    sd_of,
    seen_from,
    slack_of,
    spared,
)

RISE = ChartRule(Direction.UP, 0.5)


def strengths(values: list[float], rule: ChartRule = RISE, chart: Chart | None = None) -> list[float]:
    found, at = [], chart or Chart()
    for number, value in enumerate(values):
        at, judged = judge(at, rule, value, at=number)
        found.append(judged.strength)
    return found


def baseline(rule: ChartRule = RISE, seed: int = 1) -> Chart:
    random, chart = Random(seed), Chart()
    for number in range(rule.baseline):
        chart, _ = judge(chart, rule, random.gauss(10, 1), at=number)
    return chart


def test_the_baseline_is_the_mean_and_deviation_of_the_first_values() -> None:
    chart = Chart()
    for value in [1.0, 2.0, 3.0, 4.0] * 6 + [2.5]:
        assert not learnt(chart, RISE)
        chart, judged = judge(chart, RISE, value)
        assert judged.strength == 0
        assert judged.expected is None
    assert learnt(chart, RISE)
    assert chart.pinned == chart.mean == pytest.approx(2.5)
    assert sd_of(chart, RISE) == pytest.approx((6 * (2 * 1.5**2 + 2 * 0.5**2) / 24) ** 0.5)


def test_a_shift_of_two_deviations_alarms_within_eight_windows() -> None:
    rising = strengths([12.5] * 12, chart=baseline())
    assert next(number for number, each in enumerate(rising) if each >= 1) < 8
    assert rising == sorted(rising)


def test_a_known_mean_is_compared_with_from_the_first_value_on() -> None:
    rule = ChartRule(Direction.UP, 1.0, target=5.0, follows=0.0)
    chart, first = judge(Chart(), rule, 9.0)
    assert (first.pinned, first.expected, first.sd, first.change) == (5.0, 5.0, 0.25, None)
    assert first.strength == pytest.approx((9.0 - 5.0 - 0.5) / (8 * 0.25))  # slack: half of the smallest change
    chart, second = judge(chart, rule, 5.25)
    assert (second.pinned, second.expected, second.change) == (5.0, 5.0, -15.0)
    assert chart.count == 2


@pytest.mark.parametrize("spread", [0.1, 2.0, 20.0])
def test_a_lasting_change_from_which_it_is_seen_alarms_and_one_that_is_hardly_above_the_slack_never_does(
    spread: float,
) -> None:
    """Without noise, at a baseline with a deviation of 1."""
    rule = ChartRule(Direction.UP, 0.5, in_spreads=True)
    chart, random = Chart(), Random(1)
    for _ in range(rule.baseline):
        chart, _ = judge(chart, rule, random.gauss(10, 1), spread=spread)
    seen, slack = seen_from(chart, rule), slack_of(chart, rule)
    assert max(strengths([chart.mean + seen] * 300, rule, chart)) >= 1
    assert max(strengths([chart.mean + slack + (seen - slack) / 4] * 300, rule, chart)) < 1


def test_a_chart_is_off_where_recent_values_are_farther_than_the_slack_on_either_side() -> None:
    chart = baseline()
    slack = slack_of(chart, RISE)
    assert [is_off(replace(chart, recent=chart.mean + by * slack), RISE) for by in (-1.01, -0.99, 0, 0.99, 1.01)] == [
        *(True, False, False, False, True)
    ]
    assert not is_off(Chart(count=24, recent=1e9), RISE)
    assert not is_off(replace(chart, recent=None), RISE)


def test_chance_hardly_ever_takes_a_chart_off_and_what_it_would_alarm_about_does() -> None:
    """Pure noise, and a fall that the chart just sees, in either direction of 40 charts."""
    rule, off, noticed = ChartRule(Direction.BOTH, 0.15, in_spreads=True), 0, []
    for seed in range(40):
        random, chart = Random(seed), Chart()
        for _ in range(rule.baseline):
            chart, _ = judge(chart, rule, random.gauss(0.0, 1.0), spread=1.0)
        moved = chart
        for _ in range(200):
            chart, _ = judge(chart, rule, random.gauss(0.0, 1.0), spread=1.0)
            off += is_off(chart, rule)
        by = seen_from(moved, rule) * (-1 if seed % 2 else 1)
        for n in range(1, 11):
            moved, _ = judge(moved, rule, moved.mean + by, spread=1.0)
            if is_off(moved, rule):
                noticed.append(n)
                break
    assert off <= 8  # one in a thousand
    assert len(noticed) == 40


def test_the_mean_of_recent_values_begins_with_the_first_and_without_one_with_m() -> None:
    chart, _ = judge(Chart(), RISE, 3.0)
    assert chart.recent == 3.0
    chart, _ = judge(chart, RISE, 4.0)
    assert chart.recent == pytest.approx(3.2)
    older = replace(baseline(), recent=None)
    after, _ = judge(older, RISE, older.mean + 1.0)
    assert after.recent == pytest.approx(older.mean + 0.2)


def test_windows_in_which_all_are_alike_do_not_tell_how_far_others_are_apart() -> None:
    rule = ChartRule(Direction.UP, 0.5, in_spreads=True)
    chart = Chart()
    for spread in [0.0] * 10 + [2.0] + [0.0] * 14:
        chart, _ = judge(chart, rule, 1.0, spread=spread)
    assert chart.spread == 2.0
    chart = Chart()
    for spread in [0.0] * 25 + [3.0, 5.0]:
        chart, _ = judge(chart, rule, 1.0, spread=spread)
    assert chart.spread == 3.0
    assert max(strengths([1.0 + 0.5 * 3.0] * 10, rule, chart)) >= 1


def test_a_rule_learns_from_two_values_at_least() -> None:
    assert learnt(Chart(count=2), ChartRule(Direction.UP, 0.5, baseline=2))
    with pytest.raises(ValueError, match="baseline at least 2"):
        ChartRule(Direction.UP, 0.5, baseline=1)
    with pytest.raises(ValueError, match="most_a_window must be above 0"):
        ChartRule(Direction.UP, 0.5, most_a_window=0.0)


def test_only_the_direction_of_the_rule_alarms() -> None:
    assert max(strengths([5.0] * 30, chart=baseline())) == 0
    assert max(strengths([5.0] * 30, ChartRule(Direction.DOWN, 0.5), baseline())) > 1
    assert max(strengths([5.0] * 30, ChartRule(Direction.BOTH, 0.5), baseline())) > 1


def test_evidence_in_the_other_direction_is_not_kept() -> None:
    for rule, value in ((RISE, 5.0), (ChartRule(Direction.DOWN, 0.5), 15.0)):
        after, _ = judge(baseline(rule), rule, value)
        assert (after.up, after.down) == (0.0, 0.0)


def test_the_change_is_from_the_value_before_in_deviations() -> None:
    chart, _ = judge(baseline(), RISE, 10.0)
    after, judged = judge(chart, RISE, 10.7)
    assert judged.change == pytest.approx(0.7 / sd_of(chart, RISE))
    assert after.count == RISE.baseline + 2


def test_a_value_that_never_varied_needs_a_change_that_matters() -> None:
    constant = [0.0] * 25
    rule = ChartRule(Direction.UP, 0.06)
    assert max(strengths([*constant, *[0.02] * 200], rule)) == 0
    assert max(strengths([*constant, *[0.09] * 10], rule)) > 1


def test_a_slow_drift_is_followed_and_does_not_alarm() -> None:
    drift = [10 + 0.004 * step for step in range(600)]
    assert max(strengths(drift, chart=baseline())) < 0.5


def test_evidence_is_bounded_so_that_a_value_that_comes_back_resolves_it() -> None:
    after = strengths([50.0] * 100 + [10.0] * 40, chart=baseline())
    assert max(after) == 2.0
    assert after[-1] < 0.5


@pytest.mark.parametrize(("direction", "extreme"), [(Direction.UP, 1e6), (Direction.DOWN, -1e6)])
def test_a_rule_may_need_three_values_to_alarm(direction: Direction, extreme: float) -> None:
    rule = ChartRule(direction, 0.5, most_a_window=0.45)
    one_of_two = strengths([extreme, 10.0] * 10, rule, baseline(rule))
    assert one_of_two[0] == pytest.approx(0.45)
    assert max(one_of_two[:2]) < 1
    assert strengths([extreme] * 3, rule, baseline(rule)) == pytest.approx([0.45, 0.9, 1.35])
    assert strengths([extreme], chart=baseline(), rule=ChartRule(direction, 0.5))[0] == 2


def test_a_spared_value_adds_no_evidence() -> None:
    before = baseline()
    after, judged = judge(before, RISE, 15.0)
    assert judged.strength > 0
    assert spared(before, after).up == before.up == 0


def test_a_known_mean_needs_no_baseline() -> None:
    rule = ChartRule(Direction.UP, 0.1, target=0.0)
    assert max(strengths([0.0] * 50, rule)) == 0
    assert max(strengths([0.2] * 4, rule)) > 1


def test_the_window_in_which_evidence_began_is_remembered() -> None:
    at = baseline()
    for number, value in enumerate([10.0, 10.0, 13.0, 13.0, 13.0], start=25):
        at, _ = judge(at, RISE, value, at=number)
    assert at.since == 27


def test_the_spread_of_trajectories_is_the_unit_of_some_rules() -> None:
    rule = ChartRule(Direction.UP, 0.5, in_spreads=True)
    chart = Chart()
    for number in range(25):
        chart, _ = judge(chart, rule, 0.0, spread=4.0, at=number)
    assert sd_of(chart, rule) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        judge(Chart(), RISE, value)


def test_a_rule_without_an_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="smallest"):
        ChartRule(Direction.UP, 0.0)


def test_of_two_hundred_charts_of_honest_noise_at_most_one_alarms_in_a_thousand_windows() -> None:
    """Of 20,000 charts 0.2 % do: the standard deviation of a short baseline is uncertain."""
    seeds = map(Random, range(200))
    alarms = sum(max(strengths([random.gauss(0, 1) for _ in range(1000)])) >= 1 for random in seeds)
    assert alarms <= 1
