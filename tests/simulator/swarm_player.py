"""Players of the orchestrator that make no mistakes and differ in the sub-tasks that they assign.

episode = play_scripted(make_task("swarm-heldout-000003"), WAYS["ten useless sub-tasks"], ARMS["never-annealed"])
episode.outcome, episode.reward()
"""

from collections.abc import Callable, Mapping, Sequence

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.tasks import Source, Task
from headrace.streams.rewards.spec import RewardSpec
from tests.simulator.swarm import SwarmEpisode

Way = Callable[[Task], Sequence[str]]
"""A task → the prompts of the sub-tasks that its first turn of sub-tasks assigns; none: the player works alone."""

MANY = 10
"""Sub-tasks from which on more earn nothing (``streams/rewards/swarm.py``)."""


def _alone(task: Task) -> Sequence[str]:
    return ()


def _useful(task: Task) -> Sequence[str]:
    """One about each entity that the question names."""
    known = task.evidence if task.source is Source.WIDE else task.evidence[:1]
    return [chunk.triple.subject for chunk in known]


def _useless(task: Task) -> Sequence[str]:
    return [words.FILLERS[0]] * MANY


def _repeated(task: Task) -> Sequence[str]:
    """The useful ones, again and again."""
    useful = _useful(task)
    return [useful[place % len(useful)] for place in range(max(MANY, len(useful)))]


WAYS: Mapping[str, Way] = {
    "alone": _alone,
    "each named entity once": _useful,
    "named entities, repeated to ten": _repeated,
    "ten useless sub-tasks": _useless,
}
"""Name → the sub-tasks."""


def play_scripted(task: Task, way: Way, spec: RewardSpec, *, member: str = "0") -> SwarmEpisode:
    """Assign the sub-tasks of ``way`` at once, then look up alone what is missing while steps are left, and answer."""
    episode = SwarmEpisode(task, spec=spec, member=member)
    harness = episode.harness
    prompts = way(task)
    if prompts:
        relation = task.evidence[0].triple.relation
        episode.act(words.encode_words((words.CREATE, words.NAMES[0], relation, words.END)))
        turn = [word for prompt in prompts for word in (words.ASSIGN, words.NAMES[0], prompt)]
        episode.act(words.encode_words((*turn, words.END)))
    while not episode.is_done:
        missing = [chunk for chunk in task.evidence if chunk.chunk_id not in harness.seen]
        if not missing or harness.steps_left == 0:
            found = [chunk_id for chunk_id in task.targets if chunk_id in harness.seen]
            episode.act(words.encode_words((words.ANSWER, *found, words.END)))
            continue
        page, wanted = harness.pages.get(missing[0].triple.subject), missing[0].triple
        lookup = (words.FIND, wanted.subject) if page is None else (words.READ, page, wanted.relation)
        episode.act(words.encode_words((*lookup, words.END)))
    return episode
