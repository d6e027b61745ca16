"""Verified questions of one to three hops over random corpora; training and held-out questions are disjoint.

    what is the seat of the employer of ada ?      targets: (c17, c40), answer chunk: c40

A task is a function of its id, ``search-train-000017``, ``search-heldout-000003`` or, with the hops chosen,
``search-train-000017-2hops``. The id seeds the corpus. A hash of the question's words determines its split, so no
held-out question is ever a training question.
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
from headrace.schemas.events import Purpose

HOP_WEIGHTS = {1: 0.2, 2: 0.55, 3: 0.25}
"""Share of questions by number of hops."""

HELD_OUT_SHARE = 4
"""One question in this many is held out."""

_DRAWS = 200
"""Largest number of corpora to try for a task: each contains dozens of suitable questions, so one or two suffice."""

_TASK_ID = re.compile(r"search-(train|heldout)-(\d{6,9})(?:-(\d)hops)?")


class Split(StrEnum):
    """Use of a task."""

    TRAIN = "train"
    HELD_OUT = "heldout"

    @property
    def purpose(self) -> Purpose:
        """What attempts at such tasks are for: nothing is trained on held-out ones."""
        return Purpose.EVALUATE if self is Split.HELD_OUT else Purpose.TRAIN


class UnverifiedTask(ValueError):
    """A question whose evidence is not in its corpus, or whose answer is not unique."""


@dataclass(frozen=True)
class Task:
    """A question, its corpus, and the data that the reward needs and the model must not see."""

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
        """Ids of the chunks with the answer itself: that of the last hop."""
        return (self.chain[-1].chunk_id,)

    @property
    def facts(self) -> dict[str, Any]:
        """Data in ``trajectory.started`` for the reward and for analysis."""
        return {
            "targets": list(self.targets),
            "answer_chunks": list(self.answer_chunks),
            "hops": len(self.chain),
            "split": str(split_of(self.question)),
        }


def task_id(split: Split, number: int, hops: int | None = None) -> str:
    """Return the id of a task; ``hops``: of its question, ``None`` if they are drawn by ``HOP_WEIGHTS``. Raises
    ``ValueError`` for a number outside [0, 10⁹)."""
    if not 0 <= number < 10**9:
        raise ValueError(f"task number {number} is outside [0, 1000000000)")
    return f"search-{split}-{number:06d}" + ("" if hops is None else f"-{hops}hops")


def split_of(question: Sequence[str]) -> Split:
    """Return the split of a question, determined by the hash of its words."""
    digest = hashlib.sha256(" ".join(question).encode()).digest()
    return Split.HELD_OUT if digest[0] % HELD_OUT_SHARE == 0 else Split.TRAIN


def hops_of(identifier: str) -> int:
    """Return the hops of the task ``identifier`` without making it. Raises ``ValueError`` for an invalid id."""
    return _drawn(identifier)[2]


def _drawn(identifier: str) -> tuple[Split, Random, int]:
    """Return a task's split, the random numbers that make it, and its hops, which are drawn first."""
    match = _TASK_ID.fullmatch(identifier)
    if match is None or int(match[3] or 1) not in HOP_WEIGHTS:
        raise ValueError(f"{identifier!r} is not a task id such as search-train-000017 or search-train-000017-2hops")
    # A string is hashed by SHA-512: stable across Python versions and unrelated for neighbouring ids.
    rng = Random(f"headrace/{identifier}")
    drawn = rng.choices(list(HOP_WEIGHTS), weights=list(HOP_WEIGHTS.values()))[0]
    return Split(match[1]), rng, int(match[3]) if match[3] else drawn


@lru_cache(maxsize=512)  # the attempts of a group share one task and its index
def make_task(identifier: str) -> Task:
    """Return the task ``identifier``, which is the same on every machine. Raises ``ValueError`` for an invalid id."""
    split, rng, hops = _drawn(identifier)
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
    """Return the question that a chain answers: ``what is the seat of the employer of ada ?``"""
    relations = [word for chunk in reversed(chain) for word in ("the", chunk.triple.relation, "of")]
    return ("what", "is", *relations, chain[0].triple.subject, "?")


def verify(question: Sequence[str], chain: Sequence[Chunk], corpus: Corpus) -> None:
    """Check that every chunk of ``chain`` is in ``corpus``, leads to the next, and is the only answer to its hop.

    The check is exact, and an empty chain fails. Raises ``UnverifiedTask``.
    """
    if not chain:
        raise UnverifiedTask("a question without evidence")
    if tuple(question) != ask(chain):
        raise UnverifiedTask(f"the evidence answers {' '.join(ask(chain))!r}, not {' '.join(question)!r}")
    for position, chunk in enumerate(chain):
        if corpus.by_id.get(chunk.chunk_id) != chunk:
            raise UnverifiedTask(f"{' '.join(chunk.words)!r} does not occur in the corpus")
        triple = chunk.triple
        rivals = [
            other
            for other in corpus.chunks
            if (other.triple.subject, other.triple.relation) == (triple.subject, triple.relation)
        ]
        if rivals != [chunk]:
            raise UnverifiedTask(f"{len(rivals)} chunks answer the {triple.relation} of {triple.subject}")
        if position and chain[position - 1].triple.value != triple.subject:
            raise UnverifiedTask(f"hop {position + 1} asks about {triple.subject}, hop {position} does not lead there")


def _chains(corpus: Corpus, hops: int) -> list[tuple[Chunk, ...]]:
    """Return all chains of ``hops`` chunks in which no entity and no relation repeats."""
    pages: dict[str, list[Chunk]] = {}
    for chunk in corpus.chunks:
        pages.setdefault(chunk.triple.subject, []).append(chunk)
    chains: list[tuple[Chunk, ...]] = [(chunk,) for chunk in corpus.chunks]
    for _ in range(hops - 1):
        chains = [
            (*chain, chunk)
            for chain in chains
            for chunk in pages.get(chain[-1].triple.value, ())
            if chunk.triple.value not in {link.triple.subject for link in chain}
            and chunk.triple.relation not in {link.triple.relation for link in chain}
        ]
    return chains
