"""The join's memory: how it is stored, and that expired entries are forgotten, also after a restart."""

import json

import pytest

from headrace.streams.rewards.spec import Feedback
from headrace.streams.scoring.attempt import AttemptState
from headrace.streams.scoring.feedback_join import UNCLAIMED, Join, JoinChanges, JoinLimits, TrajectoryArrival
from tests.streams.scoring.test_feedback_join import Log, arrival, log_of, signal

LIMITS = JoinLimits(remember_ms=5_000)


def restarted(log: Log) -> Log:
    """``log`` in another process, restored from its stored state."""
    stored = {name: AttemptState.model_validate_json(value) for name, value in log.table.items()}
    log.join = Join(log.limits, stored)
    return log


def test_absent_fields_of_a_stored_attempt_have_their_defaults() -> None:
    found = AttemptState.model_validate_json(b'{"since_ms": 50}')
    assert (found.offset, found.arrived_ms, found.origin, found.takes_feedback) == (None, 0, None, False)
    assert (found.heard, found.revisions, found.verdicts, found.blank) == ([], 0, {}, None)


def test_stored_field_names_are_stable_across_releases() -> None:
    log = log_of(arrival("t", 100, offset=7), limits=LIMITS)
    assert json.loads(log.table["t"]) == {"since_ms": 1_100, "offset": 7, "arrived_ms": 100, "takes_feedback": True}


def test_a_restart_forgets_expired_entries_and_keeps_open_ones() -> None:
    log = log_of(
        arrival("done", 100),
        ("nobody", signal("a", 50)),
        2_000,
        arrival("open", 6_500, offset=1),
        limits=LIMITS,
    )
    assert log.table.keys() == {"done", "nobody", "open"}
    restarted(log)
    assert (len(log.join), log.join.open) == (3, 1)
    log.until(7_000)
    assert log.table.keys() == {"open"}
    assert log.join.counts == {UNCLAIMED: 1}
    log.until(7_501)
    assert [(due.trajectory_id, due.revision) for due in log.announced] == [("done", 0), ("open", 0)]


def test_all_expired_entries_are_forgotten_in_one_pass() -> None:
    log = log_of(*(arrival(name, 100, offset=n) for n, name in enumerate("abcd")), 2_000, limits=LIMITS)
    assert log.table.keys() == set("abcd")
    log.until(10_000)
    assert (log.table, len(log.join)) == ({}, 0)


class FaultError(Exception):
    """Raised by the code around the join."""


def spoilt(join: Join, record: TrajectoryArrival | tuple[str, Feedback], changes: JoinChanges) -> None:
    name = record.trajectory_id if isinstance(record, TrajectoryArrival) else record[0]
    with join.undone_if_it_raises(name, changes):
        if isinstance(record, TrajectoryArrival):
            join.add_trajectory(record, changes)
        else:
            join.add_feedback(*record, changes)
        raise FaultError


def test_a_raising_record_leaves_the_join_unchanged() -> None:
    log, changes = log_of(arrival("t", 100), ("t", signal("a", 500)), limits=LIMITS), JoinChanges()
    for record in (("t", signal("b", 600, offset=1)), arrival("new", 200, offset=1, window_ms=0)):
        with pytest.raises(FaultError):
            spoilt(log.join, record, changes)
    assert changes == JoinChanges()
    assert (len(log.join), log.join.open) == (1, 1)
    log.until(1_101)
    assert log.made == {("t", 0, ("a",))}
