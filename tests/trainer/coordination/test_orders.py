from dataclasses import fields, replace

import numpy as np
import pytest

from headrace.trainer.coordination.orders import MAX_TEXT, Order, broadcast_batch, send_order
from headrace.trainer.parallel.ranks import ALONE, RankLost, join_ranks, lost_ranks
from headrace.trainer.parallel.settings import ParallelSettings
from tests.trainer.builders import off_policy_batch, with_hints


def test_a_batch_is_broadcast_completely():
    sent = with_hints(off_policy_batch())
    received = broadcast_batch(sent, ALONE)
    assert len(received.hints) == len(sent.hints) > 0
    assert received.sha256() == sent.sha256()
    for one, other in ((sent, received), (sent.packed, received.packed), (sent.hints, received.hints)):
        for name in (field.name for field in fields(one) if field.name not in ("packed", "hints")):
            assert getattr(one, name).dtype == getattr(other, name).dtype
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_an_array_of_an_unsupported_type_is_refused():
    batch = off_policy_batch()
    with pytest.raises(ValueError, match="rewards is float64"):
        broadcast_batch(replace(batch, rewards=batch.rewards.astype(np.float64)), ALONE)


def test_a_path_that_is_too_long_for_an_order_is_refused():
    with pytest.raises(ValueError, match="choose a shorter path"):
        send_order(ALONE, Order.WRITE_MODEL, text="x" * (MAX_TEXT + 1))


def test_ranks_that_do_not_join_are_an_error(tmp_path):
    with (
        pytest.raises(RankLost, match="did not join within 1 s"),
        join_ranks("cpu", timeout_s=1, meet=f"file://{tmp_path}/meet", rank=0, count=2),
    ):
        pass


def test_errors_other_than_of_the_connection_are_not_converted():
    with pytest.raises(RuntimeError, match="shapes") as raised, lost_ranks(1):
        raise RuntimeError("shapes do not match")
    assert not isinstance(raised.value, RankLost)


def test_an_invalid_time_limit_is_refused():
    with pytest.raises(ValueError, match="timeout_s is 0"):
        ParallelSettings(timeout_s=0)
