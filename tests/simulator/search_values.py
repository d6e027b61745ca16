"""What attempts of the search agent achieved, and how they pruned, as named values for a curve.

    {"reward": 0.61, "reward_3": 0.35, "pruned_3": 0.8, "prune_accuracy": 0.93, "longest_streak": 2, …}

``NAME_3`` are over tasks of three hops. Rewards are shares of their maximum.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from headrace.agents.search.tasks import HOP_WEIGHTS
from headrace.schemas.events import EndStatus
from headrace.streams.rewards.context1 import prune_streaks, tools_called
from tests.simulator.sampling import Attempt
from tests.simulator.search import SearchEpisode


def search_values(attempts: Sequence[Attempt[SearchEpisode]]) -> dict[str, float]:
    """Returns the values of ``attempts``, which must have ended and be scored by a spec that records both recalls.

    reward, trajectory_recall, output_recall, answered, pruned (share of attempts that pruned), turns: all and by hops.
    prune_accuracy: share of removed chunks that are no evidence; absent if nothing was removed. longest_streak: largest
    number of consecutive prune calls, also refused ones.
    """
    episodes = [attempt.episode for attempt in attempts]
    values = dict(_means(episodes, ""))
    for hops in HOP_WEIGHTS:
        of_hops = [episode for episode in episodes if len(episode.harness.task.chain) == hops]
        values |= dict(_means(of_hops, f"_{hops}"))
    removed = [
        chunk in episode.harness.task.targets
        for episode in episodes
        for turn in episode.turns
        for chunk in turn.pruned_ids
    ]
    if removed:
        values["prune_accuracy"] = 1 - fmean(removed)
    streaks = [streak for episode in episodes for streak in prune_streaks(tools_called(episode.trajectory()))]
    values["longest_streak"] = float(max(streaks, default=0))
    return values


def _means(episodes: Sequence[SearchEpisode], suffix: str) -> Iterator[tuple[str, float]]:
    if not episodes:
        return
    scores = [episode.score() for episode in episodes]
    yield f"reward{suffix}", fmean(episode.reward() / episode.maximum for episode in episodes)
    for name in ("trajectory_recall", "output_recall"):
        yield f"{name}{suffix}", fmean(score.components[name].value for score in scores)
    yield f"answered{suffix}", fmean(episode.status is EndStatus.COMPLETED for episode in episodes)
    yield f"pruned{suffix}", fmean(any(turn.pruned_ids for turn in episode.turns) for episode in episodes)
    yield f"turns{suffix}", fmean(len(episode.turns) for episode in episodes)
