"""The learnt reranker's examples: questions about a corpus whose evidence is known.

    ("What is the base class of http.server.HTTPServer?", {"d0963-1"})            a question of one hop
    ("copy data from file-like object fsrc to file-like object fdst", {"d0412-1"})  a first sentence and its document

Two kinds, because the first names what it looks for, and the second does not. Held-out questions, by the hash of their
words, are for measurements only.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.agents.retrieval.learnt_reranker import LearntReranker, features_of, fit_reranker
from headrace.agents.retrieval.passages import Document
from headrace.agents.retrieval.retriever import Retriever
from headrace.agents.search.tasks import Split, split_of
from headrace.agents.search.text.tasks import TextTask

MIN_SENTENCE, MAX_SENTENCE = 5, 40
"""Lengths of a first sentence that is used as a query, in words."""
MIN_REST = 20
"""Fewest words that a document has beside its first sentence."""

_SENTENCE = re.compile(r"(.+?[.!?])(?:\s|$)", re.S)


@dataclass(frozen=True, slots=True)
class Query:
    """A query with the chunks that should be found."""

    text: str
    targets: frozenset[str]
    kind: str
    """``question`` or ``sentence``."""

    @property
    def split(self) -> Split:
        """Use of the query, by the hash of its words."""
        return split_of(self.text.split())


def questions_of(tasks: Iterable[TextTask]) -> list[Query]:
    """Return the questions of one hop; those of several cannot be answered by one search."""
    return [Query(task.question, frozenset(task.targets), "question") for task in tasks if len(task.hops) == 1]


def without_first_sentences(documents: Iterable[Document]) -> tuple[list[Document], dict[str, str]]:
    """Return the documents without the first sentence of their docstring, and those sentences by document id.

    The sentence is the query and the rest of the document what it should find: a search for a sentence in its own
    document would say nothing. Documents that are too short without it stay whole and give no query, as do sentences
    that two documents share.
    """
    shortened: list[Document] = []
    sentences: dict[str, str] = {}
    for document in documents:
        head, _, rest = document.text.partition("\n\n")
        match = _SENTENCE.match(rest)
        sentence = " ".join(match[1].split()) if match else ""
        body = rest[match.end() :] if match else ""
        if MIN_SENTENCE <= len(sentence.split()) <= MAX_SENTENCE and len(body.split()) >= MIN_REST:
            sentences[document.doc_id] = sentence
            shortened.append(replace(document, text=f"{head}\n\n{body}"))
        else:
            shortened.append(document)
    counts: dict[str, int] = {}
    for sentence in sentences.values():
        counts[sentence] = counts.get(sentence, 0) + 1
    return shortened, {doc_id: sentence for doc_id, sentence in sentences.items() if counts[sentence] == 1}


def sentence_queries(sentences: Mapping[str, str], retriever: Retriever) -> list[Query]:
    """Return queries whose targets are all chunks of the sentence's document in ``retriever``."""
    return [
        Query(sentence, frozenset(chunk.chunk_id for chunk in retriever.passages.by_document[doc_id]), "sentence")
        for doc_id, sentence in sentences.items()
    ]


async def learn_reranker(parts: Iterable[tuple[Retriever, Sequence[Query]]]) -> LearntReranker:
    """Return the reranker of the training queries of all ``parts``, each with the retriever that it is searched in.

    Raises ``ValueError`` if no query has evidence among its candidates.
    """
    examples = []
    for retriever, queries in parts:
        for query in queries:
            if query.split is Split.TRAIN:
                _, _, candidates = await retriever.candidates(query.text)
                rows = [row for row, each in enumerate(candidates) if each.chunk.chunk_id in query.targets]
                examples.append((features_of(query.text, candidates), rows))
    return fit_reranker(examples)
