"""Simulated attempts: the rows that are made directly are those of real records."""

from random import Random

import pytest

from headrace.schemas.records.watch import Observation
from headrace.streams.watch.observe import observe
from headrace.streams.watch.places import About, Place
from headrace.streams.watch.planted.attempts import Attempt, honest_step
from headrace.streams.watch.planted.drifts import DRIFTS, PLANTED
from headrace.streams.watch.planted.hacks import HACKS, Hack, hacked_step, share_at
from headrace.streams.watch.planted.observations import (
    attempt_row,
    fate_key,
    fate_row,
    feedback,
    feedback_id,
    feedback_key,
    feedback_row,
    keys,
    rejection,
    reward,
    reward_row,
    trajectory,
)
from headrace.streams.watch.window import Key, Row, keys_of, row_of

TIME_MS = 5_000


@pytest.mark.parametrize("hack", PLANTED.values(), ids=PLANTED)
def test_rows_equal_the_observations_of_real_records(hack: Hack) -> None:
    attempts = hacked_step(Random(1), hack, 55, 0.7, begun=50)
    for attempt in attempts[:24] + attempts[-4:]:
        acted = observe(trajectory(attempt, "r", TIME_MS), attempt.id)
        assert row_of(acted, TIME_MS) == attempt_row(attempt, TIME_MS)
        paid = observe(reward(attempt, "r", TIME_MS), attempt.id)
        found = row_of(paid, TIME_MS)
        assert found.values == pytest.approx(reward_row(attempt, TIME_MS).values)
        assert (found.labels, found.version) == (reward_row(attempt, TIME_MS).labels, attempt.version)
        expected = [key._replace(task_source=attempt.source) if key.task_source else key for key in keys("r")]
        assert [*keys_of(acted), *keys_of(paid)] == expected[2 if attempt.evaluates else 0 :]


@pytest.mark.parametrize("hack", PLANTED.values(), ids=PLANTED)
def test_rows_of_fates_and_feedback_equal_the_observations_of_real_records(hack: Hack) -> None:
    attempts = hacked_step(Random(1), hack, 55, 0.7, begun=50)
    rejected = [attempt for attempt in attempts if attempt.rejected is not None]
    assert rejected
    for attempt in rejected:
        seen = observe(rejection(attempt, "r"), attempt.id)
        assert counted(seen, attempt) == (
            fate_row(attempt, TIME_MS),
            fate_key("r")._replace(task_source=attempt.source),
        )
    judged = [attempt for attempt in attempts if attempt.feedback]
    assert judged
    for attempt in judged:
        seen = observe(feedback(attempt), attempt.id, feedback_id(attempt))
        key = feedback_key("r")._replace(task_source=attempt.source)
        assert counted(seen, attempt) == (feedback_row(attempt, TIME_MS), key)


def counted(seen: Observation, attempt: Attempt) -> tuple[Row, Key]:
    """The row of ``seen`` and its key, at the place of ``attempt``."""
    acted = observe(trajectory(attempt, "r", TIME_MS), attempt.id)
    (key,) = keys_of(seen)
    place = Place(acted.run, acted.agent, acted.task_source, acted.version)
    about = About(attempt.id, key, attempt.id, row_of(seen, TIME_MS)).at(place)
    return about.row, about.key


def test_the_ramp_is_logistic() -> None:
    assert share_at(30, 60) == pytest.approx(0.45)
    assert share_at(0, 60) < 0.01
    assert share_at(60, 60) > 0.89


def test_a_seed_repeats_a_step() -> None:
    assert honest_step(Random(7), 3) == honest_step(Random(7), 3)
    assert honest_step(Random(7), 3) != honest_step(Random(8), 3)


def test_names_of_hacks_and_drifts_differ() -> None:
    assert len(PLANTED) == len(HACKS) + len(DRIFTS)


def test_there_are_fourteen_hacks() -> None:
    assert len(HACKS) == 14
    assert sum(hack.behaves for hack in HACKS.values()) == 9
