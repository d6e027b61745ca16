"""The groups of a partition: stream time expires them; batch boundaries and restarts change no decision."""

from collections import Counter, defaultdict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.streams.grouping.group_decision import Outputs
from headrace.streams.grouping.group_policy import GroupPolicies, parse_policies
from headrace.streams.grouping.group_state import (
    CLOCK,
    GroupState,
    decoded,
    group_key,
    member_key,
    running_key,
    to_record,
)
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from headrace.streams.grouping.watermark import IDLE_AFTER, Watermark
from tests.streams.attempts import rewarded

LIMITS = GroupLimits(timeout_ms=1000, remember_ms=5000)


def decided(changes: GroupChanges) -> Outputs:
    """All decisions in ``changes``."""
    return [each.record for each in changes.outputs]


def reasons(changes: GroupChanges) -> dict[str, Reason]:
    return {output.trajectory_id: output.reason for output in decided(changes) if isinstance(output, Rejection)}


def memory_of(changes: GroupChanges, group_id: str) -> GroupState:
    """The closed group that ``changes`` keep."""
    kept = changes.stored[group_key(group_id)]
    assert isinstance(kept, GroupState)
    return kept


def add(groups: Groups, *arrivals: tuple[Reward, int]) -> GroupChanges:
    changes = GroupChanges()
    for reward, timestamp_ms in arrivals:
        groups.add(reward, timestamp_ms, changes)
    return changes


def test_an_arrival_expires_what_was_due_before_it_is_folded() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", group="g"), 100))
    changes = add(groups, (rewarded("b", group="g"), 1100))
    assert reasons(changes) == {"a": Reason.INCOMPLETE_GROUP, "b": Reason.LATE_FOR_GROUP}
    assert memory_of(changes, "g").closed_ms == 1100


def test_stream_time_only_moves_forward() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", group="g"), 1000), (rewarded("b", group="h"), 10))
    assert groups.time.passed_ms == 1000
    assert reasons(add(groups, (rewarded("c", group="i"), 1009))) == {}
    assert reasons(add(groups, (rewarded("d", group="j"), 1010))) == {"b": Reason.INCOMPLETE_GROUP}


def test_the_last_members_spec_does_not_decide_the_group() -> None:
    """Members by two specs meet while one spec replaces the other: the first member's spec decides the group."""
    policies = parse_policies({"new": {"baseline": "threshold", "threshold": 0.9}})
    old = [rewarded("a", 1.0, group="g", size=3), rewarded("b", 0.0, group="g", size=3)]
    new = rewarded("c", 0.5, group="g", size=3).model_copy(update={"spec": "new@1"})
    orders = ([*old, new], [old[0], new, old[1]])
    found = [decided(add(Groups(LIMITS, policies=policies), *((each, 100) for each in order))) for order in orders]
    assert found[0] == found[1]
    formed = found[0][0]
    assert isinstance(formed, TrainingGroup)
    assert {each.trajectory_id: each.advantage for each in formed.members} == {"a": 0.5, "b": -0.5}


def test_memory_does_not_grow_with_complete_groups() -> None:
    """A deadline of days must not keep an entry for every group that was complete within a second."""
    groups = Groups(GroupLimits(max_remembered=10), policies=parse_policies({"*": {"within_s": 7 * 86400.0}}))
    for number in range(5000):
        pair = [rewarded(f"{number}-{place}", float(place), group=f"g{number}", size=2) for place in range(2)]
        assert len(decided(add(groups, *((each, number) for each in pair)))) == 1
    waiting = rewarded("late", group="waits", size=2)
    assert decided(add(groups, (waiting, 5000))) == []
    assert len(groups._due) < 2000
    changes = GroupChanges()
    groups.expire_due(5000 + 7 * 86_400_000, changes)
    assert reasons(changes) == {"late": Reason.INCOMPLETE_GROUP}


def test_members_are_bounded_over_all_groups() -> None:
    limits = GroupLimits(max_members=100, max_remembered_members=100)
    groups, fates = Groups(limits), Counter[str]()
    for number in range(1000):
        reward = rewarded(f"t{number}", group=f"g{number // 40}", size=41)
        fates.update(reasons(add(groups, (reward, number))).keys())
        assert sum(len(state.members) for state in groups._open.values()) <= 100
        assert sum(len(state.closed or ()) for state in groups._closed.values()) <= 140
    assert set(fates.values()) == {1}
    assert len(fates) >= 900
    stored = [*groups._open.values(), *groups._closed.values()]
    assert Groups(limits, stored)._remembered_members == groups._remembered_members


def from_source(source: int, reward: Reward) -> Reward:
    return reward.model_copy(update={"trajectory": Reference(partition=source, offset=0)})


def test_a_source_read_ahead_expires_no_group_of_another() -> None:
    groups = Groups(LIMITS, sources=2)
    ahead = [(from_source(0, rewarded(f"a{number}", 0.0, group=f"g{number}")), 1000 * number) for number in range(50)]
    behind = [(from_source(1, rewarded(f"b{number}", 1.0, group=f"g{number}")), 1000 * number) for number in range(50)]
    changes = add(groups, *ahead, *behind)
    assert reasons(changes) == {}
    assert len(decided(changes)) == 50


def test_a_silent_source_holds_time_back_for_a_bounded_number_of_records() -> None:
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


def test_a_tick_expires_groups_and_does_not_change_stream_time() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", group="g"), 100))
    assert not groups.is_due(1099)
    assert groups.is_due(1100)
    changes = GroupChanges()
    groups.expire_due(2000, changes)
    assert reasons(changes) == {"a": Reason.INCOMPLETE_GROUP}
    assert memory_of(changes, "g").closed_ms == 1100
    assert groups.time.newest_ms == 100


def test_a_closed_group_is_forgotten_after_its_time() -> None:
    groups = Groups(LIMITS)
    add(groups, (rewarded("a", 0.0), 100), (rewarded("b", 1.0), 200))
    assert reasons(add(groups, (rewarded("c"), 5199))) == {"c": Reason.LATE_FOR_GROUP}
    changes = add(groups, (rewarded("x", group="other"), 5200))
    assert changes.stored[group_key("g")] is None


def test_too_many_open_groups_close_the_oldest() -> None:
    groups = Groups(GroupLimits(max_open=2))
    changes = add(groups, *((rewarded(name, group=name), 100 + number) for number, name in enumerate("abc")))
    assert reasons(changes) == {"a": Reason.INCOMPLETE_GROUP}
    assert groups.open == 2


def test_too_many_closed_groups_forget_the_oldest() -> None:
    groups = Groups(GroupLimits(max_remembered=1))
    for number, name in enumerate("ab"):
        add(groups, (rewarded(name, 0.5, group=name, size=1), number))
    changes = add(groups, (rewarded("c", 0.5, group="c"), 9))
    assert changes.stored[group_key("a")] is None
    assert group_key("b") not in changes.stored


def test_a_member_is_stored_once_and_forgotten_when_its_group_closes() -> None:
    groups = Groups(LIMITS)
    first = add(groups, (rewarded("a", 0.0, size=3), 100))
    assert set(first.stored) == {CLOCK, group_key("g"), member_key("g", "a")}
    second = add(groups, (rewarded("b", 0.0, size=3), 100))
    assert set(second.stored) == {CLOCK, member_key("g", "b")}
    third = add(groups, (rewarded("c", 1.0, size=3), 100))
    assert memory_of(third, "g").closed == ("a", "b", "c")
    assert {key for key, entry in third.stored.items() if entry is None} == {member_key("g", "a"), member_key("g", "b")}


def test_a_group_that_opens_and_closes_in_one_batch_stores_only_its_closed_entry() -> None:
    changes = add(Groups(LIMITS), (rewarded("a", 0.0), 100), (rewarded("b", 1.0), 100))
    assert set(changes.stored) == {CLOCK, group_key("g")}


def test_a_decision_continues_the_trace_of_its_first_traced_reward() -> None:
    groups, changes = Groups(LIMITS), GroupChanges()
    groups.add(rewarded("a", 0.0), 1, changes)
    groups.add(rewarded("b", 1.0), 1, changes, "trace-b")
    groups.add(rewarded("c", 1.0), 1, changes, "trace-c")
    assert [each.origin for each in changes.outputs] == ["trace-b", "trace-c"]


PAIRS = parse_policies({"*": {"by": "cohort", "size": 2}})
RUNNING = parse_policies({"*": {"by": "cohort", "baseline": "running", "warmup": 1}})


def alone(name: str, total: float | None, cohort: str | None = "eu", **fields: object) -> Reward:
    """The reward of a single attempt."""
    return rewarded(name, total, group=None, size=None).model_copy(update={"cohort_key": cohort} | fields)


def training(changes: GroupChanges) -> list[TrainingGroup]:
    return [output for output in decided(changes) if isinstance(output, TrainingGroup)]


def test_single_attempts_are_collected_by_cohort_and_spec_and_run() -> None:
    groups = Groups(LIMITS, policies=PAIRS)
    changes = add(
        groups,
        (alone("a", 0.0), 1),
        (alone("b", 1.0, "us"), 1),
        (alone("c", 1.0, spec="other@1"), 1),
        (alone("d", 1.0, run="other"), 1),
        (alone("e", 1.0), 1),
        (alone("f", 0.0, "us"), 1),
    )
    members = {each.cohort_key: [member.trajectory_id for member in each.members] for each in training(changes)}
    assert members == {"eu": ["a", "e"], "us": ["b", "f"]}
    assert groups.open == 2


def test_a_cohorts_group_has_an_id_that_follows_from_its_first_member() -> None:
    first = add(Groups(LIMITS, policies=PAIRS), (alone("a", 0.0), 1), (alone("b", 1.0), 1))
    again = add(Groups(LIMITS, policies=PAIRS), (alone("a", 0.0), 9), (alone("c", 1.0), 9))
    other = add(Groups(LIMITS, policies=PAIRS), (alone("b", 0.0), 1), (alone("a", 1.0), 1))
    ids = [each.group_id for changes in (first, again, other) for each in training(changes)]
    assert ids[0] == ids[1] != ids[2]


def test_an_expired_cohort_forms_a_group_if_enough_members_came() -> None:
    policies = parse_policies({"*": {"by": "cohort", "size": 8, "within_s": 1, "min_members": 2}})
    groups = Groups(LIMITS, policies=policies)
    add(groups, (alone("a", 0.0), 1), (alone("b", 1.0), 2), (alone("c", 1.0, "us"), 3))
    changes = add(groups, (alone("d", 1.0), 1003))
    assert [[member.trajectory_id for member in each.members] for each in training(changes)] == [["a", "b"]]
    assert reasons(changes) == {"c": Reason.INCOMPLETE_GROUP}


def test_a_repeated_single_attempt_has_no_second_fate() -> None:
    groups = Groups(LIMITS, policies=PAIRS)
    history = [(alone("a", 0.0), 1), (alone("b", 1.0), 1)]
    add(groups, *history)
    again = add(groups, *history, (alone("b", 0.5, revision=1), 1))
    assert (decided(again), again.ignored) == ([], 3)


def test_each_single_attempt_is_decided_against_the_mean_of_those_before() -> None:
    groups = Groups(LIMITS, policies=RUNNING)
    changes = add(
        groups, *((alone(name, total), 1) for name, total in [("a", 0.0), ("b", 1.0), ("c", 0.5), ("a", 0.0)])
    )
    assert reasons(changes) == {"a": Reason.NO_BASELINE, "c": Reason.ALL_EQUAL}
    assert [each.members[0].advantage for each in training(changes)] == [1.0]
    assert changes.ignored == 1


def test_without_a_cohort_policy_a_single_attempt_has_no_group() -> None:
    assert reasons(add(Groups(LIMITS), (alone("a", 1.0), 1))) == {"a": Reason.NO_GROUP}


def test_too_many_cohorts_forget_the_least_recently_used_mean() -> None:
    groups = Groups(GroupLimits(max_cohorts=2), policies=RUNNING)
    add(groups, (alone("a", 0.0, "eu"), 1), (alone("b", 0.0, "us"), 1), (alone("c", 1.0, "eu"), 1))
    changes = add(groups, (alone("d", 0.0, "jp"), 1))
    assert changes.stored[running_key(("r", "outcome@1", "us"))] is None
    assert reasons(add(groups, (alone("e", 0.0, "us"), 1))) == {"e": Reason.NO_BASELINE}


POLICIES = [
    parse_policies({"*": policy})
    for policy in (
        {},
        {"baseline": "leave_one_out", "incomplete": "shrink"},
        {"baseline": "threshold", "threshold": 0.5, "within_s": 2},
        {"by": "cohort", "size": 3, "within_s": 1},
        {"by": "cohort", "baseline": "threshold"},
        {"by": "cohort", "baseline": "running", "warmup": 2, "half_life": 3},
    )
]

TIGHT = GroupLimits(timeout_ms=1000, remember_ms=10**9, max_open=3, max_cohorts=2)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Reward, int]]:
    """Rewards of groups and of single attempts, some twice, some revised, with timestamps that mostly grow."""
    clock, found = 0, []
    for _ in range(draw(st.integers(1, 30))):
        clock = max(0, clock + draw(st.integers(-50, 700)))
        member, group = draw(st.integers(0, 9)), draw(st.integers(0, 3))
        revision = draw(st.sampled_from([0, 0, 0, 1]))
        # The same reward is the same whenever it comes.
        total = (None, 0.0, 0.5, 1.0, 1.0, 0.0)[(7 * group + 5 * member + revision) % 6]
        defects = [Defect.NO_CONSENT] if member % 3 == 0 else []
        reward = rewarded(f"t{group}-{member}", total, group=f"g{group}", size=3, defects=defects)
        if member > 4:
            reward = reward.model_copy(update={"group_id": None, "cohort_key": f"c{group}"})
        found.append((from_source(member % 2, reward.model_copy(update={"revision": revision})), clock))
    return found


def restarted(stored: dict[bytes, bytes], policies: GroupPolicies) -> Groups:
    return Groups(TIGHT, [decoded(key, value) for key, value in stored.items()], policies=policies, sources=2)


@given(histories(), st.sampled_from(POLICIES), st.data())
def test_a_restart_between_any_two_batches_changes_no_decision(
    history: list[tuple[Reward, int]], policies: GroupPolicies, data: st.DataObject
) -> None:
    uncut = add(Groups(TIGHT, policies=policies, sources=2), *history)

    cuts = sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=6)))
    topic: dict[bytes, bytes] = {}
    said = []
    for start, end in zip([0, *cuts], [*cuts, len(history)], strict=True):
        changes = add(restarted(topic, policies), *history[start:end])
        said += changes.outputs
        for key, value in (to_record(key, entry) for key, entry in changes.stored.items()):
            topic.pop(key, None)
            if value is not None:
                topic[key] = value
    assert said == uncut.outputs


@given(histories(), st.sampled_from(POLICIES))
def test_every_trajectory_has_one_fate_and_the_fates_sum_up(
    history: list[tuple[Reward, int]], policies: GroupPolicies
) -> None:
    limits = GroupLimits(timeout_ms=1000, remember_ms=10**9)
    groups, changes = Groups(limits, policies=policies, sources=2), GroupChanges()
    for reward, timestamp_ms in history:
        groups.add(reward, timestamp_ms, changes)
    groups.expire_due(10**9, changes)
    fates: dict[str, set[str]] = defaultdict(set)
    trained: Counter[str] = Counter()
    for output in decided(changes):
        if isinstance(output, TrainingGroup):
            trained.update(member.trajectory_id for member in output.members)
        else:
            # A member that was rejected immediately is rejected again if it is repeated: same record, same ID.
            fates[output.trajectory_id].add(output.model_dump_json())
    assert set(trained.values()) <= {1}
    assert not set(fates) & set(trained)
    assert all(len(said) == 1 for said in fates.values())
    assert set(fates) | set(trained) == {reward.trajectory_id for reward, _ in history if reward.revision == 0}


@given(histories(), st.sampled_from(POLICIES))
def test_a_repeated_batch_decides_nothing_again(history: list[tuple[Reward, int]], policies: GroupPolicies) -> None:
    limits = GroupLimits(timeout_ms=10**9, remember_ms=10**9)
    # A policy's own timeout must not pass either: no group may close between the two.
    patient = GroupPolicies({name: replace(each, within_s=None) for name, each in policies.by_spec.items()})
    groups = Groups(limits, policies=patient, sources=2)
    first = {output.model_dump_json() for output in decided(add(groups, *history))}
    assert {output.model_dump_json() for output in decided(add(groups, *history))} <= first


STEPPED = GroupLimits(timeout_ms=600_000)


def at_work(sources: int = 1) -> Groups:
    """Groups as configured in the worker."""
    return Groups(STEPPED, sources=sources, step_ms=STEPPED.step_ms)


def test_an_outage_longer_than_the_timeout_expires_no_group() -> None:
    groups, hour = at_work(), 3_600_000
    assert not add(groups, (rewarded("a1", group="a"), 1), (rewarded("b1", group="b"), hour)).outputs
    changes = add(groups, (rewarded("a2", group="a"), hour + 10))
    assert changes.outputs
    assert groups.open == 1


def test_observed_silence_counts_in_full() -> None:
    groups, changes = at_work(), add(at_work(), (rewarded("a1", group="a"), 0))
    add(groups, (rewarded("a1", group="a"), 1))
    for now_ms in range(0, STEPPED.timeout_ms, 30_000):
        groups.pass_time(now_ms, changes)
    assert groups.open == 1
    groups.pass_time(STEPPED.timeout_ms + 1, changes)
    assert (groups.open, reasons(changes)) == (0, {"a1": Reason.INCOMPLETE_GROUP})
    assert changes.outputs[-1].time_ms == STEPPED.timeout_ms + 1


def test_excluded_time_survives_a_restart() -> None:
    hour = 3_600_000
    changes = add(groups := at_work(), (rewarded("a1", group="a"), 1), (rewarded("b1", group="b"), hour))
    stored = [entry for entry in changes.stored.values() if entry is not None]
    again = Groups(STEPPED, stored, step_ms=STEPPED.step_ms)
    for each in (groups, again):
        left = STEPPED.timeout_ms - STEPPED.step_ms
        for now_ms in range(hour, hour + left, 30_000):
            each.pass_time(now_ms, changes)
        assert each.open == 2
        each.pass_time(hour + left + 1, found := GroupChanges())
        assert reasons(found) == {"a1": Reason.INCOMPLETE_GROUP}


def test_a_drained_source_holds_no_time_back() -> None:
    time = Watermark(sources=3)
    time.see(0, 1000)
    time.see(1, 5000)
    assert (time.passed_ms, time.passed_without(set())) == (None, None)
    assert time.passed_without({2}) == 1000
    assert time.passed_without({0, 2}) == 5000
    assert time.passed_without({0, 1}) is None
    assert time.passed_without({0, 1, 2}) is None
    assert time.passed_without({0, 1, 2}, 7000) == 7000


def test_a_reward_of_a_nonexistent_source_does_not_affect_time() -> None:
    time = Watermark(sources=1)
    time.see(7, 10**15)
    assert (time.newest, time.passed_ms) == ({}, None)


def test_a_negative_timestamp_does_not_affect_time() -> None:
    time = Watermark(sources=1)
    time.see(0, -1)
    assert (time.newest_ms, time.passed_ms) == (0, 0)
    time.see(0, 7)
    assert (time.newest_ms, time.passed_ms) == (7, 7)
