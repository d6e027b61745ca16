"""The search agent under a budget that questions of several hops cannot meet unless it prunes its context.

    PRUNING_TASKS.training(1_000_017, level=1).task_id   →  "search-train-1000017-2hops-b90-l1"

Tasks go from a roomy budget to a tight one and from few hops to many, so that searching and answering are learnt before
pruning pays. The budget is part of every usage line, so the policy sees which one applies.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as count_from
from itertools import islice
from random import Random
from typing import Any

from headrace.agents.conversation import Conversation
from headrace.agents.rollouts.attempts import Agent
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.agents.search.demonstrations import Demonstration, Mistakes, demonstrate
from headrace.agents.search.episode import run_episode
from headrace.agents.search.harness import Limits
from headrace.agents.search.rollouts import agent_of
from headrace.agents.search.tasks import HOP_WEIGHTS, Split, Task, hops_of, make_task, task_id
from headrace.agents.trajectory import Trajectory

TIGHT = Limits(budget=90, soft=40, hard=45)
"""After one search of a question with several hops, every tool but pruning is refused."""

ROOMY = Limits(budget=120, soft=120, hard=120)
"""One and two hops fit without a prune."""

WARM_UP_MISTAKES = replace(
    Mistakes(), stop_early=0.35, stop_late=0.15, ignore_budget=0.15, prune_evidence=0.05, prune_too_little=0.1
)
"""Stops and prunes are less often wrong than in the demonstrations of the other base; the rest is as sloppy."""


@dataclass(frozen=True, slots=True)
class Level:
    """A difficulty."""

    name: str
    """Its name in the metrics."""
    limits: Limits
    """Limits of its attempts."""
    hops: Mapping[int, float]
    """Share of its tasks by number of hops."""


LEVELS = (
    Level("1-2 hops, roomy", ROOMY, {1: 0.35, 2: 0.65}),
    Level("1-2 hops", TIGHT, {1: 0.35, 2: 0.65}),
    Level("1-3 hops", TIGHT, {1: 0.1, 2: 0.4, 3: 0.5}),
)
"""From easy to hard. Without a curriculum, all tasks are like those of the last level."""

CURRICULUM = CurriculumSettings(raise_at=0.5, review=0.1)
"""A group's pass rate counts attempts with at least half of the maximum, that is those that saw the answer."""

_TASK_ID = re.compile(r"search-(?:train|heldout)-\d+-(\d)hops-b\d+(?:-l\d)?")


@dataclass(frozen=True, slots=True)
class BudgetedTask:
    """A question, and the limits under which it is attempted."""

    task: Task
    """The question."""
    limits: Limits
    """The limits."""
    level: int | None
    """Index in :data:`LEVELS`; ``None`` for a held-out task, or without a curriculum."""

    @property
    def task_id(self) -> str:
        """The question's id with the budget and the level."""
        level = "" if self.level is None else f"-l{self.level}"
        return f"{self.task.task_id}-b{self.limits.budget}{level}"

    @property
    def facts(self) -> dict[str, Any]:
        """The question's facts, with the budget."""
        facts, budget = self.task.facts, self.limits.budget
        return {**facts, "budget": budget, "difficulty": f"{facts['hops']} hops, {budget} tokens"}


@dataclass(frozen=True, slots=True)
class PruningTasks:
    """Questions under a budget. See :class:`headrace.agents.rollouts.tasks.TaskSource`."""

    levels: Sequence[str] = tuple(level.name for level in LEVELS)

    def training(self, number: int, level: int | None = None) -> BudgetedTask:
        """Return training task ``number``; its hops are drawn by the shares of its level."""
        if level is not None and not 0 <= level < len(LEVELS):
            raise ValueError(f"level {level} is outside [0, {len(LEVELS)}): the levels are {', '.join(self.levels)}")
        chosen = LEVELS[-1 if level is None else level]
        rng = Random(f"headrace/pruning/{number}/{level}")
        [hops] = rng.choices(list(chosen.hops), weights=list(chosen.hops.values()))
        return BudgetedTask(make_task(task_id(Split.TRAIN, number, hops)), chosen.limits, level)

    def held_out(self, number: int) -> BudgetedTask:
        """Return held-out task ``number`` under the tight budget: one, two and three hops by turns."""
        hops = sorted(HOP_WEIGHTS)[number % len(HOP_WEIGHTS)]
        return BudgetedTask(make_task(task_id(Split.HELD_OUT, number, hops)), TIGHT, None)


PRUNING_TASKS = PruningTasks()


def hops_in(identifier: str) -> int:
    """Return the hops of the task with this id. Raises ``ValueError`` if it is none of :class:`PruningTasks`."""
    match = _TASK_ID.fullmatch(identifier)
    if match is None:
        raise ValueError(f"{identifier!r} is not a task id such as search-train-1000017-2hops-b90-l1")
    return int(match[1])


def pruning_agent() -> Agent[BudgetedTask]:
    """Return the search agent, with the limits of each task."""

    async def episode(
        conversation: Conversation, task: BudgetedTask, trajectory: Trajectory, temperature: float
    ) -> None:
        await run_episode(conversation, task.task, trajectory, temperature=temperature, limits=task.limits)

    return agent_of(episode)


def warm_up_demonstrations(first: int, count: int, limits: Limits = TIGHT) -> Iterator[list[Demonstration]]:
    """Yield ``count`` scripted episodes under ``limits``, at training tasks from number ``first`` on.

    Three in four questions of one hop are left out, because they show no prune.
    """
    wanted = (
        identifier
        for number in count_from(first)
        for identifier in [task_id(Split.TRAIN, number)]
        if hops_of(identifier) > 1 or not number % 4
    )
    for identifier in islice(wanted, count):
        yield demonstrate(make_task(identifier), Random(f"demonstration/{identifier}"), WARM_UP_MISTAKES, limits)
