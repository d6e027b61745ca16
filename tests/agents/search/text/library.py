"""A small library in source form, and the corpus and candidates that are made of it and of the installed Python."""

from functools import cache
from textwrap import dedent

from headrace.agents.search.text.candidates import Candidate, candidate_of, chains_of
from headrace.agents.search.text.corpus import RealText, corpus_of
from headrace.agents.search.text.generate import with_distractors
from headrace.agents.search.text.installation import sources, stdlib, topics
from headrace.agents.search.text.verify import Corpus

SOURCES = {
    "net": '''
        """Servers over a network."""
        BACKLOG = 5

        class Server:
            """Serves requests."""
            backlog = BACKLOG
            timeout = 30

            def shutdown(self, wait=True, limit=2.5):
                """Stop serving."""

        class Plain(Server):
            timeout = 60
        ''',
    "web.__init__": '''
        """Servers of pages."""
        from net import Server
        import net as network
        from .pages import Page

        class WebServer(Server):
            """Serves pages."""
            page = Page

        def serve(server=WebServer, port=8000, name='web'):
            """Serve until stopped."""

        def _hidden(port=1):
            """Not public."""
        ''',
    "web.pages": '''
        """Pages and their parts."""
        from web import WebServer

        class Page(dict):
            """A page."""
            encoding = 'utf-8'

        if True:
            class Odd: ...

        def twice(a=1):
            """First."""

        def twice(a=2):
            """Second."""
        ''',
}


def small_text() -> RealText:
    """The corpus of the small library."""
    return corpus_of([(name, dedent(source).encode()) for name, source in SOURCES.items()], {"if": "The if statement."})


@cache
def installed_text() -> RealText:
    """The corpus of the installed Python."""
    return corpus_of(sources(stdlib()), topics())


@cache
def installed_corpus() -> Corpus:
    """The same, as the checks read it."""
    return Corpus.of(installed_text().documents)


def candidates(text: RealText, corpus: Corpus, hops: int, most: int | None = None) -> list[Candidate]:
    """Candidates of so many hops, with distractors, evenly spread over all chains."""
    doc_ids = {document.title: document.doc_id for document in text.documents}
    chains = chains_of(text.facts, hops)
    step = max(1, len(chains) // most) if most else 1
    return [with_distractors(candidate_of(chain, doc_ids, ()), corpus)[0] for chain in chains[::step][:most]]
