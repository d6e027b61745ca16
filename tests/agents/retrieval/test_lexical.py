"""Terms have the parts of identifiers, and BM25 finds the chunk that a query names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.agents.retrieval.lexical import Lexical, top_rows
from headrace.agents.retrieval.passages import Document, Passages, split_into_chunks
from headrace.agents.retrieval.terms import MAX_TERMS, terms_of
from tests.agents.retrieval.shelf import PASSAGES

LEXICAL = Lexical.of(PASSAGES)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("http.server.HTTPServer", ["http.server.httpserver", "http", "server", "http", "server"]),
        ("request_queue_size = 5", ["request_queue_size", "request", "queue", "size", "5"]),
        ("the file of a folder", ["file", "folder"]),
        ("utf8 Größe", ["utf8", "utf", "8", "größe", "gr", "öß", "e"]),
        ("", []),
    ],
)
def test_a_name_gives_itself_and_its_parts(text: str, terms: list[str]) -> None:
    assert terms_of(text) == terms


def test_the_terms_of_a_text_are_bounded() -> None:
    assert len(terms_of("a_b " * 100_000)) == MAX_TERMS


@pytest.mark.parametrize(
    ("query", "first"),
    [("copyfileobj length", "copy-1"), ("remove a folder", "tree-1"), ("request queue size", "tcp-1")],
)
def test_bm25_ranks_what_the_query_names_first(query: str, first: str) -> None:
    assert LEXICAL.rank(query, 5)[0] == first


def test_chunks_without_a_term_of_the_query_are_not_ranked() -> None:
    assert set(LEXICAL.rank("serve", 5)) == {"serve-1", "tcp-1"}
    assert LEXICAL.rank("astronomy", 5) == []
    assert LEXICAL.rank("", 5) == []


def test_at_most_so_many_chunks_are_ranked() -> None:
    assert len(LEXICAL.rank("file folder serve", 2)) == 2


def test_a_corpus_without_terms_finds_nothing() -> None:
    assert Lexical.of(Passages(())).rank("file", 5) == []
    assert Lexical.of(split_into_chunks([Document("d", "…", "!")])).rank("file", 5) == []


@given(
    arrays.arrays(np.float32, st.integers(0, 12), elements=st.sampled_from([0.0, 1.0, 2.0, 3.0])), st.integers(1, 15)
)
def test_top_rows_are_those_of_a_stable_sort(scores: np.ndarray, count: int) -> None:
    assert top_rows(scores, count) == sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:count]
