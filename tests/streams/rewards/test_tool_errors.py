"""Only failures that a better policy would have avoided are penalised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import ToolErrorClass, ToolStatus
from headrace.schemas.records.trajectory import ToolUse, Trajectory, Turn
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.rewards.tool_errors import OWN_FAULT, tool_error_penalty
from tests.streams.attempts import attempt

SPEC = RewardSpec("careful", 1, (tool_error_penalty(weight=-0.5, worst=4),))


def failing(*classes: ToolErrorClass | None) -> Trajectory:
    uses = [ToolUse(call_id="c", tool="x", status=ToolStatus.ERROR, error_class=kind) for kind in classes]
    return attempt("t", turns=[Turn(sampled_tokens=1, tools=uses)])


@pytest.mark.parametrize("kind", [*ToolErrorClass, None])
def test_environment_and_framework_failures_cost_nothing(kind: ToolErrorClass | None) -> None:
    assert SPEC.score(failing(kind)).total == (-0.125 if kind in OWN_FAULT else 0)
    assert {"invalid_arguments", "refused"} == OWN_FAULT


@given(st.lists(st.sampled_from(list(ToolErrorClass)), max_size=12), st.sampled_from(list(ToolErrorClass)))
def test_one_more_failure_never_scores_more_and_the_penalty_is_bounded(
    classes: list[ToolErrorClass], another: ToolErrorClass
) -> None:
    before, after = SPEC.score(failing(*classes)).total, SPEC.score(failing(*classes, another)).total
    assert before is not None
    assert after is not None
    assert -0.5 <= after <= before <= 0


def test_calls_that_work_do_not_dilute_it() -> None:
    refused = failing(ToolErrorClass.REFUSED)
    fine = [Turn(tools=[ToolUse(call_id="c", tool="x", status=ToolStatus.OK)])] * 20
    assert SPEC.score(refused.model_copy(update={"turns": [*refused.turns, *fine]})).total == SPEC.score(refused).total


def test_a_limit_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="worst is 0"):
        tool_error_penalty(weight=-1.0, worst=0)
