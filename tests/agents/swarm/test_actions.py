"""Every sequence of tokens is a turn, or malformed with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.actions import MAX_ASSIGNED, Answer, Assign, Create, Find, Malformed, Read, Turn, parse


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("find_page ada <end>", Find("ada")),
        ("read_page d03 employer <end>", Read("d03", "employer")),
        ("create_subagent alpha find employer <end>", Create((("alpha", ("find", "employer")),))),
        (
            "assign_task alpha ada assign_task bravo employer bruno <end>",
            Assign((("alpha", ("ada",)), ("bravo", ("employer", "bruno")))),
        ),
        ("answer c01 c00 c01 <end>", Answer(("c01", "c00"))),
        ("answer <end>", Answer(())),
    ],
)
def test_a_valid_turn_is_parsed(text: str, turn: Turn) -> None:
    assert parse(words.encode(text)) == turn


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("find_page ada", "does not end"),
        ("find_page <end>", "not valid arguments"),
        ("find_page ada bruno <end>", "not valid arguments"),
        ("find_page chess <end>", "not valid arguments"),
        ("read_page d03 <end>", "not valid arguments"),
        ("assign_task alpha <end>", "not valid arguments"),
        ("assign_task ada alpha <end>", "not valid arguments"),
        ("assign_task alpha ada assign_task <end>", "not valid arguments"),
        ("assign_task alpha ada create_subagent alpha find <end>", "not valid arguments"),
        ("create_subagent alpha find look help find look help find <end>", "not valid arguments"),
        ("nothing <end>", "is not a tool"),
        ("<end>", "is not a tool"),
    ],
)
def test_other_tokens_are_malformed_with_a_reason(text: str, reason: str) -> None:
    turn = parse(words.encode(text))
    assert isinstance(turn, Malformed)
    assert reason in turn.reason


def test_the_number_of_sub_tasks_of_a_turn_is_bounded() -> None:
    most = "assign_task alpha ada " * MAX_ASSIGNED
    assert isinstance(parse(words.encode(f"{most} <end>")), Assign)
    assert isinstance(parse(words.encode(f"{most} assign_task alpha ada <end>")), Malformed)


@given(st.lists(st.integers(-5, len(words.VOCABULARY) + 5), max_size=20))
def test_no_tokens_raise(sampled: list[int]) -> None:
    parse(sampled)
