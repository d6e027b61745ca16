"""All sequences of sampled tokens have a defined meaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.search import vocabulary as words
from headrace.agents.search.actions import Action, Malformed, parse


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("search_corpus ada employer <end>", {"query": "ada employer"}),
        ("grep_corpus ada <end>", {"pattern": "ada"}),
        ("read_document d03 <end>", {"doc_id": "d03"}),
        ("prune_chunks c01 c02 <end>", {"chunk_ids": ["c01", "c02"]}),
        ("answer <end>", {"chunk_ids": []}),
    ],
)
def test_a_well_formed_call_is_parsed(text: str, arguments: dict[str, object]) -> None:
    action = parse(words.encode(text))
    assert isinstance(action, Action)
    assert (action.tool, action.named_arguments) == (text.split()[0], arguments)


@pytest.mark.parametrize(
    ("text", "tool", "reason"),
    [
        ("search_corpus ada", "search_corpus", "does not end"),
        ("search_corpus <end>", "search_corpus", "not valid arguments"),
        ("search_corpus c01 <end>", "search_corpus", "not valid arguments"),
        ("search_corpus ada ada ada ada ada ada ada <end>", "search_corpus", "not valid arguments"),
        ("grep_corpus ada home <end>", "grep_corpus", "not valid arguments"),
        ("read_document c01 <end>", "read_document", "not valid arguments"),
        ("prune_chunks <end>", "prune_chunks", "not valid arguments"),
        ("answer ada <end>", "answer", "not valid arguments"),
        ("ada <end>", "unknown", "is not a tool"),
        ("<end>", "unknown", "is not a tool"),
        ("", "unknown", "does not end"),
    ],
)
def test_a_malformed_call_is_labelled_with_its_reason(text: str, tool: str, reason: str) -> None:
    action = parse(words.encode(text))
    assert isinstance(action, Malformed)
    assert (action.tool, action.raw) == (tool, text)
    assert reason in action.reason


@given(st.lists(st.integers(-5, len(words.VOCABULARY) + 5), max_size=20))
def test_no_sampled_tokens_raise(token_ids: list[int]) -> None:
    assert isinstance(parse(token_ids), Action | Malformed)
