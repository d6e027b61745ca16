"""Documents are cut between paragraphs into chunks of bounded size that together have every line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.retrieval.passages import (
    Chunk,
    Document,
    Passages,
    estimated_tokens,
    paragraphs,
    split_into_chunks,
    within,
)


def document(text: str, doc_id: str = "d1") -> Document:
    return Document(doc_id, "a title", text)


def chunk(number: int, text: str) -> Chunk:
    return Chunk(f"d1-{number}", "d1", "a title", text)


def test_a_short_document_is_one_chunk() -> None:
    passages = split_into_chunks([document("one\n\ntwo")])
    assert passages.chunks == (Chunk("d1-1", "d1", "a title", "one\n\ntwo"),)
    assert passages.by_document["d1"] == passages.chunks


def test_a_long_document_is_cut_between_paragraphs() -> None:
    passages = split_into_chunks([document("a b c\n\nd e f\n\ng h i")], words=6)
    assert [each.text for each in passages.chunks] == ["a b c\n\nd e f", "g h i"]
    assert [each.chunk_id for each in passages.chunks] == ["d1-1", "d1-2"]


def test_a_paragraph_that_is_too_long_is_cut_between_lines() -> None:
    assert [each.text for each in split_into_chunks([document("a b\nc d\ne f")], words=4).chunks] == ["a b\nc d", "e f"]


lines = st.text(alphabet="ab \n", max_size=200)


@given(lines, st.integers(1, 20))
def test_chunks_have_every_line_in_order_and_no_more_words_than_allowed(text: str, words: int) -> None:
    chunks = split_into_chunks([document(text)], words).chunks
    assert " ".join(each.text for each in chunks).split() == text.split()
    longest = max((len(line.split()) for line in text.splitlines()), default=0)
    assert all(len(each.text.split()) <= max(words, longest) for each in chunks)


def test_two_documents_with_the_same_id_are_an_error() -> None:
    with pytest.raises(ValueError, match="distinct"):
        split_into_chunks([document("one"), document("two")])


def test_only_whole_chunks_that_fit_the_budget_are_kept_in_their_order() -> None:
    chunks = [chunk(number, "x" * 10) for number in range(3)]
    one = estimated_tokens(chunks[0].shown)
    assert within(chunks, 2 * one, estimated_tokens) == chunks[:2]
    assert within(chunks, one - 1, estimated_tokens) == []
    assert within([chunk(0, "x" * 1_000), chunks[1]], 2 * one, estimated_tokens) == []


def test_a_chunk_is_shown_with_its_id_and_title() -> None:
    assert chunk(1, "text").shown == "[d1-1] a title\ntext"


def test_paragraphs_end_at_blank_lines() -> None:
    assert paragraphs("\n a\nb\n \n\nc\n") == [" a\nb", "c"]
    assert paragraphs(" \n") == []
    assert Passages(()).by_id == {}
