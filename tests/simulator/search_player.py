"""A scripted player of the search harness that knows the evidence and makes no mistake: what an episode's limits allow.

    play_perfectly(task, Limits(pruning=False)).reward()

It searches hop by hop and answers with all evidence that it has found. If the next search could exhaust the budget, or
would be refused, it removes everything but evidence, where it may prune, and otherwise answers with what it has. A
bold player searches on until the budget ends the attempt: without an answer, but with the reward of what it has seen.
"""

from collections.abc import Sequence

from headrace.agents.search import vocabulary as words
from headrace.agents.search.harness import Limits
from headrace.agents.search.tasks import Task
from tests.simulator.search import SearchEpisode

_AROUND_A_RESULT = 18
"""Tokens that a search adds beyond its chunks, at most: the call, a marker, the usage line with its advice."""


def play_perfectly(task: Task, limits: Limits | None = None, *, bold: bool = False) -> SearchEpisode:
    """Returns the ended attempt. ``bold``: no search is left out because it could exhaust the budget."""
    episode = SearchEpisode(task, limits=limits)
    while not episode.is_done:
        episode.act(words.encode_words((*_choose(episode, bold), words.END)))
    return episode


def _choose(episode: SearchEpisode, bold: bool) -> Sequence[str]:
    harness, limits, task = episode.harness, episode.harness.limits, episode.harness.task
    missing = [chunk for chunk in task.chain if chunk.chunk_id not in harness.seen]
    if missing and _has_room(episode, bold):
        return (words.SEARCH, missing[0].triple.subject, missing[0].triple.relation)
    useless = [chunk.chunk_id for chunk in harness.view if chunk.chunk_id not in task.targets]
    if missing and limits.pruning and useless:
        return (words.PRUNE, *useless)
    return (words.ANSWER, *(chunk.chunk_id for chunk in task.chain if chunk.chunk_id in harness.seen))


def _has_room(episode: SearchEpisode, bold: bool) -> bool:
    harness, limits = episode.harness, episode.harness.limits
    refused = limits.pruning and harness.used >= limits.hard
    fits = harness.context_tokens + limits.search_tokens + _AROUND_A_RESULT < limits.budget
    return not refused and (bold or fits)
