"""Grep is bounded in its pattern, its result and its time."""

import time

import pytest

from headrace.agents.retrieval.grep import MAX_CHUNKS, MAX_PATTERN, BadPattern, grep
from headrace.agents.retrieval.passages import Document, split_into_chunks
from tests.agents.retrieval.shelf import PASSAGES


def test_chunks_that_match_come_in_the_corpus_order() -> None:
    assert [chunk.chunk_id for chunk in grep(PASSAGES, r"shutil\.\w+\(src|rmtree\(")] == ["move-1", "tree-1"]
    assert [chunk.chunk_id for chunk in grep(PASSAGES, "^http")] == ["serve-1"]
    assert grep(PASSAGES, "HTTPSERVER") == []


def test_a_result_has_at_most_five_chunks() -> None:
    many = split_into_chunks(Document(f"d{number}", "t", "same") for number in range(9))
    assert [chunk.doc_id for chunk in grep(many, "same")] == ["d0", "d1", "d2", "d3", "d4"]
    assert MAX_CHUNKS == 5


@pytest.mark.parametrize(
    "pattern", ["", "(a", r"(a)\1", "(?=a)", "a" * (MAX_PATTERN + 1), "((a{1000}){1000}){1000}", "\ud800"]
)
def test_a_pattern_that_re2_does_not_take_is_named_in_the_error(pattern: str) -> None:
    with pytest.raises(BadPattern) as caught:
        grep(PASSAGES, pattern)
    assert str(caught.value)


def test_a_pattern_that_backtracks_exponentially_elsewhere_takes_linear_time_here() -> None:
    """With ``re``, each further character doubles the time of this pattern: 400 would never end."""

    def seconds(length: int) -> float:
        passages = split_into_chunks([Document("d", "t", "a" * length + "b")])
        began = time.perf_counter()
        assert grep(passages, "(a|aa)+$") == []
        return time.perf_counter() - began

    seconds(10)
    assert seconds(40_000) < 1_000 * max(seconds(400), 1e-4)
