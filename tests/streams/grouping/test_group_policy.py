"""Policies from plain settings: the most specific name wins, and an error names its setting."""

import json
from typing import Any

import pytest

from headrace.streams.grouping.baselines import Baseline
from headrace.streams.grouping.group_policy import DEFAULT_POLICY, GroupBy, GroupPolicies, Incomplete, parse_policies
from headrace.streams.rewards.toggle import Toggle

SETTINGS = json.loads("""{
    "*": {"baseline": "leave_one_out", "incomplete": "shrink", "min_members": 3},
    "checkout": {"by": "cohort", "baseline": "running", "half_life": 500, "warmup": 50},
    "checkout@2": {"by": "cohort", "size": 32, "within_s": 60},
    "math": {"toggle": {"period": 20, "budgets": {"t1": 900}}}
}""")


def test_the_label_takes_precedence_over_the_name_and_the_name_over_the_default() -> None:
    policies = parse_policies(SETTINGS)
    assert (policies.of("checkout@2").size, policies.of("checkout@2").baseline) == (32, Baseline.MEAN)
    assert (policies.of("checkout@1").by, policies.of("checkout@1").half_life) == (GroupBy.COHORT, 500)
    assert (policies.of("search@1").incomplete, policies.of("search@1").min_members) == (Incomplete.SHRINK, 3)
    assert policies.of("math@7").toggle == Toggle(period=20, budgets={"t1": 900})
    assert GroupPolicies().of("search@1") is DEFAULT_POLICY


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"basline": "mean"}, "no field 'basline': the fields are by, size"),
        ({"baseline": "median"}, "'median'"),
        ({"size": "8"}, "size"),
        ({"size": 0}, "size must be 1 to 1024"),
        ({"size": 2000}, "size must be 1 to 1024"),
        ({"within_s": 0}, "within_s must be above 0"),
        ({"tolerance": -1}, "tolerance"),
        ({"min_members": 0}, "min_members"),
        ({"half_life": 0}, "half_life"),
        ({"warmup": 0}, "warmup"),
        ({"by": "cohort"}, "needs a size"),
        ({"by": "cohort", "baseline": "leave_one_out"}, "needs a size"),
        ({"by": "cohort", "baseline": "running", "size": 4}, "takes no size"),
        ({"baseline": "running"}, "needs by = 'cohort'"),
        ({"toggle": {"perod": 3}}, "'perod'"),
        ({"toggle": {"period": 0}}, "period is 0"),
        ("mean", "write the policy's fields"),
    ],
)
def test_an_error_names_its_setting(policy: Any, says: str) -> None:
    with pytest.raises(ValueError, match=r"workers\.group_policies\['shop'\]") as error:
        parse_policies({"shop": policy})
    assert says in str(error.value)
