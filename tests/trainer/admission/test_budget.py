from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.admission.budget import budget_at
from headrace.trainer.config import TrainerConfig

CONFIG = TrainerConfig("b:1", "run", Path("model"), Path("checkpoints"), "file:///s", groups_per_step=16)


@pytest.mark.parametrize(
    ("settings", "version", "ahead", "groups"),
    [
        ({"max_staleness": 4}, 0, 4, 80),
        ({"max_staleness": 4}, 700, 4, 80),
        ({"max_staleness": 4, "max_steps_ahead": 2}, 5, 2, 48),
        ({"max_staleness": 4, "max_steps_ahead": 0}, 5, 0, 16),
        ({"max_staleness": 0}, 5, 0, 16),
        ({"steps": 10}, 9, 4, 80),
        ({"steps": 10}, 10, 4, 0),
    ],
)
def test_the_budget_is_the_next_step_and_as_many_more_as_may_be_ahead(settings, version, ahead, groups):
    budget = budget_at(version, replace(CONFIG, **settings).budget)
    assert (budget.version, budget.groups_per_step, budget.max_steps_ahead, budget.max_groups) == (
        version,
        16,
        ahead,
        groups,
    )


@given(st.integers(0, 50), st.integers(1, 20), st.integers(0, 8), st.integers(0, 200))
def test_it_equals_areals_rule_for_the_next_group_to_be_begun(version, per_step, ahead, in_flight):
    budget = budget_at(version, replace(CONFIG, groups_per_step=per_step, max_steps_ahead=ahead).budget)
    number = version * per_step + in_flight + 1  # trained ones, those in flight, and the next
    assert ((number - 1) // per_step <= version + ahead) == (in_flight + 1 <= budget.max_groups)
