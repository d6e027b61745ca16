"""Corpora are random, complete and unambiguous."""

from collections import Counter
from random import Random

import pytest

from headrace.agents.search import vocabulary as words
from headrace.agents.search.corpus import CHUNK_TOKENS, Chunk, Corpus, Triple, draw_corpus


def test_a_corpus_is_a_function_of_its_seed() -> None:
    assert draw_corpus(Random(1)) == draw_corpus(Random(1))
    assert draw_corpus(Random(1)) != draw_corpus(Random(2))


def test_a_corpus_has_sixteen_pages_of_four_chunks_in_the_vocabulary() -> None:
    corpus = draw_corpus(Random(3))
    assert len(corpus.chunks) == 64
    assert set(Counter(chunk.doc_id for chunk in corpus.chunks).values()) == {4}
    for chunk in corpus.chunks:
        assert len(words.encode_words(chunk.words)) == CHUNK_TOKENS


def test_a_page_is_about_one_entity() -> None:
    corpus = draw_corpus(Random(4))
    for doc_id in {chunk.doc_id for chunk in corpus.chunks}:
        assert len({chunk.triple.subject for chunk in corpus.document(doc_id)}) == 1


def test_no_statement_relates_an_entity_to_itself() -> None:
    for seed in range(20):
        assert all(chunk.triple.subject != chunk.triple.value for chunk in draw_corpus(Random(seed)).chunks)


def test_chunk_ids_are_independent_of_the_content() -> None:
    relation_of_c00 = {draw_corpus(Random(seed)).by_id["c00"].triple.relation for seed in range(40)}
    assert len(relation_of_c00) > 6


def test_two_chunks_that_answer_the_same_question_are_refused() -> None:
    first = Chunk("c00", "d00", Triple("ada", "home", "lima"))
    second = Chunk("c01", "d00", Triple("ada", "home", "jena"))
    with pytest.raises(ValueError, match="at most one chunk"):
        Corpus((first, second))


def test_an_unknown_document_is_empty() -> None:
    assert draw_corpus(Random(1)).document("d99") == ()
