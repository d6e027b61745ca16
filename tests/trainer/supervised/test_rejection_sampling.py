"""Rejection sampling keeps each task's best success, and excludes every other attempt by a rule."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import EndStatus, Purpose, Role
from headrace.schemas.records.trajectory import Defect
from headrace.trainer.supervised.attempt import ScoredTrajectory, with_group_means
from headrace.trainer.supervised.rejection_sampling import RejectionSampling
from tests.trainer.supervised.attempts import attempt, form


def decided(attempts: list[ScoredTrajectory], rules: RejectionSampling | None = None) -> dict[str, str]:
    selection = (rules or RejectionSampling()).select(with_group_means(attempts))
    return {each.trajectory_id: label for each, label in (*selection.kept, *selection.excluded)}


def test_a_reward_counts_as_a_share_of_the_largest_possible() -> None:
    attempts = [attempt("a", total=1.6, maximum=2.0), attempt("b", total=1.5, maximum=2.0), attempt("c", maximum=None)]
    assert decided(attempts) == {"a": "success", "b": "below_reward", "c": "success"}


def test_an_attempt_that_did_not_complete_is_no_success() -> None:
    assert decided([attempt("a", status=EndStatus.BUDGET_EXHAUSTED)]) == {"a": "malformed"}


def test_a_group_in_which_all_succeed_teaches_nothing() -> None:
    same = [attempt(f"s{i}", group_id="same") for i in range(2)]
    mixed = [attempt("m0", group_id="mixed"), attempt("m1", group_id="mixed", total=0.0)]
    alone = [attempt("a0", group_id="alone")]
    expected = {"m0": "success", "m1": "below_reward", "a0": "success"}
    expected |= dict.fromkeys(("s0", "s1"), "not_above_its_group")
    assert decided(same + mixed + alone) == expected
    assert decided(same, RejectionSampling(above_group=False)) == {"s0": "success", "s1": "success"}


def test_a_groups_mean_covers_all_its_scored_members() -> None:
    group = [
        attempt("best", group_id="g", total=1.0),
        attempt("good", group_id="g", total=0.9),
        attempt("too long", group_id="g", total=0.2, form=form(longest=10**6)),
        attempt("no start", group_id="g", total=0.0, defects=(Defect.NO_START,)),
        attempt("unscored", group_id="g", total=None),
        attempt("measured", group_id="g", total=-50.0, purpose=Purpose.EVALUATE),
        attempt("frozen", group_id="g", total=-50.0, role=Role.FROZEN),
    ]
    means = with_group_means(group)
    assert [each.group_mean for each in means] == pytest.approx([0.525] * 7)
    left = RejectionSampling(per_task=9).select(means[:2])
    assert [each.trajectory_id for each, _ in left.kept] == ["best", "good"]


@pytest.mark.parametrize("maximum", [-1.0, 0.0, None])
def test_without_a_largest_reward_above_0_the_reward_itself_counts(maximum: float | None) -> None:
    attempts = [attempt("good", task="t", total=-1.0, maximum=maximum), attempt("bad", total=-5.0, maximum=maximum)]
    assert decided(attempts, RejectionSampling(min_reward=-2.0)) == {"good": "success", "bad": "below_reward"}


def test_of_a_task_the_best_and_of_equals_the_shortest_is_kept() -> None:
    attempts = [
        attempt("good", task="t", total=0.9),
        attempt("long", task="t", form=form(sampled_tokens=30, sampled_sha256="x")),
        attempt("short", task="t", form=form(sampled_tokens=20, sampled_sha256="y")),
    ]
    assert decided(attempts) == {"good": "another_of_its_task", "long": "another_of_its_task", "short": "success"}


def test_the_same_tokens_are_imitated_once() -> None:
    twins = [attempt(name, task="t", form=form(sampled_sha256="same")) for name in ("a", "b")]
    assert decided(twins, RejectionSampling(per_task=5)) == {"a": "success", "b": "repeated"}


rewards = st.tuples(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.integers(0, 5), st.integers(0, 5), st.integers(0, 3))
attempt_lists = st.lists(rewards, max_size=40).map(
    lambda drawn: [
        attempt(f"a{i}", total=total, task=f"t{task}", group_id=f"g{group}", form=form(sampled_sha256=str(what)))
        for i, (total, task, group, what) in enumerate(drawn)
    ]
)


@given(attempt_lists, st.integers(1, 3))
def test_everything_is_kept_or_excluded_once(attempts: list[ScoredTrajectory], per_task: int) -> None:
    selection = RejectionSampling(per_task=per_task).select(attempts)
    names = [each.trajectory_id for each, _ in (*selection.kept, *selection.excluded)]
    assert sorted(names) == sorted(each.trajectory_id for each in attempts)
    assert all(each.total is not None and each.total >= 0.8 for each, _ in selection.kept)
    assert max(Counter(each.task_id for each, _ in selection.kept).values(), default=0) <= per_task
    assert RejectionSampling(per_task=per_task).select(attempts[::-1]) == selection


def test_an_attempt_without_a_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="a has no reward"):
        RejectionSampling().select([attempt("a", total=None)])
