"""Search finds what a good query names, omits excluded chunks, and is deterministic."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.search.corpus import Chunk, Corpus, Triple, draw_corpus
from headrace.agents.search.retrieval import RRF_K, Index, reciprocal_rank_fusion

CORPUS = draw_corpus(Random(1))
INDEX = Index(CORPUS)


def test_a_query_of_subject_and_relation_finds_the_statement_among_the_first_three() -> None:
    found = [
        chunk for chunk in CORPUS.chunks if chunk in INDEX.search((chunk.triple.subject, chunk.triple.relation))[:3]
    ]
    assert len(found) > 0.95 * len(CORPUS.chunks)


def test_a_vague_query_often_misses() -> None:
    missed = [chunk for chunk in CORPUS.chunks if chunk not in INDEX.search((chunk.triple.relation,))[:3]]
    assert len(missed) > len(CORPUS.chunks) / 4


def test_excluded_chunks_are_left_out_and_the_rest_keeps_its_order() -> None:
    query = ("employer",)
    found = INDEX.search(query)
    gone = {found[0].chunk_id, found[2].chunk_id}
    assert INDEX.search(query, exclude=gone) == [chunk for chunk in found if chunk.chunk_id not in gone]


def test_a_query_that_matches_nothing_finds_nothing() -> None:
    index = Index(Corpus((Chunk("c00", "d00", Triple("ada", "home", "lima")),)))
    assert index.search(("ebro",)) == []


def test_the_rarer_word_weighs_more_in_bm25() -> None:
    facts = (("ada", "home", "lima"), ("ada", "hobby", "chess"), ("ada", "friend", "hugo"), ("rosa", "river", "ebro"))
    chunks = tuple(Chunk(f"c{n:02d}", "d00", Triple(*fact)) for n, fact in enumerate(facts))
    assert Index(Corpus(chunks)).search(("ada", "ebro"))[0].triple.value == "ebro"


def test_grep_finds_every_chunk_with_the_word() -> None:
    name = CORPUS.chunks[0].triple.subject
    assert [chunk for chunk in CORPUS.chunks if name in chunk.triple.words] == INDEX.grep(name)


def test_fusion_sums_reciprocal_ranks() -> None:
    # a: 1/61 + 1/63, b: 1/62 + 1/61, c: 1/63 + 1/62: worked by hand.
    assert reciprocal_rank_fusion([["a", "b", "c"], ["b", "c", "a"]]) == ["b", "a", "c"]
    assert RRF_K == 60


@given(st.lists(st.permutations(list("abcde")), min_size=1, max_size=3))
def test_fusion_keeps_every_id_once(rankings: list[list[str]]) -> None:
    assert sorted(reciprocal_rank_fusion(rankings)) == list("abcde")


@pytest.mark.parametrize("seed", range(3))
def test_search_is_deterministic(seed: int) -> None:
    corpus = draw_corpus(Random(seed))
    assert Index(corpus).search(("boss", "of")) == Index(corpus).search(("boss", "of"))
