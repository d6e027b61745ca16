"""``headrace corpus``, ``tasks`` and ``index``: a corpus of the installed documentation, its tasks and its index."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.agents.retrieval.documents import read_documents, write_documents
from headrace.agents.retrieval.index import open_retriever
from headrace.agents.search.text.corpus import write_facts
from headrace.agents.search.text.tasks import read_tasks
from headrace.deploy.cli import cli
from tests.agents.search.text.library import small_text


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder with the corpus of the small library."""
    text = small_text()
    write_documents(text.documents, tmp_path)
    write_facts(text.facts, tmp_path)
    return tmp_path


def test_a_corpus_is_made_of_the_installed_documentation_and_never_overwritten(tmp_path: Path) -> None:
    made = run("corpus", "--out", tmp_path / "corpus", "--documents", "200")
    assert made.exit_code == 0, made.output
    about = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    assert about["documents"] == len(read_documents(tmp_path / "corpus")) == 200
    assert "Python Software Foundation" in about["licence"]
    again = run("corpus", "--out", tmp_path / "corpus")
    assert again.exit_code == 1
    assert "not empty" in again.output


def test_tasks_are_written_with_what_was_rejected(small: Path) -> None:
    facts = (small / "facts.jsonl").read_text()
    (small / "facts.jsonl").write_text(facts.replace("net.BACKLOG = 5", "net.BACKLOG = 6"))
    made = run("tasks", "--corpus", small, "--out", small / "tasks.jsonl", "--rejected", small / "no.jsonl")
    assert made.exit_code == 0, made.output
    assert "1 candidates rejected (quoted 1)" in made.output
    assert {len(task.hops) for task in read_tasks(small / "tasks.jsonl")} >= {1, 2}
    (line,) = (small / "no.jsonl").read_text().splitlines()
    assert json.loads(line)["failures"][0]["check"] == "quoted"


def test_the_numbers_of_hops_can_be_chosen(small: Path) -> None:
    made = run("tasks", "--corpus", small, "--out", small / "tasks.jsonl", "--hops", "2", "3")
    assert made.exit_code == 0, made.output
    assert [len(task.hops) for task in read_tasks(small / "tasks.jsonl")] == [2, 2, 2]


def test_a_corpus_of_ones_own_needs_a_model_that_explores(small: Path) -> None:
    (small / "facts.jsonl").unlink()
    refused = run("tasks", "--corpus", small, "--out", small / "tasks.jsonl")
    assert refused.exit_code == 1
    assert "--explorer-url" in refused.output
    half = run("tasks", "--corpus", small, "--out", small / "tasks.jsonl", "--explorer-url", "http://localhost:1/v1")
    assert "go together" in half.output


def test_a_folder_that_is_no_corpus_is_named(tmp_path: Path) -> None:
    for command in (["tasks", "--out", tmp_path / "t.jsonl"], ["index"]):
        refused = run(*command, "--corpus", tmp_path)
        assert refused.exit_code == 1
        assert "headrace corpus" in refused.output


async def test_an_index_has_a_reranker_that_was_learnt(tmp_path: Path) -> None:
    import asyncio

    assert run("corpus", "--out", tmp_path / "c", "--documents", "300").exit_code == 0
    made = await asyncio.to_thread(run, "index", "--corpus", tmp_path / "c")
    assert made.exit_code == 0, made.output
    retriever = await open_retriever(tmp_path / "c")
    assert retriever.reranker is not None
    assert await retriever.search("copy a file", budget=500)


def test_a_key_is_taken_from_the_environment_only(small: Path) -> None:
    refused = run("index", "--corpus", small, "--key-env", "NO_SUCH_VARIABLE_HERE")
    assert refused.exit_code == 2
    assert "NO_SUCH_VARIABLE_HERE" in refused.output
