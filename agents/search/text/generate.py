"""Facts → verified tasks: explore, verify, distract, verify the distractors, extend by one more hop, verify again.

    generated = generate(facts, corpus, sha256, counts={1: 500, 2: 400, 3: 100}, seed=0)
    generated.tasks, generated.rejected        (TextTask(…), …), {Check.UNIQUE: 41, …}

A fact that fails alone is never part of a longer question; the longer question is verified as a whole.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from headrace.agents.search.text.candidates import (
    Candidate,
    candidate_of,
    chains_of,
    distracting,
    spread,
    without_distractors,
)
from headrace.agents.search.text.facts import Fact
from headrace.agents.search.text.tasks import TextTask, task_of
from headrace.agents.search.text.verify import Check, Corpus, Failure, verify

DISTRACTORS = 4
"""Most distractors of a task."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that failed."""

    candidate: Candidate
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Generated:
    """The tasks, and what was rejected on the way."""

    tasks: tuple[TextTask, ...]
    rejected: tuple[Rejected, ...]
    """Candidates without a place among the tasks, each with its failures."""
    dropped_distractors: int
    """Distractors that failed their check; the question was kept without them."""

    @property
    def by_check(self) -> Mapping[Check, int]:
        """Number of rejected candidates by the first check that they failed."""
        return Counter(each.failures[0].check for each in self.rejected)


def generate(
    facts: Sequence[Fact],
    corpus: Corpus,
    documents: str,
    *,
    counts: Mapping[int, int],
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Generated:
    """Return at most ``counts[hops]`` tasks for each number of hops, without two of the same question.

    ``facts`` of documents that the corpus lacks are left out. ``documents``: SHA-256 of the corpus. The result depends
    on ``seed`` and the corpus only.
    """
    doc_ids = {document.title: doc_id for doc_id, document in corpus.documents.items()}
    rejected: list[Rejected] = []
    sound: list[Fact] = []
    for fact in facts:
        if fact.document in doc_ids:
            candidate = candidate_of((fact,), doc_ids, ())
            if failures := verify(candidate, corpus):
                rejected.append(Rejected(candidate, failures))
            else:
                sound.append(fact)
    progress(f"{len(sound):,} of {len(sound) + len(rejected):,} facts are verified")
    tasks: dict[str, TextTask] = {}
    dropped = 0
    for hops, count in sorted(counts.items()):
        made = 0
        for chain in spread(chains_of(sound, hops), Random(f"{seed}/{hops}")):
            if made == count:
                break
            candidate = candidate_of(chain, doc_ids, ())
            candidate, unfit = with_distractors(candidate, corpus)
            dropped += unfit
            if failures := verify(candidate, corpus):
                rejected.append(Rejected(candidate, failures))
            elif candidate.question not in tasks:
                tasks[candidate.question] = task_of(candidate, corpus, documents)
                made += 1
        progress(f"{made:,} of {count:,} questions of {hops} hops")
    return Generated(tuple(tasks.values()), tuple(rejected), dropped)


def with_distractors(candidate: Candidate, corpus: Corpus) -> tuple[Candidate, int]:
    """Return ``candidate`` with distractors that pass their check, and the number of those that did not."""
    found = distracting(candidate.hops, corpus.by_identifier, 2 * DISTRACTORS)
    proposed = Candidate(candidate.question, candidate.hops, candidate.answer, found, candidate.explorer)
    unfit = {each.witness for each in verify(proposed, corpus) if each.check is Check.DISTRACTS and each.witness}
    fit = without_distractors(proposed, unfit).distractors[:DISTRACTORS]
    return Candidate(candidate.question, candidate.hops, candidate.answer, fit, candidate.explorer), len(unfit)
