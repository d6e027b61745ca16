"""A small random corpus per task: sixteen pages of four triples each, split into chunks of one triple.

    c17 d03 employer of ada is acme

A page is about one entity and has one triple per relation of the entity's kind, so (subject, relation) identifies at
most one chunk of a corpus. Questions with several hops go through values that have a page of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from headrace.agents.search import vocabulary as words

PAGES: tuple[tuple[Sequence[str], int], ...] = ((words.PEOPLE, 7), (words.COMPANIES, 5), (words.CITIES, 4))
"""Names of each kind of entity, and how many of them have a page."""

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
class Triple:
    """The content of a chunk."""

    subject: str
    relation: str
    value: str

    @property
    def words(self) -> tuple[str, ...]:
        """The sentence: ``employer of ada is acme``."""
        return (self.relation, "of", self.subject, "is", self.value)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A triple with its ids: the unit that tools return and prune."""

    chunk_id: str
    doc_id: str
    triple: Triple

    @property
    def words(self) -> tuple[str, ...]:
        """The text that the model sees: ``c17 d03 employer of ada is acme``."""
        return (self.chunk_id, self.doc_id, *self.triple.words)


CHUNK_TOKENS = 7
"""Number of tokens of any chunk as shown to the model."""


@dataclass(frozen=True)
class Corpus:
    """The chunks of one corpus, by chunk id."""

    chunks: tuple[Chunk, ...]
    by_id: Mapping[str, Chunk] = field(init=False, repr=False, compare=False)
    by_question: Mapping[tuple[str, str], Chunk] = field(init=False, repr=False, compare=False)
    """The chunk that answers (subject, relation)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {chunk.chunk_id: chunk for chunk in self.chunks})
        object.__setattr__(
            self, "by_question", {(chunk.triple.subject, chunk.triple.relation): chunk for chunk in self.chunks}
        )
        if len(self.by_id) != len(self.chunks) or len(self.by_question) != len(self.chunks):
            raise ValueError("a corpus needs distinct chunk ids and at most one chunk per subject and relation")

    def document(self, doc_id: str) -> tuple[Chunk, ...]:
        """Return the chunks of a document in order; none if the document does not exist."""
        return tuple(chunk for chunk in self.chunks if chunk.doc_id == doc_id)


def draw_corpus(rng: Random) -> Corpus:
    """Draw a corpus of 64 chunks in 16 documents. Ids are shuffled, so that they are independent of the content."""
    pages = [(names, name) for names, count in PAGES for name in rng.sample(names, count)]
    with_page = {name for _, name in pages}
    chunk_ids = rng.sample(words.CHUNKS, len(words.CHUNKS))
    doc_ids = rng.sample(words.DOCUMENTS, len(words.DOCUMENTS))
    chunks: list[Chunk] = []
    for doc_id, (names, subject) in zip(doc_ids, pages, strict=True):
        for relation, values in RELATIONS[names]:
            # Values are entities with a page, if there are any, so that chains can continue.
            linked = [value for value in values if value in with_page and value != subject]
            triple = Triple(subject, relation, rng.choice(linked or list(values)))
            chunks.append(Chunk(chunk_ids[len(chunks)], doc_id, triple))
    return Corpus(tuple(sorted(chunks, key=lambda chunk: chunk.chunk_id)))
