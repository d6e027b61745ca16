"""A corpus of real text in a folder: documents, the facts that a syntax tree shows in them, and where it is from.

    corpus/documents.jsonl    {"doc_id": "d0412", "title": "shutil.copyfileobj", "text": "…"}
    corpus/facts.jsonl        {"subject": "http.server.HTTPServer", "relation": "base", "value": "socketserver…", …}
    corpus/corpus.json        {"python": "3.11.7", "documents": 2770, "sha256": "…", "licence": "Python Software …"}

For a given version of Python the files are the same on every machine, as far as its distributor left the library alone.
"""

import json
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.agents.retrieval.passages import Document
from headrace.agents.search.text.definitions import read_modules
from headrace.agents.search.text.documentation import documents_of
from headrace.agents.search.text.facts import Fact, Relation, facts_of
from headrace.agents.search.text.installation import LICENCE

DOCUMENTS = 3_000
"""Most documents; Python 3.11 has fewer."""
FACTS = "facts.jsonl"
ABOUT = "corpus.json"


@dataclass(frozen=True, slots=True)
class RealText:
    """Documents with the facts that they state."""

    documents: tuple[Document, ...]
    facts: tuple[Fact, ...]
    """Only facts whose document is among ``documents``."""


def corpus_of(
    sources: Iterable[tuple[str, bytes]],
    topics: Mapping[str, str],
    most: int = DOCUMENTS,
    progress: Callable[[str], None] = lambda _: None,
) -> RealText:
    """Return the corpus of modules' ``sources``, pairs of name and source, and of articles by name."""
    modules = read_modules(sources)
    progress(f"{len(modules):,} modules read")
    documents = documents_of(modules, topics, most)
    titles = {document.title for document in documents}
    facts = tuple(fact for fact in facts_of(modules) if fact.document in titles)
    progress(f"{len(documents):,} documents, {len(facts):,} facts")
    return RealText(documents, facts)


def write_facts(facts: Iterable[Fact], folder: Path) -> None:
    """Write ``facts.jsonl``."""
    with (folder / FACTS).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(fact), ensure_ascii=False) + "\n" for fact in facts)


def read_facts(folder: Path) -> tuple[Fact, ...]:
    """Read ``facts.jsonl``; none if there is no such file, as with a corpus of a user's own.

    Raises ``ValueError``, which names the line, for one that is no fact.
    """
    path = folder / FACTS
    if not path.is_file():
        return ()
    facts = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                content = json.loads(line)
                content |= {"relation": Relation(content["relation"]), "names": tuple(content["names"])}
                facts.append(Fact(**content))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number} is not a fact: {error!r}") from error
    return tuple(facts)


def about(text: RealText, sha256: str) -> dict[str, Any]:
    """Return what ``corpus.json`` says."""
    return {
        "python": platform.python_version(),
        "documents": len(text.documents),
        "facts": len(text.facts),
        "sha256": sha256,
        "licence": LICENCE,
    }
