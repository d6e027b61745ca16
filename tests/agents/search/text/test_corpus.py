"""Documents and facts of source code: qualified names, lines that state facts, nothing that is ambiguous."""

from pathlib import Path

import pytest

from headrace.agents.search.text.corpus import LICENCE, about, corpus_of, read_facts, write_facts
from headrace.agents.search.text.facts import Relation
from headrace.agents.search.text.installation import SKIPPED, sources, stdlib, topics
from tests.agents.search.text.library import installed_text, small_text

TEXT = small_text()
DOCUMENTS = {document.title: document.text for document in TEXT.documents}
FACTS = {(fact.subject, fact.relation, fact.names): fact.value for fact in TEXT.facts}


def test_a_class_is_shown_with_its_bases_attributes_and_methods_by_qualified_names() -> None:
    assert (
        DOCUMENTS["web.WebServer"]
        == "class web.WebServer(net.Server)\n\nServes pages.\n\nweb.WebServer.page = web.pages.Page"
    )
    assert DOCUMENTS["net.Server"].splitlines()[-2:] == [
        "net.Server.shutdown(self, wait=True, limit=2.5)",
        "    Stop serving.",
    ]


def test_a_function_and_a_module_are_shown_with_their_docstrings() -> None:
    assert DOCUMENTS["web.serve"] == "web.serve(server=web.WebServer, port=8000, name='web')\n\nServe until stopped."
    assert DOCUMENTS["net"] == "module net\n\nServers over a network.\n\nnet.BACKLOG = 5"
    assert DOCUMENTS["language reference: if"] == "The if statement."


def test_what_is_not_public_or_defined_twice_or_conditionally_is_left_out() -> None:
    assert not {"web._hidden", "web.pages.twice", "web.pages.Odd"} & DOCUMENTS.keys()


def test_facts_have_qualified_values() -> None:
    assert FACTS["web.WebServer", Relation.BASE, ()] == "net.Server"
    assert FACTS["web.pages.Page", Relation.BASE, ()] == "dict"
    assert FACTS["web.WebServer", Relation.ATTRIBUTE, ("page",)] == "web.pages.Page"
    assert FACTS["net.Server", Relation.ATTRIBUTE, ("backlog",)] == "net.BACKLOG"
    assert FACTS["net.BACKLOG", Relation.VALUE, ()] == "5"
    assert FACTS["web.serve", Relation.DEFAULT, ("server",)] == "web.WebServer"
    assert FACTS["net.Server", Relation.METHOD_DEFAULT, ("shutdown", "limit")] == "2.5"
    assert ("net.Server", Relation.METHOD_DEFAULT, ("shutdown", "wait")) not in FACTS  # True is everywhere


def test_every_fact_quotes_a_line_of_its_document() -> None:
    assert len(TEXT.facts) == 13
    assert all(fact.quote in DOCUMENTS[fact.document].splitlines() for fact in TEXT.facts)


def test_the_same_sources_give_the_same_corpus_in_any_order() -> None:
    from textwrap import dedent

    from tests.agents.search.text.library import SOURCES

    backwards = [(name, dedent(source).encode()) for name, source in reversed(SOURCES.items())]
    assert corpus_of(backwards, {"if": "The if statement."}) == TEXT


def test_a_source_that_does_not_parse_is_skipped() -> None:
    assert corpus_of([("bad", b"def"), ("good", b'"""Good."""')], {}).documents[0].title == "good"


def test_no_more_documents_are_made_than_allowed_and_facts_of_the_others_are_left_out() -> None:
    text = corpus_of([("a", b'"""A."""\nX = 1'), ("b", b"Y = 2")], {}, most=1)
    assert [document.title for document in text.documents] == ["a"]
    assert [fact.subject for fact in text.facts] == ["a.X"]


def test_stored_facts_are_read_again(tmp_path: Path) -> None:
    write_facts(TEXT.facts, tmp_path)
    assert read_facts(tmp_path) == TEXT.facts
    assert read_facts(tmp_path / "nowhere") == ()
    (tmp_path / "facts.jsonl").write_text('{"relation": "likes"}\n')
    with pytest.raises(ValueError, match=r"facts\.jsonl:1"):
        read_facts(tmp_path)


def test_the_installed_documentation_is_a_corpus_of_thousands_with_its_licence() -> None:
    text = installed_text()
    assert 2_000 < len(text.documents) <= 3_000
    assert len(text.facts) > 2_000
    titles = {document.title for document in text.documents}
    assert {"http.server.HTTPServer", "shutil.copyfileobj", "json"} <= titles
    assert "License" in about(text, "0" * 64)["licence"] == LICENCE or "Licence" in LICENCE
    assert topics().keys() >= {"if", "lambda"}


def test_tests_and_private_modules_are_no_documentation() -> None:
    names = [name for name, _ in sources(stdlib())]
    assert "http.server" in names
    assert not [
        name for name in names if not SKIPPED.isdisjoint(name.split(".")) or "._" in name.replace(".__init__", "")
    ]
