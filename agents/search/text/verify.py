"""Checks that a question's evidence is in the corpus, leads to the answer, and to no other.

    verify(candidate, corpus) → ()                                                      it is a task
    verify(candidate, corpus) → (Failure(Check.QUOTED, "d0412 does not contain …"),)    it is not

All checks are exact and read only the documents' text. Context-1's published code accepts a candidate if two thirds of
its quotes match loosely, and one without any quote; here every quote must occur, after normalisation of white space,
quotation marks and Unicode's compatibility forms, with its case, as whole words, and a hop without a quote fails.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.agents.retrieval.passages import Chunk, Document, Passages, paragraphs, split_into_chunks
from headrace.agents.search.text.candidates import MAX_HOPS, Candidate, Hop, shared_names

MAX_QUESTION = 500
"""Longest question, in characters."""
MAX_QUOTES = 8
"""Most quotes of a hop."""
MAX_QUOTE = 2_000
"""Longest quote, in characters."""


class Check(StrEnum):
    """What a candidate can fail."""

    EVIDENCE = "evidence"
    """It has one to four hops, and each has a quote that is not empty."""
    QUOTED = "quoted"
    """Every quote occurs in the document that it is said to be from."""
    STATES = "states"
    """The quotes of a hop contain its subject (or are of the document about it), its cues and its value."""
    LEADS_ON = "leads_on"
    """Each hop is about the value of the one before; the answer is the value of the last."""
    ASKS = "asks"
    """The question names the first subject and every cue, and neither the answer nor a value on the way to it."""
    UNIQUE = "unique"
    """No other document states a hop's fact, or another value in its place."""
    DISTRACTS = "distracts"
    """Distractors exist, share a name with the evidence, are not evidence, and do not answer."""
    IN_A_CHUNK = "in_a_chunk"
    """Every quote lies in one chunk, so that a policy can be shown it whole."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed."""

    check: Check
    detail: str
    witness: str | None = None
    """Id of the document that shows it, if one does."""


_QUOTATION_MARKS = str.maketrans("\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u00ab\u00bb`", "''''\"\"\"\"\"'")
_NAME = re.compile(r"\w+(?:\.\w+)*")
_DEFINES = re.compile(r"(?:class )?([\w.]+)\(.*\)$|([\w.]+) = ")
"""A line of code that defines something: a class, a function, or a name with a value."""
_VALUE = re.compile(r"\s*[=:]\s*('[^']*'|\"[^\"]*\"|[^\s,;()]+)")


def normalised(text: str) -> str:
    """Return ``text`` in NFKC, with plain quotation marks and single spaces; the case stays."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(_QUOTATION_MARKS).split())


def contains(text: str, part: str) -> bool:
    """Whether ``part`` occurs in ``text`` as whole words and numbers: ``16`` has no 1, ``a.b`` no ``b``.

    Both are normalised.
    """
    start = text.find(part)
    while start >= 0 and part:
        end = start + len(part)
        if not _continues(text, start, end):
            return True
        start = text.find(part, start + 1)
    return False


def _continues(text: str, start: int, end: int) -> bool:
    """Whether the name or number at ``text[start:end]`` has more before it or after it."""
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    if _is_word(text[start]) and before and (_is_word(before[-1]) or before[-1] in ".-"):
        return True
    return _is_word(text[end - 1]) and bool(after) and (_is_word(after[0]) or _continues_dotted(after))


def _continues_dotted(after: str) -> bool:
    return len(after) == 2 and after[0] == "." and _is_word(after[1])


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def mentions(text: str, name: str) -> bool:
    """Whether ``text`` has ``name``, also as the start of a longer dotted name: ``a.b.c`` mentions ``a.b``."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def names(text: str, part: str) -> bool:
    """Whether ``text`` has ``part`` as a whole identifier, also inside a dotted name: ``a.b`` names ``b``."""
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


@dataclass(frozen=True, slots=True)
class Statement:
    """A piece of a document that could be cited alone: a line of code, or a paragraph of prose. Normalised."""

    doc_id: str
    text: str
    about: str | None
    """What a line of code defines: ``a.b`` of ``class a.b(c.d)``, ``a.b.x`` of ``a.b.x = 1``. A class that has ``c.d``
    as a base says nothing of ``c.d``. ``None`` for prose, which may say something of all that it names."""


def statements_of(document: Document) -> Iterator[Statement]:
    """Yield the statements of ``document``, in order."""
    for paragraph in paragraphs(document.text):
        prose: list[str] = []
        for line in paragraph.splitlines():
            if match := _DEFINES.match(line):
                yield Statement(document.doc_id, normalised(line), match[1] or match[2])
            else:
                prose.append(line)
        if prose:
            yield Statement(document.doc_id, normalised("\n".join(prose)), None)


@dataclass(frozen=True)
class Corpus:
    """The documents as the checks read them."""

    documents: Mapping[str, Document]
    passages: Passages
    texts: Mapping[str, str] = field(init=False, repr=False)
    """Document id → normalised text."""
    statements: tuple[Statement, ...] = field(init=False, repr=False)
    by_document: Mapping[str, tuple[Statement, ...]] = field(init=False, repr=False)
    by_name: Mapping[str, tuple[int, ...]] = field(init=False, repr=False)
    """Dotted name, or a leading part of one → places of the statements that have it."""
    by_identifier: Mapping[str, tuple[str, ...]] = field(init=False, repr=False)
    """Identifier, also as a part of a dotted name → ids of the documents that have it."""

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "Corpus":
        """Index ``documents``."""
        kept = tuple(documents)
        return cls({document.doc_id: document for document in kept}, split_into_chunks(kept))

    def __post_init__(self) -> None:
        by_document = {doc_id: tuple(statements_of(document)) for doc_id, document in self.documents.items()}
        statements = tuple(statement for found in by_document.values() for statement in found)
        by_name: dict[str, list[int]] = {}
        for place, statement in enumerate(statements):
            for name in _leading_names(statement.text):
                by_name.setdefault(name, []).append(place)
        by_identifier: dict[str, list[str]] = {}
        for doc_id, document in self.documents.items():
            for identifier in set(re.findall(r"\w+", normalised(f"{document.title}\n{document.text}"))):
                by_identifier.setdefault(identifier, []).append(doc_id)
        object.__setattr__(self, "texts", {key: normalised(each.text) for key, each in self.documents.items()})
        object.__setattr__(self, "statements", statements)
        object.__setattr__(self, "by_document", by_document)
        object.__setattr__(self, "by_name", {name: tuple(found) for name, found in by_name.items()})
        object.__setattr__(self, "by_identifier", {name: tuple(found) for name, found in by_identifier.items()})

    def chunk_with(self, doc_id: str, quote: str) -> Chunk | None:
        """Return the first chunk of a document that contains the normalised ``quote``."""
        chunks = self.passages.by_document.get(doc_id, ())
        return next((chunk for chunk in chunks if contains(normalised(chunk.text), quote)), None)

    def statements_with(self, name: str) -> Iterator[Statement]:
        """Yield the statements that mention the normalised ``name``."""
        if _NAME.fullmatch(name):
            yield from (self.statements[place] for place in self.by_name.get(name, ()))
        else:  # a phrase of several words, as a model's explorer may name
            yield from (statement for statement in self.statements if mentions(statement.text, name))


def _leading_names(text: str) -> set[str]:
    found: set[str] = set()
    for match in _NAME.finditer(text):
        parts = match[0].split(".")
        found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return found


def verify(candidate: Candidate, corpus: Corpus) -> tuple[Failure, ...]:
    """Return every check that ``candidate`` fails; none for a task."""
    if failures := tuple(_without_evidence(candidate)):
        return failures  # the other checks would have nothing to read
    return tuple(
        failure
        for check in (_quoted, _states, _leads_on, _asks, _unique, _distracts)
        for failure in check(candidate, corpus)
    )


def _without_evidence(candidate: Candidate) -> Iterator[Failure]:
    if not 1 <= len(candidate.hops) <= MAX_HOPS:
        yield Failure(Check.EVIDENCE, f"{len(candidate.hops)} hops; 1 to {MAX_HOPS} are allowed")
    for number, hop in enumerate(candidate.hops, start=1):
        if not hop.quotes or not all(normalised(quote) for quote in hop.quotes):
            yield Failure(Check.EVIDENCE, f"hop {number} has no quote, or an empty one")
        elif len(hop.quotes) > MAX_QUOTES or max(map(len, hop.quotes)) > MAX_QUOTE:
            yield Failure(
                Check.EVIDENCE, f"hop {number} has more than {MAX_QUOTES} quotes or one of {MAX_QUOTE} characters"
            )
        if not normalised(hop.subject) or not normalised(hop.value):
            yield Failure(Check.EVIDENCE, f"hop {number} has no subject or no value")


def _quoted(candidate: Candidate, corpus: Corpus) -> Iterator[Failure]:
    for hop in candidate.hops:
        for quote in map(normalised, hop.quotes):
            if not contains(corpus.texts.get(hop.doc_id, ""), quote):
                yield Failure(Check.QUOTED, f"{hop.doc_id} does not contain {quote!r}")
            elif corpus.chunk_with(hop.doc_id, quote) is None:
                yield Failure(Check.IN_A_CHUNK, f"no single chunk of {hop.doc_id} contains {quote!r}")


def _states(candidate: Candidate, corpus: Corpus) -> Iterator[Failure]:
    for number, hop in enumerate(candidate.hops, start=1):
        quotes = " ".join(map(normalised, hop.quotes))
        document = corpus.documents.get(hop.doc_id)
        about = document is not None and normalised(document.title) == normalised(hop.subject)
        if not about and not mentions(quotes, normalised(hop.subject)):
            yield Failure(Check.STATES, f"the quotes of hop {number} do not name {hop.subject!r}")
        if missing := [cue for cue in hop.cues if not names(quotes, normalised(cue))]:
            yield Failure(Check.STATES, f"the quotes of hop {number} do not name {missing[0]!r}")
        if not contains(quotes, normalised(hop.value)):
            yield Failure(Check.STATES, f"the quotes of hop {number} do not contain its value {hop.value!r}")
        elif other := _assigned(quotes, hop):
            yield Failure(Check.STATES, f"hop {number} says {hop.value!r}, its quote {other!r}")


def _assigned(text: str, hop: Hop) -> str | None:
    """Return the value that ``text`` assigns to the hop's last cue, or to its subject if it has none, if it is another
    than the hop's."""
    values = list(_values(text, hop))
    return None if not values or normalised(hop.value) in values else values[0]


def _values(text: str, hop: Hop) -> Iterator[str]:
    """Yield what stands behind ``=`` or ``:`` after the hop's last cue, or its subject if it has none."""
    wanted, named = normalised(hop.value), normalised((hop.subject, *hop.cues)[-1])
    for match in re.finditer(rf"(?<!\w){re.escape(named)}(?!\w)", text):
        # ``length: int=0`` has an annotation first.
        rest = re.sub(r"^\s*:[^=,()]*(?=\s*=)", "", text[match.end() :])
        if re.match(r"\s*[=:]\s*" + re.escape(wanted) + r"(?![\w.])", rest):
            yield wanted
        elif found := _VALUE.match(rest):
            yield found[1]


def _leads_on(candidate: Candidate, corpus: Corpus) -> Iterator[Failure]:
    for number, (hop, following) in enumerate(zip(candidate.hops, candidate.hops[1:], strict=False), start=1):
        if normalised(following.subject) != normalised(hop.value):
            yield Failure(
                Check.LEADS_ON, f"hop {number} leads to {hop.value!r}, the next is about {following.subject!r}"
            )
    if normalised(candidate.answer) != normalised(candidate.hops[-1].value):
        yield Failure(
            Check.LEADS_ON, f"the last hop leads to {candidate.hops[-1].value!r}, not to {candidate.answer!r}"
        )
    subjects = [normalised(hop.subject) for hop in candidate.hops]
    if len(set(subjects)) < len(subjects):
        yield Failure(Check.LEADS_ON, "two hops are about the same subject")


def _asks(candidate: Candidate, corpus: Corpus) -> Iterator[Failure]:
    question = normalised(candidate.question)
    if not 0 < len(question) <= MAX_QUESTION:
        yield Failure(Check.ASKS, f"the question has {len(question)} characters; 1 to {MAX_QUESTION} are allowed")
    if not contains(question, normalised(candidate.hops[0].subject)):
        yield Failure(Check.ASKS, f"the question does not name {candidate.hops[0].subject!r}")
    for hop in candidate.hops:
        if missing := [cue for cue in hop.cues if not contains(question, normalised(cue))]:
            yield Failure(Check.ASKS, f"the question does not name {missing[0]!r}")
        if contains(question, normalised(hop.value)):
            yield Failure(Check.ASKS, f"the question contains {hop.value!r}, which is to be found")


def _unique(candidate: Candidate, corpus: Corpus) -> Iterator[Failure]:
    for number, hop in enumerate(candidate.hops, start=1):
        for statement in corpus.statements_with(normalised(hop.subject)):
            if statement.doc_id != hop.doc_id and answers(statement, hop):
                detail = f"{statement.doc_id} answers hop {number} too: {statement.text[:120]!r}"
                yield Failure(Check.UNIQUE, detail, statement.doc_id)
                break


def answers(statement: Statement, hop: Hop) -> bool:
    """Whether ``statement`` could be cited for a hop: it names the subject and the cues, and either the hop's value or
    another one that it assigns to the last cue."""
    subject = normalised(hop.subject)
    if statement.about is not None and statement.about != subject and not statement.about.startswith(f"{subject}."):
        return False
    if not mentions(statement.text, subject):
        return False
    if not all(names(statement.text, normalised(cue)) for cue in hop.cues):
        return False
    return contains(statement.text, normalised(hop.value)) or bool(hop.cues and any(_values(statement.text, hop)))


def _distracts(candidate: Candidate, corpus: Corpus) -> Iterator[Failure]:
    evidence = {hop.doc_id for hop in candidate.hops}
    shared = shared_names(candidate.hops)
    for doc_id in candidate.distractors:
        document = corpus.documents.get(doc_id)
        if document is None or doc_id in evidence:
            what = "does not exist" if document is None else "is evidence"
            yield Failure(Check.DISTRACTS, f"distractor {doc_id} {what}", doc_id)
            continue
        if not any(names(f"{document.title}\n{document.text}", name) for name in shared if name):
            yield Failure(Check.DISTRACTS, f"distractor {doc_id} shares no name with the evidence", doc_id)
        if any(answers(statement, hop) for hop in candidate.hops for statement in corpus.by_document[doc_id]):
            yield Failure(Check.DISTRACTS, f"distractor {doc_id} answers a hop", doc_id)
