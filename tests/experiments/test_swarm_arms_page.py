"""The page compares arms by finished runs: its rows, and the clock in which concurrency counts."""

import pytest

from headrace.agents.swarm.tasks import Source
from tests.experiments.swarm_arms_page import PANELS, SMOOTHED, Run, last, mean_of, page, reached

COMMON = ("outcome", "reward", "parallel", "finish", "spawns", "critical", "total", "tokens")


def values(outcome: float, *, longest: tuple[float, float] = (5.0, 20.0), weight: float = 0.3) -> dict[str, float]:
    by_source = {f"{source} {name}": outcome for source in Source for name in COMMON}
    return by_source | {
        "reward": outcome, "λ1": weight, "λ2": weight, "longest critical": longest[0], "longest total": longest[1],
    }  # fmt: skip


def run(arm: str, seed: int, outcomes: list[float]) -> Run:
    edges = [values(outcomes[place]) for place in (0, -1, 0, -1)]
    return Run(arm, seed, [values(each) for each in outcomes], *edges)


def test_the_last_steps_are_averaged_where_a_value_occurs() -> None:
    made = Run("none", 0, steps=[{"reward": 1.0}, {"reward": 2.0, "wide finished": 0.5}, {"reward": 4.0}])
    assert last(made, "reward", 2) == 3.0
    assert last(made, "wide finished") == 0.5
    assert last(made, "deep finished") == 0.0


def test_a_value_is_reached_when_the_mean_of_several_steps_is() -> None:
    rising = run("none", 0, [0.0] * SMOOTHED + [1.0] * SMOOTHED)
    assert reached(rising, "wide outcome", 1.0) == 2 * SMOOTHED
    assert reached(rising, "wide outcome", 0.2) == SMOOTHED + 1
    assert reached(rising, "wide outcome", 1.1) is None


def test_a_step_without_tasks_of_a_kind_does_not_count_as_a_failure() -> None:
    steps = [{"wide outcome": 1.0}, *[{"deep outcome": 0.0}] * (SMOOTHED - 1)]
    assert mean_of(steps, "wide outcome") == 1.0
    assert reached(Run("none", 0, steps=steps), "wide outcome", 1.0) == SMOOTHED
    assert mean_of(steps, "wide tokens") is None


def test_tokens_are_compared_where_runs_are_equally_good() -> None:
    def steps(last: float) -> list[dict[str, float]]:
        early = [values(0.0) | {"wide tokens": 99.0, "deep tokens": 99.0}] * SMOOTHED
        return early + [values(0.7) | {"wide tokens": last, "deep tokens": last + 1}] * 9

    edges = [values(0.0)] * 4
    text, _ = page({"annealed": [Run("annealed", 0, steps(30.0), *edges)], "none": [run("none", 0, [0.1] * 14)]})
    [tokens] = [paragraph for paragraph in text if paragraph.startswith("|  | wide: runs that reach it")]
    annealed, none = tokens.splitlines()[-2:]
    # Of the five steps until the mean is first reached, three are of the wide level and five of the deep one.
    assert annealed == f"| annealed | 1 of 1 | {(2 * 99 + 3 * 30) / 5:.1f} | 1 of 1 | 31.0 |"
    assert none == "| none | 0 of 1 | – | 0 of 1 | – |"


def test_the_page_has_a_row_of_each_arm_in_each_table_and_a_curve_in_each_panel() -> None:
    arms = {"annealed": [run("annealed", seed, [0.1] * 9 + [0.95] * 9) for seed in (0, 1)],
            "none": [run("none", seed, [0.25] * 18) for seed in (0, 1)]}  # fmt: skip
    text, figure = page(arms)
    tables = [paragraph for paragraph in text if paragraph.startswith("|")]
    for each in tables:
        assert [line.split(" | ")[0].removeprefix("| ") for line in each.splitlines()[-2:]] == list(arms)
    assert [len(axis.lines) for axis in figure.axes] == [len(arms)] * len(PANELS)
    outcomes = tables[0].splitlines()
    assert outcomes[2].startswith("| base model | 0.10 (0.10–0.10)")
    assert "0.95 (0.95–0.95)" in outcomes[3]


def test_the_clock_counts_the_longest_attempt_of_each_step_concurrent_or_not() -> None:
    text, _ = page({"annealed": [run("annealed", 0, [0.9] * 10)], "none": [run("none", 0, [0.1] * 10)]})
    [clock] = [paragraph for paragraph in text if "concurrent |" in paragraph]
    annealed, none = clock.splitlines()[-2:]
    steps, concurrent, serial = (float(cell) for cell in annealed.strip("| ").split(" | ")[2:])
    assert (steps, concurrent, serial) == pytest.approx((SMOOTHED, 5 * SMOOTHED, 20 * SMOOTHED))
    assert none.endswith("0 of 1 | – | – | – |")
