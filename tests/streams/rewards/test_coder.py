"""The coder's reward: the verdict, minus what was left undone or done badly; a length cost at equal outcomes."""

import pytest

from headrace.schemas.events import ToolErrorClass, ToolStatus
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, ToolUse, Trajectory, Turn
from headrace.streams.rewards.coder import CODER, CODER_SHORT, coder, open_todos
from tests.streams.attempts import attempt as recorded


def use(tool: str, items: object = None, error: ToolErrorClass | None = None) -> ToolUse:
    status = ToolStatus.ERROR if error else ToolStatus.OK
    return ToolUse(call_id="c", tool=tool, arguments={"items": items}, status=status, error_class=error)


def attempt(*uses: ToolUse, outcome: float | None = 1.0, summaries: int = 0) -> Trajectory:
    nowhere = Reference(partition=0, offset=0)
    turns = [Turn(sampled_tokens=5, tools=[each]) for each in uses]
    turns += [Turn(sampled_tokens=9, summarized=True)] * summaries
    return Trajectory(
        trajectory_id="t",
        started=None,
        turns=turns,
        outcome=outcome,
        first=nowhere,
        last=nowhere,
        started_ms=0,
        ended_ms=0,
    )


def test_the_verdict_alone_is_the_reward_of_a_tidy_attempt() -> None:
    assert CODER.score(attempt(outcome=0.5)).total == 0.5


def test_without_a_verdict_there_is_no_reward() -> None:
    assert CODER.score(attempt(outcome=None)).unscored == "no_outcome"


def test_an_attempt_that_the_gateway_recorded_pays_for_its_length_and_for_nothing_else() -> None:
    """The deletion harness has other arguments of the to-do list, and the gateway knows no causes of failed calls."""
    todo = ToolUse(call_id="c", tool="todo_add", arguments={"item": "a"}, status=ToolStatus.OK)
    failed = ToolUse(call_id="d", tool="edit", arguments={}, status=ToolStatus.ERROR)
    long = recorded("t", turns=[Turn(sampled_tokens=4_000, tools=[todo, failed])] * 3)
    own = coder(version=1, name="deletion", length_weight=0.00005)
    components = own.score(long).components
    assert (components["unfinished_todos"].value, components["tool_errors"].value) == (0.0, 0.0)
    assert own.score(long).total == pytest.approx(1.0 - 0.00005 * components["length_cost"].value)
    assert components["length_cost"].value > 0


def test_open_to_dos_cost_their_share() -> None:
    left = attempt(use("todo_add", ["a", "b"]), use("todo_done", ["a"]))
    assert open_todos(left) == (1, 2)
    assert CODER.score(left).total == pytest.approx(0.95)


def test_a_to_do_that_is_added_again_is_open_again() -> None:
    assert open_todos(attempt(use("todo_add", ["a"]), use("todo_done", ["a"]), use("todo_add", ["a"]))) == (1, 1)


@pytest.mark.parametrize("items", [None, "a", [1, {}], {"a": 1}])
def test_arguments_of_another_shape_are_no_to_dos(items: object) -> None:
    assert open_todos(attempt(use("todo_add", items))) == (0, 0)


def test_finishing_what_is_not_on_the_list_changes_nothing() -> None:
    assert open_todos(attempt(use("todo_done", ["a"]))) == (0, 0)


def test_failed_calls_cost_also_when_the_attempt_fails() -> None:
    broken = use("edit", error=ToolErrorClass.INVALID_ARGUMENTS)
    assert CODER.score(attempt(broken, broken, outcome=0.0)).total == pytest.approx(-0.02)


def test_the_length_of_the_chain_is_recorded_and_costs_nothing() -> None:
    score = CODER.score(attempt(summaries=2))
    assert score.components["summaries"].value == 2
    assert score.components["summary_tokens"].value == 18
    assert score.total == 1.0


def read_by(calls: int) -> Trajectory:
    """Return an attempt with that many calls, each of 5 sampled tokens and 10 tokens read."""
    one = [0] * 10 + [1] * 5
    tokens = Segment(token_ids=[0] * 15 * calls, loss_mask=one * calls, logprobs=None, version_spans=[])
    return attempt(*[use("read")] * calls).model_copy(update={"segments": [tokens]})


def test_a_longer_attempt_costs_more_at_an_equal_outcome_and_ever_less_per_call() -> None:
    totals = [CODER_SHORT.score(read_by(calls)).total for calls in (1, 2, 3)]
    assert None not in totals
    first, second, third = (total or 0.0 for total in totals)
    assert 1.0 > first > second > third
    assert first - second > second - third
    assert CODER.score(read_by(3)).total == 1.0


def test_a_cost_of_tokens_that_were_not_recorded_is_no_number() -> None:
    assert CODER_SHORT.score(attempt(use("read"))).unscored == "no_token_counts"


def test_weights_are_penalties() -> None:
    spec = coder(version=9, todo_weight=0.5, tool_error_weight=0.0)
    assert spec.score(attempt(use("todo_add", ["a"]))).total == pytest.approx(0.5)


def test_an_attempt_of_any_length_is_scored() -> None:
    endless = read_by(3).model_copy(update={"turns": [Turn(sampled_tokens=10**6, tools=[use("read")])] * 2000})
    total = CODER_SHORT.score(endless).total
    assert total is not None
    assert CODER_SHORT.minimum is not None
    assert total >= CODER_SHORT.minimum
