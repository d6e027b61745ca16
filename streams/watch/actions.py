"""A trajectory as a sequence of actions, and what monitors count in it.

    search · search · prune · answer        trigrams ^>search>search, search>search>prune, …, prune>answer>$

An action is what a turn did: the names of its tools (a tool that is called several times counts once), ``prune``,
``summary``, ``say`` if it did nothing (a text to the user), and ``answer`` for the last turn of that kind.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from headrace.schemas.records.trajectory import Trajectory, Turn

BEGIN, END = "^", "$"
SAY, ANSWER, PRUNE, SUMMARY = "say", "answer", "prune", "summary"

MAX_GRAMS = 48
"""Most trigrams of one trajectory that are counted."""
MAX_ACTION = 64
"""Longest name of an action, in characters."""
MAX_CALLED = 16
"""Most tools and other actions of one trajectory whose calls are counted: the commonest."""
CALL = "call:"
"""Prefix of the number of calls of one tool."""


def action(turn: Turn) -> str:
    """Returns what the turn did."""
    names = list(dict.fromkeys(use.tool for use in turn.tools))
    if not names and turn.pruned_ids:
        names = [PRUNE]
    if turn.summarized:
        names.append(SUMMARY)
    return "+".join(sorted(names))[:MAX_ACTION] if names else SAY


def actions(trajectory: Trajectory) -> list[str]:
    """Returns the actions of ``trajectory``, in order."""
    done = [action(turn) for turn in trajectory.turns]
    return [*done[:-1], ANSWER] if done and done[-1] == SAY else done


def calls(trajectory: Trajectory, done: Sequence[str]) -> dict[str, int]:
    """Returns how often each tool is called, and each action that is no call; ``done``: the actions. At most 16."""
    counts: Counter[str] = Counter()
    for turn, action in zip(trajectory.turns, done, strict=True):
        counts.update([use.tool[:MAX_ACTION] for use in turn.tools] or [action])
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:MAX_CALLED])


def trigrams(done: Sequence[str]) -> list[str]:
    """Returns the distinct trigrams of actions ``done`` between a begin and an end mark, in order, at most 48."""
    marked = [BEGIN, *done, END]
    found = (">".join(marked[start : start + 3]) for start in range(max(1, len(marked) - 2)))
    return list(dict.fromkeys(found))[:MAX_GRAMS]


def longest_streak(done: Sequence[str]) -> int:
    """Returns the length of the longest sequence of equal actions; 0 without any."""
    return max((len(list(run)) for _, run in groupby(done)), default=0)


def prune_streak(trajectory: Trajectory) -> int:
    """Returns the longest sequence of consecutive prune calls. A call is an action of a turn that removed pieces, or a
    tool whose name begins with ``prune``; a turn that removes several pieces at once is one."""
    calls: list[bool] = []
    for turn in trajectory.turns:
        tools = [use.tool.startswith(PRUNE) for use in turn.tools]
        calls += tools if any(tools) else [bool(turn.pruned_ids)]
    return max((len(list(run)) for prunes, run in groupby(calls) if prunes), default=0)
