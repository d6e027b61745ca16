"""Tasks of the orchestrator: wide ones, about many entities, and deep ones, along a chain of facts.

    list employer of ada bruno carla dario elena       targets: five chunks, in any order
    trace ada employer seat river                      target: the last of three chunks

A task is a function of its id, ``swarm-train-000017``, ``swarm-train-000017-easy`` or ``swarm-heldout-000003``. The id
seeds the world; a hash of the question's words determines its split, so no held-out question is ever a training
question. No question mentions sub-agents.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from random import Random
from typing import Any

from headrace.agents.search.corpus import RELATIONS, Chunk, Corpus, Triple, draw_corpus
from headrace.agents.swarm import vocabulary as words

WIDE_ENTITIES = (4, 12)
"""Least and largest number of entities of a wide task."""
DEEP_HOPS = (3, 4)
"""Least and largest number of hops of a deep task."""
LEVELS = {"easy": ((4, 6), (3, 3)), "medium": ((7, 9), (3, 4)), "hard": ((10, 12), (4, 4))}
"""Difficulty → entities of wide tasks, hops of deep ones."""
WIDE_SHARE = 0.5
"""Share of wide tasks."""
STEPS_PER_LOOKUP = 2
"""Model calls that the orchestrator needs for one fact without sub-agents: find the page, read it."""
DEEP_SLACK = 4
"""Critical steps that a deep task's budget leaves beyond those of a chain without a failed search."""

HELD_OUT_SHARE = 4
"""One question in this many is held out."""

_DRAWS = 200
"""Largest number of worlds to try for a task: one or two suffice."""

_PAGES = 16
_TASK_ID = re.compile(rf"swarm-(train|heldout)-(\d{{6,9}})(?:-({'|'.join(LEVELS)}))?")


class Split(StrEnum):
    """Use of a task."""

    TRAIN = "train"
    HELD_OUT = "heldout"


class Source(StrEnum):
    """Kind of a task."""

    WIDE = "wide"
    DEEP = "deep"


@dataclass(frozen=True)
class Task:
    """A question, its world, and the data that the reward needs and the model must not see."""

    task_id: str
    source: Source
    question: tuple[str, ...]
    corpus: Corpus
    evidence: tuple[Chunk, ...]
    """A wide task's items in the order of its entities; a deep task's chain."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Chunk ids of the correct answer: all items of a wide task, the last hop of a deep one."""
        found = self.evidence if self.source is Source.WIDE else self.evidence[-1:]
        return tuple(chunk.chunk_id for chunk in found)

    @property
    def serial_steps(self) -> int:
        """Model calls that all lookups need one after another, without a failed search and without the answer."""
        return STEPS_PER_LOOKUP * len(self.evidence)

    @property
    def budget(self) -> int:
        """Critical steps before the answer: half of the serial need of a wide task; all of a deep one's, with slack."""
        return self.serial_steps // 2 if self.source is Source.WIDE else self.serial_steps + DEEP_SLACK

    @property
    def facts(self) -> dict[str, Any]:
        """Data in ``trajectory.started`` for the reward and for analysis."""
        return {
            "source": str(self.source),
            "targets": list(self.targets),
            "lookups": len(self.evidence),
            "budget": self.budget,
            "split": str(split_of(self.question)),
        }


def task_id(split: Split, number: int, level: str | None = None) -> str:
    """Return the id of a task, of any difficulty without a ``level`` of ``LEVELS``.

    Raises ``ValueError`` for a number outside [0, 10⁹) or an unknown level.
    """
    if not 0 <= number < 10**9:
        raise ValueError(f"task number {number} is outside [0, 1000000000)")
    if level is not None and level not in LEVELS:
        raise ValueError(f"level {level!r} is none of {', '.join(LEVELS)}")
    return f"swarm-{split}-{number:06d}" + (f"-{level}" if level else "")


def split_of(question: Sequence[str]) -> Split:
    """Return the split of a question, determined by the hash of its words."""
    digest = hashlib.sha256(" ".join(question).encode()).digest()
    return Split.HELD_OUT if digest[0] % HELD_OUT_SHARE == 0 else Split.TRAIN


@lru_cache(maxsize=512)  # the attempts of a group share one task
def make_task(identifier: str) -> Task:
    """Return the task ``identifier``, which is the same on every machine. Raises ``ValueError`` for an invalid id."""
    match = _TASK_ID.fullmatch(identifier)
    if match is None:
        raise ValueError(f"{identifier!r} is not a task id such as swarm-train-000017")
    split = Split(match[1])
    # A string is hashed by SHA-512: stable across Python versions and unrelated for neighbouring ids.
    rng = Random(f"headrace/{identifier}")
    source = Source.WIDE if rng.random() < WIDE_SHARE else Source.DEEP
    entities, hops = LEVELS[match[3]] if match[3] else (WIDE_ENTITIES, DEEP_HOPS)
    size = rng.randint(*(entities if source is Source.WIDE else hops))
    for _ in range(_DRAWS):
        corpus, evidence = _wide(rng, size) if source is Source.WIDE else _deep(rng, size)
        if evidence and split_of(ask(source, evidence)) is split:
            return Task(identifier, source, ask(source, evidence), corpus, evidence)
    raise RuntimeError(f"no world in {_DRAWS} draws holds a {source} question of {size} lookups for {identifier}")


def ask(source: Source, evidence: Sequence[Chunk]) -> tuple[str, ...]:
    """Return the question that ``evidence``, at least one chunk, answers."""
    first = evidence[0].triple
    if source is Source.WIDE:
        return (words.LIST, first.relation, words.OF, *(chunk.triple.subject for chunk in evidence))
    return (words.TRACE, first.subject, *(chunk.triple.relation for chunk in evidence))


def _wide(rng: Random, size: int) -> tuple[Corpus, tuple[Chunk, ...]]:
    """Return a world whose pages are mostly of one kind of entity, and one relation of ``size`` of them."""
    kinds = list(RELATIONS)
    kind = rng.choice(kinds)
    others = [name for names in kinds if names is not kind for name in names]
    subjects = [(kind, name) for name in rng.sample(kind, WIDE_ENTITIES[1])]
    fill = rng.sample(others, _PAGES - len(subjects))
    subjects += [(next(names for names in kinds if name in names), name) for name in fill]
    chunk_ids = rng.sample(words.CHUNKS, len(words.CHUNKS))
    doc_ids = rng.sample(words.DOCUMENTS, _PAGES)
    chunks = [
        Chunk(chunk_ids.pop(), doc_id, Triple(name, relation, rng.choice([value for value in values if value != name])))
        for doc_id, (names, name) in zip(doc_ids, subjects, strict=True)
        for relation, values in RELATIONS[names]
    ]
    corpus = Corpus(tuple(sorted(chunks, key=lambda chunk: chunk.chunk_id)))
    relation = rng.choice([relation for relation, _ in RELATIONS[kind]])
    asked = rng.sample([name for names, name in subjects if names is kind], size)
    return corpus, tuple(corpus.by_question[name, relation] for name in asked)


def _deep(rng: Random, hops: int) -> tuple[Corpus, tuple[Chunk, ...]]:
    """Return a world and a chain of ``hops`` in it in which no entity and no relation repeats, if there is one."""
    corpus = draw_corpus(rng)
    for first in rng.sample(corpus.chunks, len(corpus.chunks)):
        if chain := _extended(rng, corpus, (first,), hops):
            return corpus, chain
    return corpus, ()


def _extended(rng: Random, corpus: Corpus, chain: tuple[Chunk, ...], hops: int) -> tuple[Chunk, ...]:
    """Return ``chain`` continued to ``hops`` chunks; no chunks if that is impossible."""
    if len(chain) == hops:
        return chain
    entities = {chunk.triple.subject for chunk in chain}
    relations = {chunk.triple.relation for chunk in chain}
    following = [
        chunk
        for chunk in corpus.chunks
        if chunk.triple.subject == chain[-1].triple.value
        and chunk.triple.value not in entities
        and chunk.triple.relation not in relations
    ]
    for chunk in rng.sample(following, len(following)):
        if found := _extended(rng, corpus, (*chain, chunk), hops):
            return found
    return ()
