"""The usual duration of phases, the estimate of the next weights, and the bottleneck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.progress.pace import Phase, StepPace

STEP = (Phase.WAITING, Phase.TRAINING, Phase.SAVING, Phase.PUBLISHING)
USUAL = StepPace().after(dict(zip(STEP, (8.0, 4.0, 1.0, 2.0), strict=True)))


def test_the_newest_steps_count_most():
    pace = USUAL
    for _ in range(20):
        pace = pace.after(dict.fromkeys(STEP, 1.0))
    assert pace.usual_s[Phase.WAITING] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("phase", "since_s", "groups", "expected"),
    [
        (Phase.WAITING, 0.0, 0, 15.0),
        (Phase.WAITING, 4.0, 0, 11.0),
        (Phase.WAITING, 4.0, 4, 19.0),  # four groups in 4 s: twelve more in 12 s, then 7 s of work
        (Phase.TRAINING, 1.0, 16, 6.0),
        (Phase.TRAINING, 9.0, 16, 3.0),  # overdue: training can end at any moment
        (Phase.PUBLISHING, 0.5, 16, 1.5),
        (Phase.WAITING, 60.0, 0, None),  # long overdue
        (Phase.STARTING, 1.0, 0, None),
        (Phase.DONE, 1.0, 0, None),
    ],
)
def test_the_next_weights_are_estimated_from_the_remaining_work(phase, since_s, groups, expected):
    assert USUAL.next_weights_s(phase, since_s, groups, 16) == (None if expected is None else pytest.approx(expected))


def test_before_the_first_step_nothing_is_estimated():
    assert StepPace().next_weights_s(Phase.WAITING, 1.0, 4, 16) is None
    assert StepPace().verdict() == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((9, 1, 0, 0), "starved: 90 % of the time"),
        ((1, 9, 0, 0), "busy: 90 %"),
        ((1, 1, 8, 0), "delayed by the disk: 80 %"),
        ((1, 1, 0, 8), "delayed by the object store or Kafka: 80 %"),
        ((1, 1, 1, 1), "balanced"),
    ],
)
def test_the_verdict_names_the_bottleneck(seconds, said):
    assert StepPace().after(dict(zip(STEP, seconds, strict=True))).verdict().startswith(said)


@given(st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), min_size=1))
def test_shares_of_the_time_sum_to_1(steps):
    pace = StepPace()
    for step in steps:
        pace = pace.after(dict(zip(STEP, step, strict=True)))
    total = sum(pace.share(phase) for phase in STEP)
    assert total == pytest.approx(1.0) or total == 0.0
