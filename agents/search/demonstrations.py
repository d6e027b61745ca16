"""Scripted episodes for supervised training before reinforcement learning. The script knows the evidence and makes
frequent mistakes on purpose.

A model that imitates them can call the tools and copy ids, but is sloppy: most often it stops before the last hop,
searches vaguely, and lets the budget run out. It does what RL has to reinforce with a probability of about a third.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from headrace.agents.search import vocabulary as words
from headrace.agents.search.corpus import Chunk
from headrace.agents.search.harness import Done, Harness, Limits
from headrace.agents.search.tasks import Split, Task, make_task, task_id


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Probabilities of the demonstrator's mistakes, each at its own decision."""

    stop_early: float = 0.55
    """Answers after the first hop of several."""
    stop_late: float = 0.25
    """Answers after a later hop, with evidence still missing."""
    stop_empty: float = 0.15
    """Answers with the visible chunks before it has found any evidence."""
    query_subject_only: float = 0.45
    """Searches for the entity without the relation."""
    query_relation_only: float = 0.2
    """Searches for the relation without the entity."""
    ignore_budget: float = 0.3
    """Calls another tool when it should prune."""
    prune_evidence: float = 0.15
    """Prunes all visible chunks."""
    prune_too_little: float = 0.15
    """Prunes only one of several useless chunks."""
    answer_everything: float = 0.3
    """Answers with all visible chunks."""
    answer_last_only: float = 0.2
    """Answers with the last hop's chunk only."""
    answer_wrong: float = 0.15
    """Answers with a chunk that is not evidence."""
    malformed: float = 0.03
    """Emits tokens that are not an action."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A context that only grew, with the tokens to imitate; axis T tokens."""

    token_ids: tuple[int, ...]
    """(T,)"""
    mask: tuple[int, ...]
    """(T,) 1 on tokens that the demonstrator chose, 0 on tokens that it read."""


READ_INSTEAD = 0.1
"""Probability of reading the subject's page, if its id is known, instead of searching."""
GREP_INSTEAD = 0.05
"""Probability of grepping for the subject instead of searching."""

HELD_OUT_FIRST = 999_000_000
"""First training task that is never imitated: demonstrations from here on measure the held-out loss."""


def demonstrate(
    task: Task, rng: Random, mistakes: Mistakes | None = None, limits: Limits | None = None
) -> list[Demonstration]:
    """Return one scripted episode as sequences to imitate: one, plus one for every prune that rewrote the context."""
    harness = Harness(task, limits)
    errs = mistakes or Mistakes()
    examples: list[Demonstration] = []
    token_ids = list(harness.observe())
    mask = [0] * len(token_ids)
    while True:
        sampled = words.encode_words((*_choose(harness, rng, errs), words.END))
        token_ids += sampled
        mask += [1] * len(sampled)
        step = harness.act(sampled)
        if isinstance(step, Done):
            examples.append(Demonstration(tuple(token_ids), tuple(mask)))
            return examples
        if step.pruned:
            examples.append(Demonstration(tuple(token_ids), tuple(mask)))
            token_ids, mask = [], []
        token_ids += step.ids
        mask += [0] * len(step.ids)


def demonstrations(
    first: int, count: int, mistakes: Mistakes | None = None, limits: Limits | None = None
) -> Iterator[list[Demonstration]]:
    """Yield scripted episodes of ``count`` training tasks from number ``first`` on, one per task."""
    for number in range(first, first + count):
        identifier = task_id(Split.TRAIN, number)
        yield demonstrate(make_task(identifier), Random(f"demonstration/{identifier}"), mistakes, limits)


def _choose(harness: Harness, rng: Random, errs: Mistakes) -> Sequence[str]:
    """Return the words of the next action."""
    task, view = harness.task, harness.view
    visible = {chunk.chunk_id for chunk in view}
    missing = [chunk for chunk in task.chain if chunk.chunk_id not in harness.seen]
    if rng.random() < errs.malformed:
        return rng.choice(((words.SEARCH,), (words.GREP, "of", "the"), (words.READ, "what"), ("found",)))
    if not missing:
        return _answer(task, view, rng, errs)
    found = len(task.chain) - len(missing)
    stops = errs.stop_late if found > 1 else errs.stop_early if found else errs.stop_empty if visible else 0.0
    known = {task.chain[0].triple.subject, *(chunk.triple.value for chunk in view)}
    # The demonstrator cannot search for a name that was pruned from the context.
    if missing[0].triple.subject not in known or rng.random() < stops:
        return _answer(task, view, rng, errs)
    distractors = [chunk.chunk_id for chunk in view if chunk.chunk_id not in task.targets]
    pruning_due = harness.limits.pruning and harness.used >= harness.limits.soft and len(distractors) > 1
    if pruning_due and rng.random() >= errs.ignore_budget:
        return _prune(view, distractors, rng, errs)
    return _look_for(missing[0], view, rng, errs)


def _look_for(wanted: Chunk, view: Sequence[Chunk], rng: Random, errs: Mistakes) -> Sequence[str]:
    subject, relation = wanted.triple.subject, wanted.triple.relation
    chance = rng.random()
    page = next((chunk.doc_id for chunk in view if chunk.triple.subject == subject), None)
    if page and chance < READ_INSTEAD:
        return (words.READ, page)
    if chance < GREP_INSTEAD:
        return (words.GREP, subject)
    chance = rng.random()
    if chance < errs.query_subject_only:
        return (words.SEARCH, subject)
    if chance < errs.query_subject_only + errs.query_relation_only:
        return (words.SEARCH, relation)
    return (words.SEARCH, subject, relation)


def _prune(view: Sequence[Chunk], distractors: Sequence[str], rng: Random, errs: Mistakes) -> Sequence[str]:
    chance = rng.random()
    if chance < errs.prune_evidence:
        return (words.PRUNE, *(chunk.chunk_id for chunk in view))
    if chance < errs.prune_evidence + errs.prune_too_little:
        return (words.PRUNE, distractors[0])
    return (words.PRUNE, *distractors)


def _answer(task: Task, view: Sequence[Chunk], rng: Random, errs: Mistakes) -> Sequence[str]:
    """Return an answer from visible chunks: an id that is no longer in the context cannot be copied."""
    evidence = [chunk.chunk_id for chunk in view if chunk.chunk_id in task.targets]
    evidence.sort(key=task.targets.index)
    others = [chunk.chunk_id for chunk in view if chunk.chunk_id not in task.targets]
    chance = rng.random()
    if chance < errs.answer_everything:
        return (words.ANSWER, *(chunk.chunk_id for chunk in view))
    if chance < errs.answer_everything + errs.answer_last_only and evidence:
        return (words.ANSWER, evidence[-1])
    if (chance > 1 - errs.answer_wrong or not evidence) and others:
        return (words.ANSWER, rng.choice(others))
    return (words.ANSWER, *evidence)
