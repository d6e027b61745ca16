"""Custom tools and namespaces of the Responses API."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.response_tools import (
    ClientName,
    CustomInput,
    ResponseTools,
    custom_arguments,
    custom_input,
    without_grammars,
)

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
TOOLS: list[Any] = [
    {"type": "function", "name": "exec", "parameters": {"type": "object"}},
    {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": GRAMMAR},
    {
        "type": "namespace",
        "name": "mcp",
        "description": "",
        "tools": [{"type": "function", "name": "search", "parameters": {}}],
    },
    {"type": "web_search"},
]


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(places)]


@given(st.text(), st.lists(st.integers(0, 80)), st.booleans(), st.sampled_from([None, 0, 1]))
def test_the_input_streams_as_it_is_written(text: str, cuts: list[int], ascii_only: bool, indent: int | None) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only, indent=indent)
    reader, read = CustomInput(), ""
    for piece in pieces_of(arguments, cuts):
        read += reader.feed(piece)
        assert text.startswith(read)
    assert read == text
    assert reader.end() == ""
    assert custom_input(custom_arguments(text)) == text


@given(st.text(), st.lists(st.integers(0, 60)))
def test_however_arguments_are_cut_the_input_is_the_same(arguments: str, cuts: list[int]) -> None:
    for text in (arguments, '{"input": "' + arguments, '{"input": "' + arguments.replace("a", "\\")):
        reader = CustomInput()
        assert "".join((*map(reader.feed, pieces_of(text, cuts)), reader.end())) == custom_input(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("echo hello", "echo hello"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 3}', '{"input": 3}'),
        ('{"why": "so", "input": "x"}', "x"),
        ('{"input": "x", "why": "so"}', "x"),
        ('{"input": "two\nlines\t"}', "two\nlines\t"),
        ('{"input": "cut of', "cut of"),
        ('{"input": "cut \\u00', "cut "),
        ('{"input": "\\ud83d\\ude00 \\ud83d \\ude00"}', "\U0001f600 \ufffd \ufffd"),
        ("", ""),
    ],
)
def test_arguments_of_any_form_are_an_input(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


def test_the_client_s_names_are_found_by_those_of_the_model() -> None:
    tools = ResponseTools({"tools": TOOLS})
    assert tools.named("mcp__search") == ClientName("search", "mcp")
    assert tools.named("apply_patch") == ClientName("apply_patch", is_custom=True)
    for name in ("exec", "search", "unknown"):
        assert tools.named(name) == ClientName(name)


def test_grammars_are_left_out_and_all_else_is_kept() -> None:
    assert without_grammars(TOOLS) == [TOOLS[0], {k: v for k, v in TOOLS[1].items() if k != "format"}, *TOOLS[2:]]
    for tools in (None, "x", [], [1], [{"type": "custom", "name": "x", "format": {"type": "text"}}]):
        assert without_grammars(tools) is tools


@pytest.mark.parametrize(
    "tools", [None, "x", [1], [{"type": "custom"}], [{"type": "namespace", "name": "x", "tools": 1}]]
)
def test_tools_of_another_form_have_no_other_name(tools: Any) -> None:
    assert ResponseTools({"tools": tools}).named("x") == ClientName("x")
