"""Each measure of a window: its value in its unit, and from how many rows on it has one."""

from collections.abc import Callable
from dataclasses import replace
from math import exp, log, log1p, sqrt

import pytest

from headrace.streams.watch.distances import deviation
from headrace.streams.watch.measures import (
    ACTION_MIX,
    FEW,
    action_mix,
    against_the_rest,
    answered,
    at_maximum,
    at_most,
    average,
    average_log,
    average_log_at_equal_difficulty,
    beside,
    called_more,
    correlated,
    group_variance,
    has,
    heldout_gap,
    high,
    identical,
    lacks,
    low,
    moved,
    of_group,
    opposed,
    otherwise_paid,
    reward_ks,
    reward_wasserstein,
    risen_label,
    share,
    slope,
    upper_tail,
    wrong_answers,
    wrongly_answered,
)
from headrace.streams.watch.offsets import Offset
from headrace.streams.watch.shares import Shares
from headrace.streams.watch.window import Measure, Measured, Row, View
from tests.streams.watch.builders import rows

BASELINE = [float(number) for number in range(20)]


def rows_of(*columns: dict[str, float]) -> list[Row]:
    return [Row(f"t{number}", 1, number, values) for number, values in enumerate(columns)]


def both(count: int) -> list[Row]:
    """``count`` rows in which y = 3 − 2x, and as many evaluations."""
    own = [{"x": float(n), "y": 3.0 - 2.0 * n, "total": float(n)} for n in range(count)]
    return rows_of(*own, *({"total": 1.0, "evaluates": 1.0} for _ in range(count)))


def viewed(rows: list[Row]) -> View:
    usual = {"source_mix": Shares(5, {"": 0.4})}
    return View(rows, shares=usual, samples={"total": BASELINE})


MEASURES: dict[str, tuple[Measure, float]] = {
    "share": (share("x", at_least=8), 0.5),
    "at_most": (at_most("x", 3), 0.25),
    "average": (average("x"), 7.5),
    "average_log": (average_log("x"), sum(log1p(n) for n in range(16)) / 16),
    "equal difficulty": (average_log_at_equal_difficulty("x"), sum(log1p(n) for n in range(16)) / 16),
    "correlated": (correlated("x", "y"), -1.0),
    "slope": (slope("x", "y"), -2.0),
    "risen_label": (risen_label("source_mix"), 0.6),
    "identical": (identical, 1 / 16),
    "upper_tail": (upper_tail, 0.0),
    "reward_ks": (reward_ks, 0.2),
    "reward_wasserstein": (reward_wasserstein, 2.0 / deviation(BASELINE)),
    "heldout_gap": (heldout_gap, 6.5),
}


@pytest.mark.parametrize("name", MEASURES)
def test_sixteen_rows_have_a_value_and_fifteen_have_none(name: str) -> None:
    measure, expected = MEASURES[name]
    found = measure(viewed(both(FEW)))
    assert found is not None
    assert found.value == pytest.approx(expected)
    assert found.trajectories == (2 * FEW if name == "heldout_gap" else FEW)
    assert measure(viewed(both(FEW - 1))) is None


@pytest.mark.parametrize("measure", [upper_tail, reward_ks, reward_wasserstein])
def test_a_distance_needs_a_baseline_of_sixteen(measure: Measure) -> None:
    assert measure(View(both(FEW), samples={"total": BASELINE[:FEW]})) is not None
    assert measure(View(both(FEW), samples={"total": BASELINE[: FEW - 1]})) is None


def test_a_distance_from_a_baseline_without_spread_is_finite() -> None:
    found = reward_wasserstein(View(both(FEW), samples={"total": [1.0] * FEW}))
    assert found is not None
    assert found.value == pytest.approx((1.0 + sum(range(15))) / FEW / 1e-6)


def test_labels_are_compared_from_the_sixth_window_on() -> None:
    measure, rows = risen_label("source_mix"), both(FEW)
    assert measure(View(rows)) is None
    assert measure(View(rows, shares={"source_mix": Shares(4, {"": 0.4})})) is None
    assert measure(View(rows, shares={"source_mix": Shares(5, {"": 0.4})})) is not None


def test_a_value_at_equal_difficulty_leaves_out_difficulties_without_an_offset() -> None:
    rows = [replace(row, difficulty="new" if number % 2 else "old") for number, row in enumerate(both(2 * FEW))]
    found = average_log_at_equal_difficulty("x")(View(rows, offsets={"x": {"old": Offset(9, 0.5)}}))
    assert found is not None
    assert found.trajectories == FEW
    assert found.value == pytest.approx(sum(log1p(n) for n in range(0, 2 * FEW, 2)) / FEW - 0.5)


def test_a_value_at_the_limit_counts_and_is_an_example() -> None:
    rows = rows_of(*({"x": 0.5} for _ in range(FEW)))
    for measure in (share("x"), at_most("x", 0.5)):
        found = measure(View(rows))
        assert found is not None
        assert found.value == 1.0
    measured = Measured(1.0, FEW)
    assert (has("x")(rows[0], measured), lacks("x")(rows[0], measured)) == (0.5, -0.5)
    (without,) = rows_of({})
    assert has("x")(without, measured) is None
    assert lacks("x")(without, measured) is None
    (above,) = rows_of({"x": 0.6})
    assert lacks("x")(above, measured) is None


@pytest.mark.parametrize(
    ("values", "wrong", "guilt"),
    [
        ({"outcome": 0.25, "answered": 1.0}, 0.75, 0.75),
        ({"outcome": 0.0, "answered": 0.5}, 1.0, 1.0),
        ({"outcome": 1.0, "answered": 1.0}, 0.0, None),
        ({"outcome": 0.0, "answered": 0.0}, 0.0, None),
        ({"outcome": 2.0, "answered": 1.0}, 0.0, None),
        ({"outcome": -1.0, "answered": 1.0, "turns": 3.0}, 1.0, 1.0),
    ],
)
def test_an_answer_is_as_wrong_as_its_outcome_is_below_one(
    values: dict[str, float], wrong: float, guilt: float | None
) -> None:
    rows = rows_of(*(values for _ in range(FEW)))
    measured, share_answered = wrong_answers(View(rows)), answered(View(rows))
    assert measured is not None
    assert share_answered is not None
    assert measured.value == wrong
    assert share_answered.value == float(values["answered"] >= 0.5)
    assert wrongly_answered(rows[0], measured) == guilt


@pytest.mark.parametrize("values", [{"answered": 1.0}, {"outcome": 0.0}])
def test_an_attempt_without_outcome_or_answer_is_neither_right_nor_wrong(values: dict[str, float]) -> None:
    rows = rows_of(*(values for _ in range(FEW)))
    assert answered(View(rows)) is None
    assert wrong_answers(View(rows)) is None
    assert wrongly_answered(rows[0], Measured(1.0, FEW)) is None


@pytest.mark.parametrize(("others", "has_value"), [(7, False), (8, True)])
def test_a_component_is_compared_with_the_rest_once_eight_of_its_values_differ(others: int, has_value: bool) -> None:
    values = [1.0] * (FEW - others) + [0.0] * others
    columns = ({"value:c": value, "weight:c": 2.0, "total": 2.0 * value + n % 3} for n, value in enumerate(values))
    assert (against_the_rest("c")(View(rows_of(*columns))) is not None) is has_value


def test_what_is_paid_besides_a_component() -> None:
    whole = {"total": 3.0, "value:c": 0.5, "weight:c": 2.0}
    found = beside(View(rows_of(*[whole] * 8, *[{"total": 1.0}] * 8)), "c")
    assert found == (1.5, pytest.approx(deviation([2.0] * 8 + [1.0] * 8) / 4), 1.0)
    assert beside(View(rows_of(*[whole] * 15)), "c") is None
    assert beside(View(rows_of(*[{"total": 1.0, "value:c": 0.5}] * 16)), "c") is None


def test_the_error_of_the_rest_counts_attempts_at_one_prompt_together() -> None:
    values = [1.0] * 8 + [0.0] * 8

    def error(groups: list[str]) -> float:
        made = [
            replace(row, group=group)
            for row, group in zip(rows(16, total=values, **{"value:c": 0.0, "weight:c": 1.0}), groups, strict=True)
        ]
        found = beside(View(made), "c")
        assert found is not None
        return found.error

    alone = deviation(values) / 4
    assert error([""] * 16) == pytest.approx(alone)
    assert error([str(k // 8) for k in range(16)]) == pytest.approx(0.5)
    assert error([str(k // 4) for k in range(16)]) == pytest.approx(sqrt(4 * (4 * 0.5) ** 2 * 4 / 3) / 16)
    assert error([str(k % 2) for k in range(16)]) == pytest.approx(alone)  # groups that are like one another
    assert error(["one"] * 16) == pytest.approx(alone)


def test_a_component_against_the_rest_is_a_correlation() -> None:
    columns = ({"value:c": n % 2, "weight:c": 2.0, "total": 2.0 * (n % 2) - 5.0 * (n % 2)} for n in range(FEW))
    found = against_the_rest("c")(View(rows_of(*columns)))
    assert found is not None
    assert found.value == pytest.approx(-1.0)


def test_a_penalty_against_the_rest_has_the_sign_of_what_it_pays() -> None:
    """Where errors are penalised and come with failures, a penalty goes with the rest."""
    columns = ({"value:c": n % 2, "weight:c": -0.5, "total": 1.0 - n % 2 - 0.5 * (n % 2)} for n in range(FEW))
    found = against_the_rest("c")(View(rows_of(*columns)))
    assert found is not None
    assert found.value == pytest.approx(1.0)


GUILTS: list[tuple[Callable[[Row, Measured], float | None], dict[str, float], float | None]] = [
    (high("x"), {"x": 2.0}, 2.0),
    (high("x"), {}, None),
    (low("x"), {"x": 2.0}, -2.0),
    (low("x"), {}, None),
]


@pytest.mark.parametrize(("guilt", "values", "expected"), GUILTS)
def test_examples_are_ordered_by_what_they_show(
    guilt: Callable[[Row, Measured], float | None], values: dict[str, float], expected: float | None
) -> None:
    assert guilt(rows_of(values)[0], Measured(1.0, FEW)) == expected


@pytest.mark.parametrize(
    ("sign", "values", "expected"),
    [
        (1.0, {"total": 7.0, "value:c": 1.0, "weight:c": 1.0}, 2.0),  # 1 below its mean, the rest 2 above
        (1.0, {"total": 6.0, "value:c": 4.0, "weight:c": 1.0}, 4.0),  # 2 above its mean, the rest 2 below
        (1.0, {"total": 9.0, "value:c": 3.0, "weight:c": 1.0}, None),  # both above
        (
            -1.0,
            {"total": 4.0, "value:c": 3.0, "weight:c": -1.0},
            15.0,
        ),  # it pays −3: 5 below; the rest 3 above
        (1.0, {"total": 7.0, "value:c": 1.0}, None),
    ],
)
def test_examples_have_a_component_and_the_rest_on_other_sides_of_their_means(
    sign: float, values: dict[str, float], expected: float | None
) -> None:
    measured = Measured(-0.5, FEW, centres=(2.0, 4.0, sign))
    assert opposed("c")(rows_of(values)[0], measured) == expected


@pytest.mark.parametrize(("falls", "expected"), [(False, 2.0), (True, -2.0)])
def test_examples_are_at_the_side_to_which_a_value_has_moved(falls: bool, expected: float) -> None:
    (row,) = rows_of({"x": 2.0, "total": 2.0})
    assert moved("x")(row, Measured(1.0, FEW, falls=falls)) == expected
    assert otherwise_paid(row, Measured(0.5, FEW, centres=(-1.0 if falls else 1.0,))) == expected


def test_equal_totals_count_unless_they_are_extremes() -> None:
    totals = [0.0, 1.0, *[0.5] * 6, *[0.25] * 4, *[0.75] * 4]
    found = identical(View(rows_of(*({"total": total} for total in totals))))
    assert found is not None
    assert found.value == 6 / 16
    alone = identical(View(rows_of(*({"total": total, "maximum": 0.5} for total in totals))))
    assert alone is not None
    assert alone.value == 4 / 16


def test_the_upper_tail_is_above_nine_tenths_of_the_baseline() -> None:
    found = upper_tail(View(rows_of(*({"total": float(n)} for n in range(4, 20))), samples={"total": BASELINE}))
    assert found is not None
    assert found.value == 1 / 16  # only 19: 18 is the nine tenths themselves


def called(count: int, **calls: float) -> list[Row]:
    return rows_of(*({f"call:{name}": number for name, number in calls.items()} for _ in range(count)))


def test_the_mix_of_calls_is_of_all_calls_and_its_distance_is_their_total_variation() -> None:
    usual = {ACTION_MIX: Shares(5, {"answer": 0.5, "read": 0.25, "search": 0.25})}
    view = View(called(FEW, answer=1.0, search=3.0), shares=usual)
    assert action_mix(view) == Measured(0.5, FEW, label="search")
    row = called(1, search=3.0)[0]
    assert called_more(row, Measured(0.5, FEW, label="search")) == 3.0
    assert called_more(row, Measured(0.5, FEW, label="read")) is None
    for without in (
        View(called(FEW - 1, answer=1.0), shares=usual),
        View(rows_of(*({"turns": 1.0} for _ in range(FEW))), shares=usual),
        View(called(FEW, answer=1.0), shares={ACTION_MIX: Shares(4, {"answer": 1.0})}),
        View(called(FEW, answer=1.0)),
    ):
        assert action_mix(without) is None


def grouped(*totals: float, maximum: float = 1.0, groups: int = FEW) -> list[Row]:
    """Groups that each have these totals."""
    rows = rows_of(*({"total": total, "maximum": maximum} for _ in range(groups) for total in totals))
    return [replace(row, group=f"g{number // len(totals)}") for number, row in enumerate(rows)]


def test_the_variance_within_groups_is_relative_to_that_of_zeros_and_ones_with_the_same_mean() -> None:
    def ratio(rows: list[Row]) -> float:
        found = group_variance(View(rows))
        assert found is not None
        return exp(found.value)

    assert ratio(grouped(0.0, 0.0, 0.0, 1.0)) == pytest.approx(4 / 3)
    assert ratio(grouped(0.0, 1.0, 1.0, 1.0)) == pytest.approx(4 / 3), "however many succeed"
    assert ratio(grouped(0.4, 0.6)) == pytest.approx(0.08)
    assert ratio(grouped(0.8, 1.2, maximum=2.0)) == pytest.approx(0.08), "whatever the maximum is"
    apart = [
        *grouped(0.1, 0.1, groups=8),
        *(replace(row, group=f"h{row.group}") for row in grouped(0.9, 0.9, groups=8)),
    ]
    assert ratio(apart) == pytest.approx(1e-3), "variance between groups does not count"
    assert group_variance(View(apart)) == Measured(log(1e-3), 32, label="g0")


def test_groups_at_an_extreme_of_one_or_without_a_maximum_say_nothing_about_variance() -> None:
    assert group_variance(View(grouped(1.0, 1.0))) is None
    assert group_variance(View(grouped(0.0, 0.0))) is None
    assert group_variance(View(grouped(0.5))) is None
    assert group_variance(View(grouped(0.5, 0.5, maximum=0.0))) is None
    assert group_variance(View([replace(row, group="") for row in grouped(0.4, 0.6)])) is None
    few = [*grouped(0.4, 0.6, groups=FEW // 2 - 1), *(replace(row, group="x") for row in grouped(1.0, 1.0))]
    assert group_variance(View(few)) is None
    assert group_variance(View(grouped(0.4, 0.6, groups=FEW // 2))) is not None
    (row,) = grouped(0.5, groups=1)
    assert (of_group(row, Measured(0.0, 1, label="g0")), of_group(row, Measured(0.0, 1, label="g1"))) == (1.0, None)


def test_rewards_at_the_maximum_are_counted_where_it_is_known() -> None:
    assert at_maximum(View(grouped(1.0, 0.5, 1.0, 1.0))) == Measured(0.75, 64, pytest.approx(0.436, abs=1e-3))
    assert at_maximum(View(rows_of(*({"total": 1.0} for _ in range(40))))) is None
