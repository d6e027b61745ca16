"""The values between the engine's parser and the framers."""

import pytest

from headrace.agents.gateway.answer import AnswerOptions, FinishReason, finish_reason_of


@pytest.mark.parametrize(
    ("engine", "has_calls", "is_tool_named", "reason"),
    [
        ("stop", False, False, FinishReason.STOP),
        ("stop", True, False, FinishReason.TOOL_CALLS),
        ("stop", True, True, FinishReason.STOP),
        ("length", True, False, FinishReason.LENGTH),
        ("abort", False, False, FinishReason.ABORT),
        ("repetition", False, False, FinishReason.ABORT),
    ],
)
def test_the_engines_reason(engine: str, has_calls: bool, is_tool_named: bool, reason: FinishReason) -> None:
    assert finish_reason_of(engine, has_calls=has_calls, is_tool_named=is_tool_named) is reason


@pytest.mark.parametrize("engine", ["error", "", "new"])
def test_a_reason_that_is_a_failure_or_unknown_is_refused(engine: str) -> None:
    with pytest.raises(ValueError, match="report a failure to the client"):
        finish_reason_of(engine, has_calls=False)


def test_an_answer_has_a_choice() -> None:
    with pytest.raises(ValueError, match="an answer of 0 choices"):
        AnswerOptions(choices=0)
