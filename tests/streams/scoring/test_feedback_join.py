"""The join of trajectories and feedback gives the same rewards for any interleaving of the two."""

import random
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.streams.rewards.spec import Feedback, Verdict
from headrace.streams.scoring.attempt import AttemptState
from headrace.streams.scoring.feedback_join import (
    FORGOTTEN_EARLY,
    SURPLUS,
    TOO_LATE,
    UNCLAIMED,
    WINDOW_OVERFLOW,
    DueReward,
    Join,
    JoinChanges,
    JoinLimits,
    TrajectoryArrival,
)

WINDOW = 1_000
FOREVER = 10**9
ENDLESS = JoinLimits(remember_ms=FOREVER)

Made = set[tuple[str, int, tuple[str, ...]]]
"""Trajectory, revision and feedback of every reward."""


def arrival(name: str, ended_ms: int, *, offset: int = 0, window_ms: int = WINDOW, **fields: Any) -> TrajectoryArrival:
    return TrajectoryArrival(name, offset, ended_ms, window_ms, **fields)


def signal(name: str, time_ms: int, value: float = 1.0, offset: int = 0) -> Feedback:
    return Feedback(name, "accepted", value, time_ms, Reference(partition=0, offset=offset))


def reward(due: DueReward) -> Reward:
    return Reward(
        trajectory_id=due.trajectory_id,
        trajectory=Reference(partition=0, offset=due.offset),
        spec="s@1",
        total=float(len(due.feedback)),
        ended_ms=0,
        revision=due.revision,
        feedback=[each.reference for each in due.feedback],
    )


class Log:
    """A join with its stored state and its written rewards, as the I/O layer keeps them."""

    def __init__(self, limits: JoinLimits = ENDLESS) -> None:
        self.limits = limits
        self.table: dict[str, str] = {}
        self.join = Join(limits)
        self.announced: list[DueReward] = []

    def settle(self, changes: JoinChanges, *, dies: bool = False) -> None:
        """Commit everything atomically, as the I/O layer does; a crash may come before."""
        for due in changes.due:
            self.join.decided(due, reward(due), {}, changes)
        if dies:
            stored = {name: AttemptState.model_validate_json(value) for name, value in self.table.items()}
            self.join = Join(self.limits, stored)
            return
        assert [each.reward for each in changes.decided] == [reward(due) for due in changes.due]
        self.announced += changes.due
        for name, kept in changes.stored.items():
            if kept is None:
                self.table.pop(name, None)
            else:
                self.table[name] = kept.model_dump_json(exclude_defaults=True)

    def take(self, record: TrajectoryArrival | tuple[str, Feedback], *, dies: bool = False) -> None:
        changes = JoinChanges()
        if isinstance(record, TrajectoryArrival):
            self.join.add_trajectory(record, changes)
        else:
            self.join.add_feedback(*record, changes)
        self.settle(changes, dies=dies)
        if dies:
            self.take(record)

    def until(self, now_ms: int, *, dies: bool = False) -> None:
        changes = JoinChanges()
        self.join.pass_time(now_ms, changes)
        self.settle(changes, dies=dies)
        if dies:
            self.until(now_ms)

    @property
    def made(self) -> Made:
        assert len({(due.trajectory_id, due.revision) for due in self.announced}) == len(self.announced), "said twice"
        return {(due.trajectory_id, due.revision, tuple(each.id for each in due.feedback)) for due in self.announced}


def log_of(*records: TrajectoryArrival | tuple[str, Feedback] | int, limits: JoinLimits = ENDLESS) -> Log:
    """The result of ``records``; a number advances stream time to it."""
    log = Log(limits)
    for record in records:
        if isinstance(record, int):
            log.until(record)
        else:
            log.take(record)
    return log


def test_a_reward_waits_for_its_window_and_uses_feedback_within_it() -> None:
    log = log_of(arrival("t", 100), ("t", signal("a", 500, offset=1)), 1_100)
    assert log.made == set()
    log.until(1_101)
    assert log.made == {("t", 0, ("a",))}


def test_feedback_may_come_before_its_trajectory() -> None:
    assert log_of(("t", signal("a", 50)), arrival("t", 100), FOREVER).made == {("t", 0, ("a",))}


def test_later_feedback_makes_a_revision_with_all_feedback_so_far() -> None:
    log = log_of(
        *(arrival("t", 100), ("t", signal("a", 500, offset=1)), 2_000),
        *(("t", signal("b", 2_000, offset=2)), ("t", signal("c", 2_001, offset=3))),
    )
    assert log.made == {("t", 0, ("a",)), ("t", 1, ("a", "b")), ("t", 2, ("a", "b", "c"))}


def test_whether_feedback_is_in_time_follows_from_its_timestamp() -> None:
    late_and_early = (("t", signal("a", 1_100, offset=1)), ("t", signal("b", 1_101, offset=2)))
    expected = {("t", 0, ("a",)), ("t", 1, ("a", "b"))}
    assert log_of(arrival("t", 100), *late_and_early, FOREVER).made == expected
    assert log_of(*late_and_early, arrival("t", 100), FOREVER).made == expected


def test_without_a_window_a_trajectory_is_scored_immediately_and_feedback_revises_it() -> None:
    log = log_of(arrival("t", 100, window_ms=0))
    assert log.made == {("t", 0, ())}
    log.take(("t", signal("a", 200)))
    assert log.made == {("t", 0, ()), ("t", 1, ("a",))}


def test_a_spec_without_feedback_makes_no_revisions() -> None:
    log = log_of(arrival("t", 100, window_ms=0, takes_feedback=False), ("t", signal("a", 200)))
    assert log.made == {("t", 0, ())}


def test_duplicates_change_nothing() -> None:
    once = (arrival("t", 100), ("t", signal("a", 500)), 2_000, ("t", signal("b", 3_000, offset=1)))
    assert log_of(*once, *once).made == log_of(*once).made


def test_a_revision_is_dated_by_its_feedback_and_the_first_reward_by_the_end_of_its_window() -> None:
    log = log_of(arrival("t", 100), 5_000, ("t", signal("a", 3_000)))
    assert [due.time_ms for due in log.announced] == [1_100, 3_000]


def test_verdicts_are_kept_for_revisions() -> None:
    join, changes = Join(ENDLESS), JoinChanges()
    join.add_trajectory(arrival("t", 100, window_ms=0), changes)
    (due,) = changes.due
    join.decided(due, reward(due), {"helpful": Verdict(0.5, None, {"tone": 0.5})}, changes)
    kept = changes.stored["t"]
    assert kept is not None
    again = AttemptState.model_validate_json(kept.model_dump_json())
    assert again == kept
    assert Join(ENDLESS, {"t": again}).verdicts("t") == {"helpful": Verdict(0.5, None, {"tone": 0.5})}


def test_beyond_the_limit_of_open_windows_the_next_due_is_unscored_with_a_reason() -> None:
    log = log_of(arrival("a", 300), arrival("b", 100), arrival("c", 200), limits=JoinLimits(max_open=2))
    assert [(due.trajectory_id, due.unscored) for due in log.announced] == [("b", WINDOW_OVERFLOW)]
    assert log.join.counts == {WINDOW_OVERFLOW: 1}
    assert log.join.open == 2


def test_feedback_beyond_the_limit_is_ignored_and_counted() -> None:
    feedback = [("t", signal(f"f{number}", 500 + number, offset=number)) for number in range(5)]
    log = log_of(arrival("t", 100), *feedback, FOREVER, limits=JoinLimits(remember_ms=2 * FOREVER, max_feedback=3))
    assert log.made == {("t", 0, ("f0", "f1", "f2"))}
    assert log.join.counts == {SURPLUS: 2}


def test_feedback_after_the_retention_of_the_join_makes_no_revision_and_is_counted() -> None:
    limits = JoinLimits(remember_ms=5_000)
    log = log_of(arrival("t", 100), 2_000, ("t", signal("in", 6_100)), ("t", signal("out", 6_101)), limits=limits)
    assert log.made == {("t", 0, ()), ("t", 1, ("in",))}
    assert log.join.counts == {TOO_LATE: 1}


def test_expired_feedback_without_a_trajectory_is_counted() -> None:
    log = log_of(("nobody", signal("a", 50)), arrival("t", 100), 5_051, limits=JoinLimits(remember_ms=5_000))
    assert log.join.counts == {UNCLAIMED: 1}
    assert log.table.keys() == {"t"}
    log.until(7_000)
    assert log.table == {}
    assert len(log.join) == 0


def test_beyond_the_limit_of_remembered_trajectories_the_oldest_is_evicted() -> None:
    limits = JoinLimits(remember_ms=FOREVER, max_unclaimed=2)
    log = log_of(*(("abc"[n], signal("abc"[n], 100 + n)) for n in range(3)), arrival("t", 500), limits=limits)
    assert log.table.keys() == {"b", "c", "t"}
    assert log.join.counts == {FORGOTTEN_EARLY: 1, UNCLAIMED: 1}


def test_feedback_on_unknown_trajectories_evicts_no_scored_trajectory() -> None:
    """Any sender may name unknown trajectories, without limit."""
    limits = JoinLimits(remember_ms=FOREVER, max_remembered=3, max_unclaimed=3)
    unknown = [(f"nobody-{n}", signal(f"n{n}", 2_000 + n)) for n in range(20)]
    log = log_of(arrival("t", 100), 2_000, *unknown, ("t", signal("late", 3_000)), limits=limits)
    assert log.made == {("t", 0, ()), ("t", 1, ("late",))}
    assert len(log.table) == 4


def test_at_the_memory_bound_unclaimed_feedback_is_evicted_first_and_shares_are_fair() -> None:
    limits = JoinLimits(remember_ms=FOREVER, max_bytes=100_000, max_open=10)
    unknown = [(f"nobody-{n}", signal(f"n{n}", 2_000 + n)) for n in range(200)]
    log = log_of(arrival("t", 100), 2_000, *unknown, ("t", signal("late", 3_000)), limits=limits)
    assert log.made == {("t", 0, ()), ("t", 1, ("late",))}
    assert 80_000 < log.join.held_bytes <= 105_000
    waiting = [arrival(f"w{n}", 4_000, window_ms=FOREVER) for n in range(9)]
    signals = [(each.trajectory_id, signal(f"{each.trajectory_id}-{n}", 4_001)) for each in waiting for n in range(60)]
    log = log_of(*waiting, *signals, limits=limits)
    assert log.join.held_bytes <= 2 * limits.max_bytes
    assert log.join.counts[SURPLUS] > 300
    assert all(len(AttemptState.model_validate_json(kept).heard) >= 10 for kept in log.table.values())


_MEMORY = """
import sys
from headrace.schemas.records.reference import Reference
from headrace.streams.rewards.spec import Feedback
from headrace.streams.scoring.feedback_join import JoinChanges, Join, JoinLimits


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


count, each, digits = map(int, sys.argv[1:])
place, before = Reference(partition=0, offset=0), resident()
join = Join(JoinLimits(max_bytes=2**40, max_unclaimed=2**40))
for n in range(count):
    changes = JoinChanges()
    for k in range(each):
        place = Reference(partition=0, offset=n * each + k)
        join.add_feedback(f"t{n:036}", Feedback(f"{n}-{k:036}", f"{k:0{digits}}", 1.0, n, place), changes)
print(join.held_bytes / (resident() - before))
"""


@pytest.mark.parametrize(("count", "each", "digits"), [(40_000, 1, 8), (2_000, 20, 40), (1_000, 64, 500)])
def test_counted_memory_matches_the_growth_of_the_process(count: int, each: int, digits: int) -> None:
    command = [sys.executable, "-c", _MEMORY, *map(str, (count, each, digits))]
    share = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 0.8 < share < 1.25, share


def test_a_restart_at_any_time_changes_nothing_at_any_bound() -> None:
    limits = JoinLimits(remember_ms=50, max_open=4, max_remembered=4, max_unclaimed=3, max_feedback=3, max_bytes=20_000)
    for seed in range(40):
        chance, now_ms = random.Random(seed), 0
        logs = Log(limits), Log(limits)
        for number in range(150):
            now_ms += chance.choice([0, 0, 1, 3, 10, 30])
            name, at_ms = f"t{chance.randrange(12)}", max(0, now_ms + chance.choice([0, 0, 0, -5, -40]))
            record = chance.choice([
                arrival(name, at_ms, offset=number, window_ms=chance.choice([0, 5, 20])),
                (name, signal(f"f{number - chance.choice([0, 0, 3])}", at_ms)),
                now_ms,
            ])  # fmt: skip
            dies = chance.random() < 0.5
            for log in logs:
                log.until(record) if isinstance(record, int) else log.take(record)
            if dies:
                logs[1].settle(JoinChanges(), dies=True)
            assert logs[0].announced == logs[1].announced
            assert logs[0].table == logs[1].table
            assert logs[0].join.held_bytes == logs[1].join.held_bytes


NAMES = ("x", "y", "z")
arrivals = st.lists(
    st.tuples(st.integers(0, 5_000), st.sampled_from([500, 2_000])), min_size=len(NAMES), max_size=len(NAMES)
)
feedbacks = st.lists(st.tuples(st.sampled_from((*NAMES, "nobody")), st.integers(0, 9_000)), max_size=12)


def sources(
    ends: list[tuple[int, int]], given_at: list[tuple[str, int]]
) -> tuple[list[TrajectoryArrival], list[tuple[str, Feedback]]]:
    """Both topics, each in timestamp order."""
    trajectories = [
        arrival(name, ended_ms, offset=number, window_ms=window_ms)
        for number, (ended_ms, name, window_ms) in enumerate(
            sorted((ended_ms, name, window_ms) for name, (ended_ms, window_ms) in zip(NAMES, ends, strict=True))
        )
    ]
    ordered = sorted(given_at, key=lambda each: each[1])
    return trajectories, [
        (name, signal(f"f{number}", time_ms, offset=number)) for number, (name, time_ms) in enumerate(ordered)
    ]


def expected(trajectories: Iterable[TrajectoryArrival], feedback: list[tuple[str, Feedback]]) -> Made:
    """The rewards, computed from both whole topics."""
    made: Made = set()
    for each in trajectories:
        mine = [one for name, one in feedback if name == each.trajectory_id]
        due_ms = each.arrived_ms + each.window_ms
        in_time = [one.id for one in mine if one.time_ms <= due_ms]
        late = [one.id for one in mine if one.time_ms > due_ms]
        made |= {(each.trajectory_id, n, tuple(in_time + late[:n])) for n in range(len(late) + 1)}
    return made


@settings(max_examples=150, deadline=None)
@given(ends=arrivals, given_at=feedbacks, data=st.data())
def test_any_interleaving_repetition_and_crash_gives_the_same_rewards(
    ends: list[tuple[int, int]], given_at: list[tuple[str, int]], data: st.DataObject
) -> None:
    trajectories, feedback = sources(ends, given_at)
    log, read = Log(), {"t": 0, "f": 0}
    deaths = st.sampled_from([False, False, False, True])
    while read["t"] < len(trajectories) or read["f"] < len(feedback):
        choices = [name for name, topic in (("t", trajectories), ("f", feedback)) if read[name] < len(topic)]
        step = data.draw(st.sampled_from([*choices, "time", "again"]))
        if step == "time":
            # Stream time advances only as far as both topics were read.
            ahead = [topic[read[name]] for name, topic in (("t", trajectories), ("f", feedback)) if name in choices]
            now_ms = min(each.arrived_ms if isinstance(each, TrajectoryArrival) else each[1].time_ms for each in ahead)
            log.until(now_ms, dies=data.draw(deaths))
        elif step == "again":
            name = data.draw(st.sampled_from(["t", "f"]))
            read[name] = data.draw(st.integers(0, read[name]))
        else:
            record = trajectories[read["t"]] if step == "t" else feedback[read["f"]]
            log.take(record, dies=data.draw(deaths))
            read[step] += 1
    log.until(FOREVER, dies=data.draw(deaths))
    assert log.made == expected(trajectories, feedback)
