"""``headrace index``: make the search index of a corpus, and learn its reranker."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_line

if TYPE_CHECKING:
    from headrace.agents.retrieval.index import RetrievalSettings


@click.command()
@click.option(
    "--corpus", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Folder of a corpus."
)
@click.option(
    "--tasks", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Tasks that the reranker learns from."
)
@click.option("--embeddings-url", metavar="URL", help="An endpoint of OpenAI's embeddings API, instead of our LSA.")
@click.option("--embeddings-model", metavar="NAME", default="", help="The endpoint's model.")
@click.option(
    "--embedding-model",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A Hugging Face directory, instead of our LSA.",
)
@click.option("--key-env", metavar="NAME", help="Environment variable with the endpoint's API key.")
def command(
    corpus: Path,
    tasks: Path | None,
    embeddings_url: str | None,
    embeddings_model: str,
    embedding_model: Path | None,
    key_env: str | None,
) -> None:
    """Make the vectors of a corpus and learn the reranker, in DIR/index.

    The vectors are by our own LSA, which is made from the corpus alone, unless an endpoint or a directory is named. The
    reranker learns from first sentences of the documents and, with --tasks, from their questions of one hop; held-out
    ones are left out. BM25 needs no file: it is made whenever the index is opened.
    """
    from headrace.agents.retrieval.documents import NoCorpus
    from headrace.agents.retrieval.endpoint import RetrievalError
    from headrace.agents.retrieval.index import RetrievalSettings
    from headrace.agents.search.text.tasks import NoTasks
    from headrace.deploy.endpoint_key import key_headers
    from headrace.deploy.errors import StackError

    try:
        settings = RetrievalSettings(embeddings_url, embeddings_model, embedding_model)
        asyncio.run(_make(corpus, tasks, settings, key_headers(key_env)))
    except (NoCorpus, NoTasks, RetrievalError, ValueError) as error:
        raise StackError(str(error)) from error


async def _make(corpus: Path, tasks: Path | None, settings: "RetrievalSettings", headers: dict[str, str]) -> None:
    import aiohttp

    from headrace.agents.retrieval.documents import read_documents
    from headrace.agents.retrieval.index import INDEX, RERANKER, build_index, retriever_of
    from headrace.agents.search.text.learn_reranker import (
        learn_reranker,
        questions_of,
        sentence_queries,
        without_first_sentences,
    )
    from headrace.agents.search.text.tasks import read_tasks

    async with aiohttp.ClientSession(headers=headers) as http:
        print_line("making the vectors")
        retriever = await build_index(corpus, settings, http)
        questions = questions_of(read_tasks(tasks)) if tasks is not None else []
        shortened, sentences = without_first_sentences(read_documents(corpus))
        without = await retriever_of(shortened, settings, http)
        print_line(f"{len(retriever.passages.chunks):,} chunks; learning the reranker")
        queries = sentence_queries(sentences, without)
        reranker = await learn_reranker([(retriever, questions), (without, queries)])
        reranker.save(corpus / INDEX / RERANKER)
    print_line(
        f"{corpus / INDEX}: from {len(queries):,} sentences and {len(questions):,} questions, one in four held out"
    )
