"""Scripted episodes for supervised training before reinforcement learning. The script knows the evidence and makes
frequent mistakes on purpose.

A model that imitates them can call every tool and copy names and ids, but is sloppy: it works alone most of the time,
usually answers with the first chunk that it found, and when it does create a sub-agent it assigns a few sub-tasks, more
than half of them useless. So the first sub-agents of a run do not pay: creating one and waiting for it takes as long as
two lookups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from headrace.agents.search.corpus import Chunk
from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.actions import MAX_ASSIGNED
from headrace.agents.swarm.harness import Assigned, Done, Harness, Limits
from headrace.agents.swarm.subagents import scripted_reports
from headrace.agents.swarm.tasks import Source, Split, Task, make_task, task_id


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Probabilities of the demonstrator's choices and mistakes, each at its own decision."""

    delegates_wide: float = 0.35
    """Begins a wide task with a sub-agent."""
    delegates_deep: float = 0.35
    """Begins a deep task with a sub-agent, which cannot pay."""
    system_prompt_empty: float = 0.4
    """Writes a system prompt that names no relation."""
    junk: float = 0.55
    """Assigns a sub-task that names no entity, or not the relation."""
    another: float = 0.8
    """Assigns another sub-task in the same turn; decided again after each."""
    stop_early: float = 0.05
    """Answers with lookups still missing; decided before each turn after the first chunk."""
    wrong_relation: float = 0.03
    """Reads another relation."""
    answer_first: float = 0.6
    """Answers with the first chunk that it found: of a wide task one item, of a deep one the first hop."""
    answer_wrong: float = 0.1
    """Answers a wide task with a chunk that is not asked for as well."""
    malformed: float = 0.01
    """Emits tokens that are not a turn."""


FLAWLESS = Mistakes(
    delegates_wide=1.0,
    delegates_deep=0.0,
    system_prompt_empty=0.0,
    junk=0.0,
    another=1.0,
    stop_early=0.0,
    wrong_relation=0.0,
    answer_first=0.0,
    answer_wrong=0.0,
    malformed=0.0,
)
"""Every wide task by one turn of sub-tasks, every deep task alone, no mistakes."""

HELD_OUT_FIRST = 999_000_000
"""First training task that is never imitated: demonstrations from here on measure the held-out loss."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A context that only grew, with the tokens to imitate; axis T tokens."""

    token_ids: tuple[int, ...]
    """(T,)"""
    mask: tuple[int, ...]
    """(T,) 1 on tokens that the demonstrator chose, 0 on tokens that it read, also those of sub-agents."""
    outcome: float
    """Item F1 or accuracy of the answer."""


def demonstrate(
    task: Task, rng: Random, mistakes: Mistakes | None = None, limits: Limits | None = None
) -> Demonstration:
    """Return one scripted episode as a sequence to imitate."""
    harness = Harness(task, f"demonstration/{rng.random()}", limits)
    errs = mistakes or Mistakes()
    delegates = rng.random() < (errs.delegates_wide if task.source is Source.WIDE else errs.delegates_deep)
    token_ids = list(harness.observe())
    mask = [0] * len(token_ids)
    while True:
        sampled = words.encode_words((*_choose(harness, rng, errs, delegates), words.END))
        token_ids += sampled
        mask += [1] * len(sampled)
        step = harness.act(sampled)
        if isinstance(step, Done):
            return Demonstration(tuple(token_ids), tuple(mask), step.outcome)
        if isinstance(step, Assigned):
            step = harness.report(scripted_reports(step.subtasks, task.corpus, step.max_steps, rng))
        token_ids += step.ids
        mask += [0] * len(step.ids)


def demonstrations(first: int, count: int, mistakes: Mistakes | None = None) -> Iterator[list[Demonstration]]:
    """Yield scripted episodes of ``count`` training tasks from number ``first`` on, one per task."""
    for number in range(first, first + count):
        identifier = task_id(Split.TRAIN, number)
        yield [demonstrate(make_task(identifier), Random(f"demonstration/{identifier}"), mistakes)]


def _choose(harness: Harness, rng: Random, errs: Mistakes, delegates: bool) -> Sequence[str]:
    """Return the words of the next turn."""
    task = harness.task
    if harness.steps_left == 0:
        return _answer(harness, rng, errs)
    if rng.random() < errs.malformed:
        return rng.choice(((words.FIND,), (words.READ, "d00"), (words.ASSIGN, "alpha"), (words.NOTHING,)))
    if delegates and not harness.agents:
        relation = task.evidence[0].triple.relation
        empty = rng.random() < errs.system_prompt_empty
        return (words.CREATE, rng.choice(words.NAMES), _filler(rng) if empty else relation)
    if delegates and not harness.assigned:
        return _assign(harness, rng, errs)
    missing = [chunk for chunk in task.evidence if chunk.chunk_id not in harness.seen]
    begun = len(missing) < len(task.evidence)
    if not missing or (begun and rng.random() < errs.stop_early):
        return _answer(harness, rng, errs)
    return _look_up(missing[0], harness, rng, errs)


def _assign(harness: Harness, rng: Random, errs: Mistakes) -> Sequence[str]:
    """Return sub-tasks among useless ones: about the entities of a wide question in their order; about the first hop of
    a deep one, again and again, because the entities of the others are not known yet."""
    [(name, system_prompt)] = harness.agents.items()
    deep = harness.task.source is Source.DEEP
    waiting = list(harness.task.evidence)
    turn: list[str] = []
    for place in range(MAX_ASSIGNED):
        if not waiting or (place and rng.random() >= errs.another):
            break
        subject, relation = waiting[0].triple.subject, waiting[0].triple.relation
        if rng.random() < errs.junk:
            prompt: tuple[str, ...] = rng.choice(((_filler(rng),), (_filler(rng), _filler(rng)), (relation,)))
        else:
            prompt = (subject,) if relation in system_prompt else (relation, subject)
            if not deep:
                del waiting[0]
        turn += (words.ASSIGN, name, *prompt)
    return turn


def _look_up(wanted: Chunk, harness: Harness, rng: Random, errs: Mistakes) -> Sequence[str]:
    page = harness.pages.get(wanted.triple.subject)
    if page is None:
        return (words.FIND, wanted.triple.subject)
    wrong = rng.random() < errs.wrong_relation
    return (words.READ, page, rng.choice(words.RELATIONS) if wrong else wanted.triple.relation)


def _answer(harness: Harness, rng: Random, errs: Mistakes) -> Sequence[str]:
    """Return an answer from chunks that were shown, in the order in which they were."""
    task, shown = harness.task, list(harness.seen)
    found = [chunk.chunk_id for chunk in harness.seen.values() if chunk in task.evidence]
    if rng.random() < errs.answer_first:
        return (words.ANSWER, *found[:1])
    if task.source is Source.DEEP:
        return (words.ANSWER, *found[-1:])
    others = [chunk_id for chunk_id in shown if chunk_id not in task.targets]
    if others and rng.random() < errs.answer_wrong:
        found.append(rng.choice(others))
    return (words.ANSWER, *found)


def _filler(rng: Random) -> str:
    return rng.choice(words.FILLERS)
