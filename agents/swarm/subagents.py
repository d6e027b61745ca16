"""What sub-agents are asked and what they return; the rules of a scripted sub-agent with a stated success rate.

    SubTask("alpha", ("find", "employer"), ("ada",))  →  Report(chunk c17, completed, 2 steps)

A sub-agent is asked about what its system prompt and its prompt name together: exactly one relation and one entity.
Anything else gives it nothing to search for; it ends at once, as failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from headrace.agents.search.corpus import Chunk, Corpus
from headrace.agents.swarm import vocabulary as words
from headrace.schemas.events import EndStatus


@dataclass(frozen=True, slots=True)
class SubTask:
    """One ``assign_task``."""

    name: str
    """Name of the sub-agent."""
    system_prompt: tuple[str, ...]
    """Words of its ``create_subagent``."""
    prompt: tuple[str, ...]
    """Words of the ``assign_task``."""

    @property
    def question(self) -> tuple[str, str] | None:
        """Entity and relation that the prompts name together; ``None`` unless they name exactly one of each."""
        named = {*self.system_prompt, *self.prompt}
        entities, relations = named.intersection(words.ENTITIES), named.intersection(words.RELATIONS)
        return (entities.pop(), relations.pop()) if len(entities) == len(relations) == 1 else None


@dataclass(frozen=True, slots=True)
class Report:
    """The message of a sub-agent, and how it ended."""

    chunk: Chunk | None
    """What it found; ``None`` for the message "nothing"."""
    status: EndStatus
    steps: int
    """Its model calls."""


@dataclass(frozen=True, slots=True)
class Skill:
    """Rates of a scripted sub-agent; an attempt that neither succeeds in time fails after ``MAX_STEPS``."""

    in_two_steps: float = 0.8
    """Finds a fact that exists with a search and an answer."""
    in_three_steps: float = 0.1
    """Needs a second search."""

    def __post_init__(self) -> None:
        if min(self.in_two_steps, self.in_three_steps) < 0 or self.success_rate > 1:
            raise ValueError(f"{self}: rates must be at least 0 and add up to at most 1")

    @property
    def success_rate(self) -> float:
        """Share of answerable sub-tasks that it completes, given enough steps."""
        return self.in_two_steps + self.in_three_steps


MAX_STEPS = 4
"""Model calls after which a scripted sub-agent gives up."""


def scripted_report(subtask: SubTask, corpus: Corpus, max_steps: int, rng: Random, skill: Skill) -> Report:
    """Return the report of a scripted sub-agent with at most ``max_steps`` model calls. Takes one number of ``rng``."""
    chance = rng.random()
    chunk = corpus.by_question.get(subtask.question) if subtask.question else None
    if chunk is None:
        return Report(None, EndStatus.FAILED, 1)
    needs = 2 if chance < skill.in_two_steps else 3 if chance < skill.success_rate else None
    if needs is not None and needs <= max_steps:
        return Report(chunk, EndStatus.COMPLETED, needs)
    return Report(None, EndStatus.TURNS_EXHAUSTED, min(MAX_STEPS, max_steps))


def scripted_reports(
    subtasks: Sequence[SubTask], corpus: Corpus, max_steps: int, rng: Random, skill: Skill | None = None
) -> list[Report]:
    """Return the reports of the sub-tasks of one turn, in order."""
    return [scripted_report(subtask, corpus, max_steps, rng, skill or Skill()) for subtask in subtasks]
