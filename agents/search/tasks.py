"""Questions of one to three hops over fresh corpora, verified before they are asked; training and held-out never meet.

    what is the seat of the employer of ada ?      targets: (c17, c40), answer chunk: c40

A task is a function of its id, ``search-train-000017`` or ``search-heldout-000003``. The split seeds the corpus, and a
hash of the question's own words says which split it may stand in: no held-out question is ever a training question,
whatever the numbers.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from random import Random
from typing import Any

from headrace.agents.search.corpus import Chunk, Corpus, draw_corpus
from headrace.agents.search.retrieval import Index

HOP_WEIGHTS = {1: 0.2, 2: 0.55, 3: 0.25}
"""Share of questions by number of hops."""

HELD_OUT_SHARE = 4
"""One question in so many is held out."""

_DRAWS = 200
"""Corpora to try before giving up on a task: each holds dozens of fitting questions, so one or two are enough."""

_TASK_ID = re.compile(r"search-(train|heldout)-(\d{6,9})")


class Split(StrEnum):
    """What a task may be used for."""

    TRAIN = "train"
    HELD_OUT = "heldout"


class UnverifiedTask(ValueError):
    """A question whose evidence is not in its corpus, or whose answer is not unique."""


@dataclass(frozen=True)
class Task:
    """A question, its corpus, and what the reward must know and the model must not see."""

    task_id: str
    question: tuple[str, ...]
    corpus: Corpus
    index: Index
    chain: tuple[Chunk, ...]
    """The chunk of every hop, in order."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Chunk ids of all the evidence."""
        return tuple(chunk.chunk_id for chunk in self.chain)

    @property
    def answer_chunks(self) -> tuple[str, ...]:
        """Chunk ids that hold the answer itself: the last hop's."""
        return (self.chain[-1].chunk_id,)

    @property
    def facts(self) -> dict[str, Any]:
        """What ``trajectory.started`` carries for the reward and for analysis."""
        return {
            "targets": list(self.targets),
            "answer_chunks": list(self.answer_chunks),
            "hops": len(self.chain),
            "split": str(split_of(self.question)),
        }


def task_id(split: Split, number: int) -> str:
    """The id of a task; raises ``ValueError`` for a number outside [0, 10⁹)."""
    if not 0 <= number < 10**9:
        raise ValueError(f"task number {number} is outside [0, 1000000000)")
    return f"search-{split}-{number:06d}"


def split_of(question: Sequence[str]) -> Split:
    """The one split that a question may stand in, by the hash of its words."""
    digest = hashlib.sha256(" ".join(question).encode()).digest()
    return Split.HELD_OUT if digest[0] % HELD_OUT_SHARE == 0 else Split.TRAIN


@lru_cache(maxsize=512)  # the attempts of a group share one task and its index
def make_task(identifier: str) -> Task:
    """The task called ``identifier``: the same on every machine. Raises ``ValueError`` for what is no task id."""
    match = _TASK_ID.fullmatch(identifier)
    if match is None:
        raise ValueError(f"{identifier!r} is not a task id such as search-train-000017")
    split = Split(match[1])
    # A string seeds through SHA-512: stable across Python versions, and far apart for neighbouring ids.
    rng = Random(f"headrace/{identifier}")
    hops = rng.choices(list(HOP_WEIGHTS), weights=list(HOP_WEIGHTS.values()))[0]
    for _ in range(_DRAWS):
        corpus = draw_corpus(rng)
        chains = _chains(corpus, hops)
        rng.shuffle(chains)
        chain = next((chain for chain in chains if split_of(ask(chain)) is split), None)
        if chain is None:
            continue
        verify(ask(chain), chain, corpus)
        return Task(identifier, ask(chain), corpus, Index(corpus), chain)
    raise RuntimeError(f"no corpus in {_DRAWS} draws holds a {hops}-hop question for {identifier}")


def ask(chain: Sequence[Chunk]) -> tuple[str, ...]:
    """The question that a chain answers: ``what is the seat of the employer of ada ?``"""
    relations = [word for chunk in reversed(chain) for word in ("the", chunk.fact.relation, "of")]
    return ("what", "is", *relations, chain[0].fact.subject, "?")


def verify(question: Sequence[str], chain: Sequence[Chunk], corpus: Corpus) -> None:
    """Check that every quoted fact occurs in ``corpus``, links to the next, and is the only answer to its hop.

    Strict: no evidence at all fails, and so does a fact that is nearly there. Raises ``UnverifiedTask``.
    """
    if not chain:
        raise UnverifiedTask("a question without evidence")
    if tuple(question) != ask(chain):
        raise UnverifiedTask(f"the evidence answers {' '.join(ask(chain))!r}, not {' '.join(question)!r}")
    for position, chunk in enumerate(chain):
        if corpus.by_id.get(chunk.chunk_id) != chunk:
            raise UnverifiedTask(f"{' '.join(chunk.words)!r} does not occur in the corpus")
        fact = chunk.fact
        rivals = [
            other
            for other in corpus.chunks
            if (other.fact.subject, other.fact.relation) == (fact.subject, fact.relation)
        ]
        if rivals != [chunk]:
            raise UnverifiedTask(f"{len(rivals)} chunks answer the {fact.relation} of {fact.subject}")
        if position and chain[position - 1].fact.value != fact.subject:
            raise UnverifiedTask(f"hop {position + 1} asks about {fact.subject}, hop {position} does not lead there")


def _chains(corpus: Corpus, hops: int) -> list[tuple[Chunk, ...]]:
    """All walks of ``hops`` facts in which no entity and no relation comes twice."""
    pages: dict[str, list[Chunk]] = {}
    for chunk in corpus.chunks:
        pages.setdefault(chunk.fact.subject, []).append(chunk)
    chains: list[tuple[Chunk, ...]] = [(chunk,) for chunk in corpus.chunks]
    for _ in range(hops - 1):
        chains = [
            (*chain, chunk)
            for chain in chains
            for chunk in pages.get(chain[-1].fact.value, ())
            if chunk.fact.value not in {link.fact.subject for link in chain}
            and chunk.fact.relation not in {link.fact.relation for link in chain}
        ]
    return chains
