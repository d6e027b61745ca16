"""Counts of all rollouts of a run, including those that the variance filter or another rule rejects."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import Purpose
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.rollouts import RolloutCounts, rollouts_in
from headrace.streams.grouping.group import output_message
from headrace.streams.grouping.group_policy import GroupPolicies, parse_policies
from headrace.streams.grouping.group_state import Rollouts, decoded, rollouts_key, to_record
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from tests.streams.attempts import rewarded
from tests.streams.grouping.test_groups import LIMITS, POLICIES, RUNNING, add, alone, histories

NOTHING = RolloutCounts()


def pair(name: str, first: float | None, second: float | None, **fields: object) -> list[tuple[Reward, int]]:
    """A group of two, complete."""
    rewards = [rewarded(f"{name}{number}", total, group=name) for number, total in enumerate((first, second))]
    return [(each.model_copy(update=fields), 100) for each in rewards]


def written_counts(*changes: GroupChanges) -> list[RolloutCounts | None]:
    """Rollout counts of the training records, in log order."""
    outputs = [each for some in changes for each in some.outputs if isinstance(each.record, TrainingGroup)]
    return [rollouts_in(output_message(each.record, 1, rollouts=each.rollouts)[1].headers) for each in outputs]


def total(counts: Iterable[RolloutCounts | None]) -> RolloutCounts:
    """Their sum."""
    found = NOTHING
    for each in counts:
        found = found.plus(each or NOTHING)
    return found


def test_groups_without_variance_are_counted_by_the_next_formed_group() -> None:
    changes = add(
        Groups(LIMITS),
        *pair("a", 1.0, 1.0), *pair("b", 0.0, 0.0), *pair("c", 0.5, 0.5), *pair("d", 1.0, 0.0), *pair("e", 0.0, 0.5),
    )  # fmt: skip
    assert written_counts(changes) == [
        RolloutCounts(scored=8, reward_sum=4.0, groups=4, all_success=1, all_fail=1, all_equal=1),
        RolloutCounts(scored=2, reward_sum=0.5, groups=1),
    ]


def test_rejections_for_other_reasons_count_as_rollouts_and_not_as_groups_without_variance() -> None:
    defective = [rewarded(f"a{n}", float(n), group="a", defects=[Defect.NO_CONSENT]) for n in (0, 1)]
    late, apart, unscored = rewarded("a2", 0.5, group="a"), rewarded("x", 0.25, group=None), pair("u", None, None)
    changes = add(
        Groups(LIMITS), *((each, 100) for each in (*defective, late, apart)), *unscored,
        (rewarded("i0", 0.125, group="i"), 100), *((each, 2000) for each, _ in pair("g", 1.0, 0.0)),
    )  # fmt: skip
    reasons = [each.record.reason for each in changes.outputs if isinstance(each.record, Rejection)]
    assert reasons == [
        Reason.NO_CONSENT, Reason.NO_CONSENT, Reason.LATE_FOR_GROUP, Reason.NO_GROUP, Reason.UNSCORED, Reason.UNSCORED,
        Reason.INCOMPLETE_GROUP,
    ]  # fmt: skip
    assert written_counts(changes) == [RolloutCounts(scored=7, reward_sum=1.0 + 0.5 + 0.25 + 0.125 + 1.0, groups=1)]


def test_evaluations_and_other_runs_do_not_count() -> None:
    changes = add(
        Groups(LIMITS),
        (rewarded("e", 1.0, purpose=Purpose.EVALUATE), 100),
        *pair("o", 1.0, 1.0, run="other"),
        *pair("a", 1.0, 0.0),
        *pair("p", 0.0, 1.0, run="other"),
    )
    assert written_counts(changes) == [
        RolloutCounts(scored=2, reward_sum=1.0, groups=1),
        RolloutCounts(scored=4, reward_sum=3.0, groups=2, all_success=1),
    ]


def test_single_attempts_that_only_fill_a_baseline_count() -> None:
    totals = [0.5, 0.5, 1.0]
    changes = add(Groups(LIMITS, policies=RUNNING), *((alone(f"a{n}", each), 1) for n, each in enumerate(totals)))
    assert written_counts(changes) == [RolloutCounts(scored=3, reward_sum=2.0, groups=2, all_equal=1)]


def test_a_length_budget_changes_what_is_trained_and_not_what_was_scored() -> None:
    policies = parse_policies({"*": {"toggle": {"budgets": {"task-of-a": 5}}}})
    (first, at), (second, _) = pair("a", 1.0, 0.5)
    second = second.model_copy(update={"sampled_tokens": 6})
    changes = add(Groups(LIMITS, policies=policies), (first.model_copy(update={"sampled_tokens": 5}), at), (second, at))
    (group,) = [each.record for each in changes.outputs]
    assert isinstance(group, TrainingGroup)
    assert [member.reward for member in group.members] == [1.0, 0.0]
    assert written_counts(changes) == [RolloutCounts(scored=2, reward_sum=1.5, groups=1)]


def test_a_revision_counts_in_the_place_of_the_reward_before_it() -> None:
    revised = rewarded("a0", 0.5, group="a").model_copy(update={"revision": 1})
    history = pair("a", 1.0, 0.0)
    changes = add(Groups(LIMITS), history[0], (revised, 100), history[1], (revised, 100), *history)
    assert written_counts(changes) == [RolloutCounts(scored=2, reward_sum=0.5, groups=1)]


def test_uncounted_rollouts_are_stored_until_they_are_written() -> None:
    groups = Groups(LIMITS)
    first = add(groups, *pair("a", 1.0, 1.0))
    assert first.stored[rollouts_key("r")] == Rollouts("r", 2, 2.0, 1, 1, 0, 0)
    second = add(groups, *pair("b", 1.0, 0.0))
    assert second.stored[rollouts_key("r")] is None
    assert rollouts_key("r") not in add(groups, *pair("c", 1.0, 0.0)).stored
    assert rollouts_key("r") not in add(groups, (rewarded("e", 1.0, purpose=Purpose.EVALUATE), 100)).stored


def test_beyond_the_limit_of_runs_the_longest_idle_runs_rollouts_are_forgotten() -> None:
    groups = Groups(GroupLimits(max_runs=2))
    add(groups, *pair("a", 1.0, 1.0, run="a"), *pair("b", 1.0, 1.0, run="b"), *pair("c", 1.0, 1.0, run="a"))
    changes = add(groups, *pair("d", 1.0, 1.0, run="c"))
    assert changes.stored[rollouts_key("b")] is None
    later = add(groups, *pair("e", 1.0, 0.0, run="a"), *pair("f", 1.0, 0.0, run="b"))
    assert written_counts(later) == [
        RolloutCounts(scored=6, reward_sum=5.0, groups=3, all_success=2),
        RolloutCounts(scored=2, reward_sum=1.0, groups=1),
    ]


def fates(changes: Sequence[GroupChanges]) -> RolloutCounts:
    """Counts derived from the members and rejections in records, without the counters."""
    records = [each.record for some in changes for each in some.outputs]
    formed = [each for each in records if isinstance(each, TrainingGroup)]
    rejected = [each for each in records if isinstance(each, Rejection)]
    rewards = [member.reward for group in formed for member in group.members]
    rewards += [each.reward for each in rejected if each.reward is not None]
    kinds = {}
    for kind, reason in (("success", Reason.ALL_SUCCESS), ("fail", Reason.ALL_FAIL), ("equal", Reason.ALL_EQUAL)):
        found = [each for each in rejected if each.reason is reason]
        # Single attempts have no group id: each is a group of one.
        kinds[f"all_{kind}"] = len({each.group_id or each.trajectory_id for each in found})
    return RolloutCounts(
        scored=len(rewards), reward_sum=sum(rewards), groups=len(formed) + sum(kinds.values()), **kinds
    )


@given(histories(), st.sampled_from(POLICIES), st.data())
def test_every_fate_is_counted_once_however_often_the_worker_is_restarted(
    history: list[tuple[Reward, int]], policies: GroupPolicies, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=6)))
    topic: dict[bytes, bytes] = {}
    said = []
    for start, end in zip([0, *cuts], [*cuts, len(history)], strict=True):
        entries = [decoded(key, value) for key, value in topic.items()]
        groups = Groups(GroupLimits(timeout_ms=1000), entries, policies=policies, sources=2)
        said.append(add(groups, *history[start:end]))
        for key, value in (to_record(key, entry) for key, entry in said[-1].stored.items()):
            topic.pop(key, None)
            if value is not None:
                topic[key] = value
    left = [entry.counts for entry in map(decoded, topic, topic.values()) if isinstance(entry, Rollouts)]
    assert total([*written_counts(*said), *left]) == fates(said)
