"""Evidence of tasks that cannot be solved."""

from math import log

import pytest

from headrace.streams.watch.tripwire import LEAST, evidence, strength


def test_three_successes_in_a_row_alarm() -> None:
    assert strength(evidence(0.0, 2, 0)) < 1
    assert strength(evidence(0.0, 3, 0)) >= 1


def test_each_result_multiplies_the_evidence_by_its_likelihood_ratio() -> None:
    assert abs(evidence(0.0, 1, 2) - (log(20) + 2 * log(0.8 / 0.99))) < 1e-12


def test_a_long_honest_run_does_not_make_it_slow() -> None:
    assert evidence(0.0, 0, 100_000) == LEAST
    assert strength(evidence(LEAST, 3, 0)) < 1 <= strength(evidence(LEAST, 4, 0))


def test_one_success_in_a_hundred_is_honest() -> None:
    log_e = 0.0
    for step in range(2000):
        log_e = evidence(log_e, int(step % 25 == 0), 3 + int(step % 25 != 0))
        assert strength(log_e) < 1


def test_the_alarm_is_at_a_thousand_and_evidence_stays_between_a_tenth_and_a_million() -> None:
    assert strength(log(1_000)) == pytest.approx(1)
    assert strength(LEAST) == 0
    assert log(0.1) == pytest.approx(LEAST)
    assert evidence(0.0, 50, 0) == pytest.approx(log(1_000_000))
    assert evidence(log(2_000), 0, 3) == pytest.approx(log(2_000 * (0.8 / 0.99) ** 3))
