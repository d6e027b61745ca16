"""What each stage of the retrieval adds, on held-out queries over the corpus of the installed documentation.

    python -m tests.experiments.retrieval [--corpus DIR --tasks FILE]

Without ``--corpus`` the corpus and its tasks are made first. Two kinds of queries: questions of one hop, which name
what they look for, and first sentences of documents, whose documents are searched without them. The reranker learns
from the training queries of both and is measured on the held-out ones, one in four.
"""

import argparse
import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.agents.retrieval.documents import read_documents, write_documents
from headrace.agents.retrieval.index import RetrievalSettings, retriever_of
from headrace.agents.retrieval.passages import Document
from headrace.agents.retrieval.retriever import Rankings, Retriever
from headrace.agents.search.tasks import Split
from headrace.agents.search.text.corpus import corpus_of
from headrace.agents.search.text.generate import generate
from headrace.agents.search.text.installation import sources, stdlib, topics
from headrace.agents.search.text.learn_reranker import (
    Query,
    learn_reranker,
    questions_of,
    sentence_queries,
    without_first_sentences,
)
from headrace.agents.search.text.tasks import TextTask, read_tasks
from headrace.agents.search.text.verify import Corpus
from tests.experiments.page import table

STAGES = ("bm25", "dense", "fused", "reranked")
REACHES = (1, 5, 10, 50)


@dataclass(frozen=True, slots=True)
class Part:
    """Queries and what they are searched in."""

    retriever: Retriever
    queries: Sequence[Query]


def recall(rankings: Iterable[tuple[Query, Sequence[str]]], reach: int) -> float:
    """Share of queries with evidence among the first ``reach`` chunks; each has one document of evidence."""
    found = [not query.targets.isdisjoint(ranking[:reach]) for query, ranking in rankings]
    return sum(found) / len(found)


async def parts_of(documents: Sequence[Document], tasks: Iterable[TextTask]) -> list[Part]:
    """Both kinds of queries; their retrievers share one reranker, learnt from the training queries of both."""
    settings = RetrievalSettings()
    whole = await retriever_of(documents, settings)
    shortened, sentences = without_first_sentences(documents)
    without = await retriever_of(shortened, settings)
    parts = [Part(whole, questions_of(tasks)), Part(without, sentence_queries(sentences, without))]
    reranker = await learn_reranker((part.retriever, part.queries) for part in parts)
    return [Part(replace(part.retriever, reranker=reranker), part.queries) for part in parts]


async def ranked(part: Part) -> list[tuple[Query, Rankings]]:
    """The rankings of the held-out queries."""
    held_out = [query for query in part.queries if query.split is Split.HELD_OUT]
    return [(query, await part.retriever.rankings(query.text)) for query in held_out]


def recalls(found: Sequence[tuple[Query, Rankings]]) -> Mapping[str, list[float]]:
    """Recall at each reach, by stage."""
    return {
        stage: [recall([(query, getattr(each, stage)) for query, each in found], reach) for reach in REACHES]
        for stage in STAGES
    }


async def measure(documents: Sequence[Document], tasks: Iterable[TextTask]) -> str:
    """The tables, as Markdown."""
    lines = []
    for part in await parts_of(documents, tasks):
        found = await ranked(part)
        kind = part.queries[0].kind
        lines.append(f"{len(found)} held-out queries of kind {kind}, {len(part.retriever.passages.chunks)} chunks\n")
        rows = [[stage, *(f"{share:.3f}" for share in shares)] for stage, shares in recalls(found).items()]
        lines.append(table(["stage", *(f"@{reach}" for reach in REACHES)], rows) + "\n")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--tasks", type=Path)
    options = parser.parse_args()
    if options.corpus is not None:
        documents = read_documents(options.corpus)
        tasks = read_tasks(options.tasks or options.corpus / "tasks.jsonl")
    else:
        text = corpus_of(sources(stdlib()), topics())
        documents = text.documents
        with TemporaryDirectory() as folder:
            sha256 = write_documents(documents, Path(folder))
        tasks = generate(text.facts, Corpus.of(documents), sha256, counts={1: 2_000}).tasks
    print(asyncio.run(measure(documents, tasks)))


if __name__ == "__main__":
    main()
