"""Simulated attempts: the rows that are made directly are those of real records."""

from random import Random

import pytest

from headrace.streams.watch.observe import observe
from headrace.streams.watch.planted.attempts import honest_step
from headrace.streams.watch.planted.hacks import HACKS, Hack, hacked_step, share_at
from headrace.streams.watch.planted.observations import attempt_row, keys, reward, reward_row, trajectory
from headrace.streams.watch.window import keys_of, row_of

TIME_MS = 5_000


@pytest.mark.parametrize("hack", HACKS.values(), ids=HACKS)
def test_rows_equal_the_observations_of_real_records(hack: Hack) -> None:
    attempts = hacked_step(Random(1), hack, 55, 0.7, begun=50)
    for attempt in attempts[:24] + attempts[-4:]:
        acted = observe(trajectory(attempt, "r", TIME_MS), attempt.id)
        assert row_of(acted, TIME_MS) == attempt_row(attempt, TIME_MS)
        paid = observe(reward(attempt, "r", TIME_MS), attempt.id)
        found = row_of(paid, TIME_MS)
        assert found.values == pytest.approx(reward_row(attempt, TIME_MS).values)
        assert (found.labels, found.version) == (reward_row(attempt, TIME_MS).labels, attempt.version)
        assert [*keys_of(acted), *keys_of(paid)] == list(keys("r"))[2 if attempt.evaluates else 0 :]


def test_the_ramp_is_logistic() -> None:
    assert share_at(30, 60) == pytest.approx(0.45)
    assert share_at(0, 60) < 0.01
    assert share_at(60, 60) > 0.89


def test_a_seed_repeats_a_step() -> None:
    assert honest_step(Random(7), 3) == honest_step(Random(7), 3)
    assert honest_step(Random(7), 3) != honest_step(Random(8), 3)


def test_there_are_fourteen_hacks() -> None:
    assert len(HACKS) == 14
    assert sum(hack.behaves for hack in HACKS.values()) == 9
