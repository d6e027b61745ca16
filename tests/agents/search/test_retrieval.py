"""Search finds what a good query names, omits excluded chunks, and is deterministic."""

from random import Random

from headrace.agents.search.corpus import Chunk, Corpus, Triple, draw_corpus
from headrace.agents.search.retrieval import Index

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
