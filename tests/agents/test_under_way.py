"""What is under way, by groups: the rule, and that telling twice changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.under_way import UnderWay, settled_by
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Budget, Step, TrainedGroup

SOMEWHERE = Reference(partition=0, offset=0)


def granting(groups: int) -> Budget:
    return Budget(run="r", version=1, groups_per_step=4, max_steps_ahead=1, max_groups=groups)


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


def test_a_step_settles_its_members_and_a_rejection_its_trajectory() -> None:
    assert settled_by(step_of("a", "b")) == ["a", "b"]
    assert settled_by(rejection_of("c")) == ["c"]
    assert settled_by(Alert(run="r", source="s", kind="k", message="m")) == []


def test_a_group_is_under_way_until_the_last_of_it_is_settled() -> None:
    under_way = UnderWay(1)
    under_way.begun(["a", "b"])
    assert not under_way.has_room
    assert not under_way.settled("b")
    assert not under_way.settled("b"), "the same fate again"
    assert not under_way.has_room
    assert under_way.settled("a")
    assert under_way.has_room


@pytest.mark.parametrize(
    ("limit", "share", "groups", "allowed"),
    [
        (9, 1.0, None, 9),  # no trainer ever granted anything: agents go on
        (9, 1.0, 8, 8),
        (9, 1.0, 80, 9),
        (9, 0.5, 8, 4),
        (9, 0.5, 9, 4),
        (9, 0.1, 8, 1),  # each sampler may do something
        (9, 0.1, 0, 0),  # the last step is trained
    ],
)
def test_the_smaller_of_its_own_limit_and_its_share_of_the_budget_holds(
    limit: int, share: float, groups: int | None, allowed: int
) -> None:
    under_way = UnderWay(limit, share)
    if groups is not None:
        under_way.granted(granting(groups))
    assert under_way.allowed == allowed


def test_a_budget_that_shrinks_takes_nothing_back_and_one_that_grows_makes_room() -> None:
    under_way = UnderWay(9)
    under_way.begun(["a"])
    under_way.begun(["b"])
    assert under_way.granted(granting(1))
    assert (len(under_way), under_way.has_room) == (2, False)
    assert not under_way.granted(granting(1))
    assert under_way.granted(granting(3))
    assert under_way.has_room


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_it_counts_groups_and_not_tellings(history: list[tuple[bool, int]]) -> None:
    under_way, expected = UnderWay(100), dict[str, set[str]]()
    for begins, number in history:
        if begins and number not in expected:
            expected[str(number)] = {f"{number}a", f"{number}b"}
            under_way.begun([f"{number}a", f"{number}b"])
        elif not begins:
            for name in (f"{number}a", f"{number}b")[: 1 + number % 2]:
                under_way.settled(name)
                expected.get(str(number), set()).discard(name)
        assert len(under_way) == sum(bool(left) for left in expected.values())


@pytest.mark.parametrize(("limit", "share"), [(0, 1.0), (1, 0.0), (1, 1.5)])
def test_settings_that_cannot_work_are_refused(limit: int, share: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        UnderWay(limit, share)
