"""The groups of a partition: log time expires them, a cut and a restart change no decision."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records import Reason, Reference, Rejection, Reward
from headrace.streams.group import Outputs
from headrace.streams.groups import Changes, GroupLimits, Groups, StoredGroup
from headrace.streams.watermark import IDLE_AFTER, Watermark
from tests.streams.attempts import rewarded

LIMITS = GroupLimits(timeout_ms=1000, remember_ms=5000)


def decided(changes: Changes) -> Outputs:
    """Everything in ``changes`` that will be announced."""
    return [output for kept in changes.stored.values() if kept for output in kept.outputs] + [
        rejection for rejection, _ in changes.at_once
    ]


def reasons(changes: Changes) -> dict[str, Reason]:
    return {output.trajectory_id: output.reason for output in decided(changes) if isinstance(output, Rejection)}


def add(groups: Groups, *arrivals: tuple[Reward, int]) -> Changes:
    changes = Changes()
    for reward, timestamp_ms in arrivals:
        groups.add(reward, timestamp_ms, changes)
    return changes


def test_an_arrival_expires_what_was_due_before_it_is_folded() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", group="g"), 100))
    changes = add(groups, (rewarded("b", group="g"), 1100))
    assert reasons(changes) == {"a": Reason.INCOMPLETE_GROUP, "b": Reason.LATE_FOR_GROUP}
    assert changes.stored["g"] is not None
    assert changes.stored["g"].state.closed_ms == 1100


def test_log_time_only_moves_forward() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", group="g"), 1000), (rewarded("b", group="h"), 10))
    assert groups.time.passed_ms == 1000
    assert reasons(add(groups, (rewarded("c", group="i"), 1009))) == {}
    assert reasons(add(groups, (rewarded("d", group="j"), 1010))) == {"b": Reason.INCOMPLETE_GROUP}


def from_source(source: int, reward: Reward) -> Reward:
    return reward.model_copy(update={"trajectory": Reference(partition=source, offset=0)})


def test_a_source_that_is_read_ahead_expires_nothing_that_waits_in_another() -> None:
    groups = Groups(LIMITS, sources=2)
    ahead = [(from_source(0, rewarded(f"a{number}", 0.0, group=f"g{number}")), 1000 * number) for number in range(50)]
    behind = [(from_source(1, rewarded(f"b{number}", 1.0, group=f"g{number}")), 1000 * number) for number in range(50)]
    changes = add(groups, *ahead, *behind)
    assert reasons(changes) == {}
    assert len(decided(changes)) == 50


def test_a_silent_source_holds_time_back_for_so_many_records_only() -> None:
    time = Watermark(sources=2)
    for number in range(IDLE_AFTER - 1):
        time.see(0, number)
    assert time.passed_ms is None
    time.see(0, IDLE_AFTER)
    assert time.passed_ms == IDLE_AFTER
    time.see(1, 5)
    assert time.passed_ms == IDLE_AFTER


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000)), min_size=1))
def test_the_watermark_is_the_slowest_source_and_never_goes_back(seen: list[tuple[int, int]]) -> None:
    time, before, newest = Watermark(sources=3), None, {}
    for source, timestamp_ms in seen:
        time.see(source, timestamp_ms)
        newest[source] = max(newest.get(source, 0), timestamp_ms)
        assert time.passed_ms == (min(newest.values()) if len(newest) == 3 else None)
        assert before is None or (time.passed_ms or 0) >= before
        before = time.passed_ms


def test_a_tick_expires_and_leaves_log_time_alone() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", group="g"), 100))
    assert not groups.is_due(1099)
    assert groups.is_due(1100)
    changes = Changes()
    groups.expire_due(9999, changes)
    assert reasons(changes) == {"a": Reason.INCOMPLETE_GROUP}
    assert changes.stored["g"] is not None
    assert changes.stored["g"].state.closed_ms == 1100
    assert groups.newest_ms == 100


def test_a_closed_group_is_forgotten_in_time() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", 0.0), 100), (rewarded("b", 1.0), 200))
    assert reasons(add(groups, (rewarded("c"), 5199))) == {"c": Reason.LATE_FOR_GROUP}
    changes = add(groups, (rewarded("x", group="other"), 5200))
    assert changes.stored["g"] is None


def test_a_decision_is_not_forgotten_before_it_is_announced() -> None:
    groups = Groups(LIMITS)
    changes = add(groups, (rewarded("a", 0.0), 100), (rewarded("b", 1.0), 200), (rewarded("x", group="other"), 9999))
    assert len(decided(changes)) == 1
    assert changes.stored["g"] is not None
    assert add(groups, (rewarded("y", group="other"), 9999)).stored["g"] is None


def test_too_many_open_groups_give_up_the_oldest() -> None:
    groups = Groups(GroupLimits(max_open=2))
    changes = add(groups, *((rewarded(name, group=name), 100 + number) for number, name in enumerate("abc")))
    assert reasons(changes) == {"a": Reason.INCOMPLETE_GROUP}
    assert groups.open == 2


def test_too_many_memories_drop_the_oldest() -> None:
    groups = Groups(GroupLimits(max_remembered=1))
    for number, name in enumerate("ab"):
        add(groups, (rewarded(name, 0.5, group=name, size=1), number))
    changes = add(groups, (rewarded("c", 0.5, group="c"), 9))
    assert changes.stored["a"] is None
    assert "b" not in changes.stored


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[Reward, int]]:
    """Rewards of some groups, some twice, with timestamps that grow."""
    count = draw(st.integers(1, 25))
    clock, found = 0, []
    for number in range(count):
        clock += draw(st.integers(0, 700))
        group, member = draw(st.integers(0, 3)), draw(st.integers(0, 4))
        total = draw(st.sampled_from([0.0, 0.5, 1.0]))
        name = f"g{group}-{member}"
        reward = rewarded(name, total, group=f"g{group}", size=3, offset=number)
        found.append((reward, clock))
    return found


@given(arrivals(), st.data())
def test_a_restart_between_any_two_batches_changes_no_decision(
    history: list[tuple[Reward, int]], data: st.DataObject
) -> None:
    limits = GroupLimits(timeout_ms=1000, remember_ms=10**9)
    uncut = decided(add(Groups(limits), *history))

    cuts = sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=4)))
    kept: dict[str, StoredGroup] = {}
    said: Outputs = []
    for start, end in zip([0, *cuts], [*cuts, len(history)], strict=True):
        groups = Groups(
            limits, {name: StoredGroup.model_validate_json(each.model_dump_json()) for name, each in kept.items()}
        )
        changes = add(groups, *history[start:end])
        said += decided(changes)
        kept |= {name: each.announced() for name, each in changes.stored.items() if each}
    key = lambda output: output.model_dump_json()  # noqa: E731
    assert sorted(map(key, said)) == sorted(map(key, uncut))


@given(arrivals())
def test_a_repeated_batch_decides_the_same_again(history: list[tuple[Reward, int]]) -> None:
    limits = GroupLimits(timeout_ms=10**9, remember_ms=10**9)
    groups = Groups(limits)
    first = decided(add(groups, *history))
    again = decided(add(groups, *history))
    late = {
        output.trajectory_id
        for output in first
        if isinstance(output, Rejection) and output.reason is Reason.LATE_FOR_GROUP
    }
    assert {output.trajectory_id for output in again if isinstance(output, Rejection)} == late
    assert all(isinstance(output, Rejection) and output.reason is Reason.LATE_FOR_GROUP for output in again)
