"""Every sequence of tokens is a call or malformed; nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.actions import Action, Malformed, parse


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("read billing.py <end>", {"path": "billing.py"}),
        ("grep rate <end>", {"pattern": "rate"}),
        (
            "edit billing.py fee : return x + 7 <end>",
            {"path": "billing.py", "function": "fee", "body": "return x + 7"},
        ),
        ("edit tests.py fee : exit ( 0 ) <end>", {"path": "tests.py", "function": "fee", "body": "exit ( 0 )"}),
        ("todo_add fee toll <end>", {"items": ["fee", "toll"]}),
        ("todo_done fee <end>", {"items": ["fee"]}),
        ("run_tests <end>", {}),
        ("submit <end>", {}),
    ],
)
def test_a_call_is_parsed(text: str, arguments: dict[str, object]) -> None:
    action = parse(words.encode(text))
    assert isinstance(action, Action)
    assert action.tool == text.split()[0]
    assert action.named_arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "read <end>",
        "read fee <end>",
        "grep return <end>",
        "edit billing.py fee return x <end>",
        "edit billing.py fee : <end>",
        "edit billing.py fee : return <nl> x <end>",
        "edit billing.py",
        "todo_add <end>",
        "todo_add rate <end>",
        "todo_done fee toll <end>",
        "submit fee <end>",
        "passed <end>",
        "<end>",
    ],
)
def test_what_is_no_call_is_malformed_with_a_reason(text: str) -> None:
    action = parse(words.encode(text))
    assert isinstance(action, Malformed)
    assert action.reason


@given(st.lists(st.integers(-3, len(words.VOCABULARY) + 3), max_size=30))
def test_no_tokens_raise(token_ids: list[int]) -> None:
    assert parse(token_ids).tool in (*words.TOOLS, "unknown")
