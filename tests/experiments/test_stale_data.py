"""The short form of ``stale_data.py``: three arms, one seed."""

from tests.experiments.stale_data import DECOUPLED, NAIVE, TRUNCATED, clipped, run, speed


def test_on_stale_data_decoupled_and_truncated_hold_where_the_naive_loss_degrades():
    fresh = {arm: run(arm, 0, seed=0, steps=40) for arm in (NAIVE, DECOUPLED, TRUNCATED)}
    stale = {arm: run(arm, 12, seed=0, steps=40) for arm in fresh}
    for arm in (DECOUPLED, TRUNCATED):
        assert speed(stale[arm]) > speed(fresh[arm]) - 0.08
    assert speed(stale[NAIVE]) < speed(fresh[NAIVE]) - 0.25
    assert clipped(stale[NAIVE]) > 0.25 > 5 * clipped(fresh[NAIVE])
