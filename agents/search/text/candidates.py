"""Questions before they are verified: what an explorer proposes, and one more hop on top of one.

    Candidate("What is the value of the class attribute request_queue_size of the base class of …?",
              hops=(Hop("http.server.HTTPServer", …), Hop("socketserver.TCPServer", …)), answer="5", …)

An explorer reads documents: by their syntax tree (:mod:`headrace.agents.search.text.facts`) or by a language model
(:mod:`headrace.agents.search.text.model_explorer`). Its word counts for nothing until the candidate is verified.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from headrace.agents.search.text.facts import Fact, Relation

MAX_HOPS = 4


@dataclass(frozen=True, slots=True)
class Hop:
    """One step to the answer: a fact with its evidence."""

    subject: str
    """What the fact is about; the value of the hop before."""
    cues: tuple[str, ...]
    """Further names that a statement of the fact contains, such as that of a parameter."""
    value: str
    """What the fact says; the answer, or the subject of the next hop."""
    doc_id: str
    """Document that states it."""
    quotes: tuple[str, ...]
    """Passages of the document, word for word up to white space, that together state it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question with everything that it claims."""

    question: str
    hops: tuple[Hop, ...]
    answer: str
    distractors: tuple[str, ...]
    """Ids of documents that look like evidence, share a name with it, and do not answer."""
    explorer: str
    """What proposed it: ``syntax-tree``, or ``model:NAME``."""


def chains_of(facts: Sequence[Fact], hops: int) -> list[tuple[Fact, ...]]:
    """Return all chains of ``hops`` facts, each about the value of the one before; no subject occurs twice."""
    by_subject: dict[str, list[Fact]] = {}
    for fact in facts:
        by_subject.setdefault(fact.subject, []).append(fact)
    chains: list[tuple[Fact, ...]] = [(fact,) for fact in facts]
    for _ in range(hops - 1):
        chains = [
            (*chain, fact)
            for chain in chains
            for fact in by_subject.get(chain[-1].value, ())
            if fact.value not in {link.subject for link in chain} | {fact.subject}
        ]
    return chains


def candidate_of(chain: Sequence[Fact], doc_ids: Mapping[str, str], distractors: tuple[str, ...]) -> Candidate:
    """Return the question that ``chain`` answers. ``doc_ids``: ids of documents by title."""
    expression = chain[0].subject
    for place, fact in enumerate(chain):
        is_nested = place > 0 and fact.relation is Relation.VALUE
        expression = fact.asks.format(f"that is {expression}" if is_nested else expression)
    hops = tuple(Hop(fact.subject, fact.names, fact.value, doc_ids[fact.document], (fact.quote,)) for fact in chain)
    return Candidate(f"What is {expression}?", hops, chain[-1].value, distractors, "syntax-tree")


MIN_SHARED = 4
"""Shortest name that makes a distractor, in characters: nearly every document has ``self``."""


def shared_names(hops: Sequence[Hop]) -> tuple[str, ...]:
    """Return the names that a distractor may share with the evidence: last parts of subjects and values, and cues."""
    return tuple(
        dict.fromkeys(name for hop in hops for name in (last_part(hop.subject), last_part(hop.value), *hop.cues))
    )


def distracting(hops: Sequence[Hop], by_identifier: Mapping[str, Sequence[str]], most: int) -> tuple[str, ...]:
    """Return ids of documents that share names with the evidence and are none: those with the rarest names first.

    ``by_identifier``: identifier → ids of the documents that have it.
    """
    evidence = {hop.doc_id for hop in hops}
    weights: dict[str, float] = {}
    for name in shared_names(hops):
        holders = by_identifier.get(name, ()) if len(name) >= MIN_SHARED else ()
        for doc_id in holders:
            weights[doc_id] = weights.get(doc_id, 0.0) + 1 / len(holders)
    found = sorted(weights.keys() - evidence, key=lambda doc_id: (-weights[doc_id], doc_id))
    return tuple(found[:most])


def last_part(name: str) -> str:
    """``http.server.HTTPServer`` → ``HTTPServer``."""
    return name.rpartition(".")[2]


def without_distractors(candidate: Candidate, doc_ids: Iterable[str]) -> Candidate:
    """Return ``candidate`` without these distractors."""
    dropped = set(doc_ids)
    return replace(candidate, distractors=tuple(each for each in candidate.distractors if each not in dropped))


def spread(chains: Sequence[tuple[Fact, ...]], rng: Random) -> list[tuple[Fact, ...]]:
    """Return ``chains`` shuffled, with those first that end in a fact which ends few others.

    Otherwise most questions of several hops would end in the few classes that have many subclasses.
    """
    shuffled = list(chains)
    rng.shuffle(shuffled)
    used: dict[Fact, int] = {}
    rounds = []
    for chain in shuffled:
        used[chain[-1]] = used.get(chain[-1], 0) + 1
        rounds.append(used[chain[-1]])
    return [chain for _, chain in sorted(zip(rounds, shuffled, strict=True), key=lambda pair: pair[0])]
