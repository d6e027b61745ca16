"""``headrace tasks``: generate verified search tasks over a corpus."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_line

if TYPE_CHECKING:
    from headrace.agents.search.text.generate import Generated
    from headrace.agents.search.text.verify import Corpus


@click.command()
@click.option(
    "--corpus", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Folder of a corpus."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File of JSON lines.")
@click.option(
    "--rejected", type=click.Path(path_type=Path, dir_okay=False), help="File for what was rejected, and why."
)
@click.option(
    "--hops",
    "counts",
    type=(click.IntRange(1, 4), click.IntRange(0)),
    multiple=True,
    metavar="HOPS COUNT",
    help="Questions of so many hops; repeatable. Default: 500 of one, 400 of two, 200 of three, 100 of four.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the choice.")
@click.option("--explorer-url", metavar="URL", help="A model that proposes questions: its address up to /v1.")
@click.option("--explorer-model", metavar="NAME", help="The endpoint's model.")
@click.option("--key-env", metavar="NAME", help="Environment variable with the endpoint's API key.")
@click.option("--calls", type=click.IntRange(1), default=400, show_default=True, help="Most calls of the model.")
def command(
    corpus: Path,
    out: Path,
    rejected: Path | None,
    counts: tuple[tuple[int, int], ...],
    seed: int,
    explorer_url: str | None,
    explorer_model: str | None,
    key_env: str | None,
    calls: int,
) -> None:
    """Generate questions whose evidence is in a corpus, verify each, and write the tasks as JSON lines.

    Facts are explored by syntax tree, for a corpus of `headrace corpus`, or by a model behind --explorer-url, for any
    corpus. Either way a question is kept only if its quotes occur in the documents word for word, each hop leads to the
    next, no other document answers, and the question does not give away the answer.
    """
    from headrace.agents.retrieval.documents import NoCorpus, read_documents, sha256_of_documents
    from headrace.agents.retrieval.endpoint import RetrievalError
    from headrace.agents.search.text.corpus import read_facts
    from headrace.agents.search.text.generate import generate
    from headrace.agents.search.text.tasks import write_tasks
    from headrace.agents.search.text.verify import Corpus
    from headrace.deploy.errors import StackError

    if (explorer_url is None) != (explorer_model is None):
        raise click.UsageError("--explorer-url and --explorer-model go together")
    try:
        indexed = Corpus.of(read_documents(corpus))
        sha256 = sha256_of_documents(corpus)
        wanted = dict(counts) or {1: 500, 2: 400, 3: 200, 4: 100}
        if explorer_url is not None and explorer_model is not None:
            total = sum(wanted.values())
            made = asyncio.run(_by_model(explorer_url, explorer_model, key_env, indexed, sha256, total, calls, seed))
        else:
            facts = read_facts(corpus)
            if not facts:
                raise StackError(
                    f"{corpus} has no facts.jsonl: name a model with --explorer-url, or make a corpus with "
                    "`headrace corpus`"
                )
            made = generate(facts, indexed, sha256, counts=wanted, seed=seed, progress=print_line)
    except (NoCorpus, RetrievalError, ValueError) as error:
        raise StackError(str(error)) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    write_tasks(made.tasks, out)
    if rejected is not None:
        _write_rejected(made, rejected)
    reasons = ", ".join(f"{check} {count:,}" for check, count in sorted(made.by_check.items()))
    print_line(
        f"{out}: {len(made.tasks):,} tasks; {len(made.rejected):,} candidates rejected{reasons and f' ({reasons})'}"
    )


async def _by_model(
    url: str, model: str, key_env: str | None, corpus: "Corpus", sha256: str, count: int, calls: int, seed: int
) -> "Generated":
    import aiohttp

    from headrace.agents.search.text.model_explorer import ModelExplorer
    from headrace.agents.search.text.model_tasks import tasks_by_model
    from headrace.deploy.endpoint_key import key_headers

    async with aiohttp.ClientSession(headers=key_headers(key_env)) as http:
        explorer = ModelExplorer(http, url.rstrip("/"), model)
        return await tasks_by_model(explorer, corpus, sha256, count=count, calls=calls, seed=seed, progress=print_line)


def _write_rejected(made: "Generated", path: Path) -> None:
    """Write each rejected candidate with every check that it failed."""
    from dataclasses import asdict

    with path.open("w", encoding="utf-8") as file:
        for each in made.rejected:
            content = asdict(each.candidate) | {"failures": [asdict(failure) for failure in each.failures]}
            file.write(json.dumps(content, ensure_ascii=False) + "\n")
