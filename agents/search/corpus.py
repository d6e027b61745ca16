"""A small world, drawn afresh for every task: sixteen pages of four facts each, cut into chunks of one fact.

    c17 d03 employer of ada is acme

A page is about one entity and has one fact per relation of the entity's kind, so (subject, relation) names at most one
chunk of a corpus. Values that have a page of their own are what questions with several hops walk through.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.agents.search import vocabulary as words

PAGES: tuple[tuple[Sequence[str], int], ...] = ((words.PEOPLE, 7), (words.COMPANIES, 5), (words.CITIES, 4))
"""Names of each kind, and how many of them get a page."""

RELATIONS: Mapping[Sequence[str], tuple[tuple[str, Sequence[str]], ...]] = {
    words.PEOPLE: (
        ("employer", words.COMPANIES),
        ("friend", words.PEOPLE),
        ("home", words.CITIES),
        ("hobby", words.HOBBIES),
    ),
    words.COMPANIES: (
        ("seat", words.CITIES),
        ("boss", words.PEOPLE),
        ("product", words.PRODUCTS),
        ("rival", words.COMPANIES),
    ),
    words.CITIES: (
        ("country", words.COUNTRIES),
        ("river", words.RIVERS),
        ("mayor", words.PEOPLE),
        ("twin", words.CITIES),
    ),
}
"""Relations of each kind of entity, and the kind of their values."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What a chunk says."""

    subject: str
    relation: str
    value: str

    @property
    def words(self) -> tuple[str, ...]:
        """The sentence: ``employer of ada is acme``."""
        return (self.relation, "of", self.subject, "is", self.value)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A fact with its address: what tools return and prune."""

    chunk_id: str
    doc_id: str
    fact: Fact

    @property
    def words(self) -> tuple[str, ...]:
        """As shown to the model: ``c17 d03 employer of ada is acme``."""
        return (self.chunk_id, self.doc_id, *self.fact.words)


CHUNK_TOKENS = 7
"""Tokens of any chunk as shown to the model."""


@dataclass(frozen=True)
class Corpus:
    """The chunks of one world, by chunk id."""

    chunks: tuple[Chunk, ...]
    by_id: Mapping[str, Chunk] = field(init=False, repr=False, compare=False)
    by_question: Mapping[tuple[str, str], Chunk] = field(init=False, repr=False, compare=False)
    """The chunk that answers (subject, relation)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {chunk.chunk_id: chunk for chunk in self.chunks})
        object.__setattr__(
            self, "by_question", {(chunk.fact.subject, chunk.fact.relation): chunk for chunk in self.chunks}
        )
        if len(self.by_id) != len(self.chunks) or len(self.by_question) != len(self.chunks):
            raise ValueError("a corpus needs distinct chunk ids and at most one chunk per subject and relation")

    def document(self, doc_id: str) -> tuple[Chunk, ...]:
        """The chunks of a document in order; empty for one that does not exist."""
        return tuple(chunk for chunk in self.chunks if chunk.doc_id == doc_id)


def draw_corpus(rng: Random) -> Corpus:
    """A fresh world of 64 chunks in 16 documents. Ids are shuffled: they say nothing about content."""
    pages = [(names, name) for names, count in PAGES for name in rng.sample(names, count)]
    with_page = {name for _, name in pages}
    chunk_ids = rng.sample(words.CHUNKS, len(words.CHUNKS))
    doc_ids = rng.sample(words.DOCUMENTS, len(words.DOCUMENTS))
    chunks: list[Chunk] = []
    for doc_id, (names, subject) in zip(doc_ids, pages, strict=True):
        for relation, values in RELATIONS[names]:
            # Values are taken from entities with a page where there are some, so that chains can go on.
            linked = [value for value in values if value in with_page and value != subject]
            fact = Fact(subject, relation, rng.choice(linked or list(values)))
            chunks.append(Chunk(chunk_ids[len(chunks)], doc_id, fact))
    return Corpus(tuple(sorted(chunks, key=lambda chunk: chunk.chunk_id)))
