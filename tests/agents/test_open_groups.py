"""The open groups of a sampler: the rule that limits them, and that repeated records change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.open_groups import OpenGroups, ZeroVariance, concluded_by, is_without_gradient
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Budget, Step, TrainedGroup

SOMEWHERE = Reference(partition=0, offset=0)


def granting(groups: int, version: int = 1) -> Budget:
    return Budget(run="r", version=version, groups_per_step=4, max_steps_ahead=1, max_groups=groups)


def step_of(*trajectory_ids: str) -> Step:
    group = TrainedGroup(
        group_id="g",
        group=SOMEWHERE,
        trajectory_ids=list(trajectory_ids),
        trajectories=[SOMEWHERE] * len(trajectory_ids),
    )
    return Step(run="r", step=1, version=1, groups=[group], config_sha256="", data_sha256="", metrics={})


def rejection_of(trajectory_id: str) -> Rejection:
    return Rejection(trajectory_id=trajectory_id, trajectory=SOMEWHERE, stage=Stage.GROUP, reason=Reason.ALL_FAIL)


def test_a_step_concludes_its_members_and_a_rejection_its_trajectory() -> None:
    assert concluded_by(step_of("a", "b")) == ["a", "b"]
    assert concluded_by(rejection_of("c")) == ["c"]
    assert concluded_by(Alert(run="r", source="s", kind="k", message="m")) == []


def test_a_group_is_open_until_its_last_trajectory_is_concluded() -> None:
    groups = OpenGroups(1)
    groups.begin(["a", "b"])
    assert not groups.has_room
    assert not groups.conclude("b")
    assert not groups.conclude("b"), "repeated"
    assert not groups.has_room
    assert groups.conclude("a")
    assert groups.has_room


@pytest.mark.parametrize(
    ("limit", "share", "budget", "allowed"),
    [
        (9, 1.0, None, 9),  # without a budget only the limit applies
        (9, 1.0, 8, 8),
        (9, 1.0, 80, 9),
        (9, 0.5, 8, 4),
        (9, 0.5, 9, 4),
        (9, 0.1, 8, 1),  # every sampler may have one group
        (9, 0.1, 0, 0),  # the last step is trained
    ],
)
def test_the_smaller_of_limit_and_share_of_the_budget_applies(
    limit: int, share: float, budget: int | None, allowed: int
) -> None:
    groups = OpenGroups(limit, share)
    if budget is not None:
        groups.grant(granting(budget))
    assert groups.allowed == allowed


def test_a_smaller_budget_closes_no_group_and_a_larger_one_makes_room() -> None:
    groups = OpenGroups(9)
    groups.begin(["a"])
    groups.begin(["b"])
    assert groups.grant(granting(1))
    assert (len(groups), groups.has_room) == (2, False)
    assert not groups.grant(granting(1))
    assert groups.grant(granting(3))
    assert groups.has_room


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_repeated_conclusions_do_not_change_the_count(history: list[tuple[bool, int]]) -> None:
    groups, expected = OpenGroups(100), dict[str, set[str]]()
    for begins, number in history:
        if begins and number not in expected:
            expected[str(number)] = {f"{number}a", f"{number}b"}
            groups.begin([f"{number}a", f"{number}b"])
        elif not begins:
            for name in (f"{number}a", f"{number}b")[: 1 + number % 2]:
                groups.conclude(name)
                expected.get(str(number), set()).discard(name)
        assert len(groups) == sum(bool(left) for left in expected.values())


@pytest.mark.parametrize(("limit", "share"), [(0, 1.0), (1, 0.0), (1, 1.5)])
def test_invalid_settings_are_refused(limit: int, share: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        OpenGroups(limit, share)


def with_eight_open(zero_variance: ZeroVariance, share: float = 1.0) -> OpenGroups:
    groups = OpenGroups(9, share, zero_variance)
    groups.grant(granting(8))
    for number in range(8):
        groups.begin([str(number)])
    return groups


def test_a_group_without_a_gradient_makes_room_at_once_if_it_is_refilled() -> None:
    groups = with_eight_open(ZeroVariance.REFILL)
    assert not groups.has_room
    assert groups.conclude("0", without_gradient=True)
    assert (groups.has_room, groups.dropped) == (True, 0)
    groups.begin(["another"])
    assert not groups.has_room, "more groups than the budget allows"


def test_a_dropped_group_keeps_its_place_until_the_next_version() -> None:
    groups = with_eight_open(ZeroVariance.DROP)
    groups.conclude("0", without_gradient=True)
    assert (groups.has_room, groups.dropped) == (False, 1)
    groups.conclude("1")  # trained, or rejected for another reason
    assert groups.has_room
    groups.begin(["another"])
    assert not groups.grant(granting(8)), "the same version again"
    assert groups.grant(granting(8, version=2))
    assert (groups.has_room, groups.dropped) == (True, 0)


@given(share=st.sampled_from([0.2, 0.25, 1 / 3, 0.5, 1.0]), decided=st.lists(st.booleans(), max_size=200))
def test_dropping_never_leaves_the_trainer_waiting_for_a_batch(share: float, decided: list[bool]) -> None:
    """Without room, the open groups of all samplers that share alike suffice for a step of four."""
    groups = OpenGroups(99, share, ZeroVariance.DROP)
    groups.grant(granting(8))
    begun = 0
    for is_equal in [False, *decided]:
        while groups.has_room:
            groups.begin([str(begun)])
            begun += 1
        assert len(groups) <= groups.allowed
        assert len(groups) / share >= min(4, groups.allowed / share)
        if is_equal:
            groups.conclude(str(begun - len(groups)), without_gradient=True)


def test_without_a_budget_nothing_is_held_back() -> None:
    groups = OpenGroups(1, zero_variance=ZeroVariance.DROP)
    groups.begin(["a"])
    groups.conclude("a", without_gradient=True)
    assert groups.has_room


def test_only_rejections_for_equal_rewards_are_without_a_gradient() -> None:
    rejection = rejection_of("a")
    assert is_without_gradient(rejection)
    assert not is_without_gradient(rejection.model_copy(update={"reason": Reason.STALE}))
    assert not is_without_gradient(step_of("a"))
