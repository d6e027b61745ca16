"""What a demo reads of its run, and when it stops because nothing more can be learnt."""

import pytest

from headrace.deploy.demo.circle import DemoPlan, exhausted
from headrace.deploy.demo.watch import RunRecords
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step


def rejection(group: str, reason: Reason = Reason.ALL_FAIL, trajectory: str = "t") -> Rejection:
    place = Reference(partition=0, offset=0)
    return Rejection(trajectory_id=trajectory, trajectory=place, stage=Stage.GROUP, reason=reason, group_id=group)


def without_variance(count: int) -> RunRecords:
    records = RunRecords()
    for number in range(count):
        for member in range(8):
            records.add(rejection(f"g{number}", trajectory=f"{number}-{member}"))
    return records


def test_a_run_is_exhausted_after_sixteen_steps_worth_of_groups_without_variance() -> None:
    plan = DemoPlan(groups_per_step=4)
    assert not exhausted(without_variance(63), plan)
    assert exhausted(without_variance(64), plan)


def test_a_step_starts_the_count_again_and_a_step_read_twice_does_not() -> None:
    records = without_variance(3)
    step = Step(run="r", step=1, version=1, groups=[], config_sha256="", data_sha256="", metrics={})
    records.add(step)
    assert not records.zero_variance
    records.add(rejection("later"))
    records.add(step)
    assert records.zero_variance == {"later"}


@pytest.mark.parametrize("reason", sorted(set(Reason)))
def test_only_groups_without_variance_are_counted(reason: Reason) -> None:
    records = RunRecords()
    records.add(rejection("g", reason))
    assert bool(records.zero_variance) is reason.startswith("zero_variance")
