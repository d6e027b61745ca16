"""The documents of a corpus as a file of JSON lines.

    {"doc_id": "d0412", "title": "shutil.copyfileobj", "text": "…"}

A user's own corpus needs no more than this file: any ids that are distinct, any titles.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from headrace.agents.retrieval.passages import Document

DOCUMENTS = "documents.jsonl"


class NoCorpus(ValueError):
    """A folder has no documents, or a line is none; the message says what to do."""


def write_documents(documents: Iterable[Document], folder: Path) -> str:
    """Write ``documents.jsonl``; return its SHA-256."""
    lines = [
        json.dumps({"doc_id": each.doc_id, "title": each.title, "text": each.text}, ensure_ascii=False) + "\n"
        for each in documents
    ]
    content = "".join(lines).encode()
    (folder / DOCUMENTS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read_documents(folder: Path) -> tuple[Document, ...]:
    """Read the documents of a corpus. Raises :class:`NoCorpus` if there are none, or a line is no document."""
    path = folder / DOCUMENTS
    if not path.is_file():
        raise NoCorpus(f"{folder} has no {DOCUMENTS}: make a corpus with `headrace corpus --out {folder}`")
    documents = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                content = json.loads(line)
                documents.append(Document(*(str(content[name]) for name in ("doc_id", "title", "text"))))
            except (ValueError, KeyError, TypeError) as error:
                raise NoCorpus(f'{path}:{number} is not {{"doc_id", "title", "text"}}: {error!r}') from error
    return tuple(documents)


def sha256_of_documents(folder: Path) -> str:
    """Return the SHA-256 of ``documents.jsonl``."""
    return hashlib.sha256((folder / DOCUMENTS).read_bytes()).hexdigest()
