"""The reward of a coding agent, after Cursor's Composer.

    r = tests passed − length cost − to-dos left open − failed calls

The outcome is the verdict of the environment, which runs the tests of what was submitted; 0 if nothing was. One reward
applies to every sampled token of an attempt, in all generations of its chain of summaries. Composer's weights, k and q
are not published; the values are headrace's choice. Penalties of a wrong attempt are not forgiven: breaking a call on a
hard task costs as much as on an easy one.
"""

from collections.abc import Mapping

from headrace.schemas.events import ToolStatus
from headrace.schemas.records.reward import Component
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.length_cost import Lengths, length_penalty
from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.spec import RewardSpec, Term, weighted_sum
from headrace.streams.rewards.tool_errors import tool_error_penalty

TODO_ADD, TODO_DONE = "todo_add", "todo_done"
"""Tools that add items to the to-do list and finish one; their argument is ``{"items": [...]}``."""

TODO_WEIGHT = 0.1
TOOL_ERROR_WEIGHT = 0.1
LENGTH_WEIGHT = 0.002
"""Weight of C(x): with the lengths below, about 0.1 for an attempt with 20 calls."""
LENGTH_K, LENGTH_Q = 0.01, 0.5
MOST_LENGTH_COST = 1.0
"""Largest effect of the length cost on the total of an attempt with outcome −1 and full penalties."""
LENGTHS = Lengths(thinking_tokens=1.0, acting_tokens=1.0, answer_tokens=1.0, read_tokens=0.1, tool_calls=5.0, turns=5.0)


def open_todos(trajectory: Trajectory) -> tuple[int, int]:
    """Returns how many to-dos were still open at the end, and how many there were."""
    items: dict[str, bool] = {}
    for turn in trajectory.turns:
        for use in turn.tools:
            if use.status is not ToolStatus.OK or use.tool not in (TODO_ADD, TODO_DONE):
                continue
            named = use.arguments.get("items")
            for item in named if isinstance(named, list) else ():
                if isinstance(item, str) and (use.tool == TODO_ADD or item in items):
                    items[item] = use.tool == TODO_DONE
    return sum(not done for done in items.values()), len(items)


def unfinished_todos(trajectory: Trajectory) -> float:
    """Share of the to-dos that were left open; in [0, 1], 0 without a list."""
    left, all_items = open_todos(trajectory)
    return left / all_items if all_items else 0.0


def summaries(trajectory: Trajectory) -> float:
    """Number of summaries, which is the length of the chain − 1; recorded, without effect on the total."""
    return float(sum(turn.summarized for turn in trajectory.turns))


def summary_tokens(trajectory: Trajectory) -> float:
    """Tokens sampled for summaries; recorded, without effect on the total."""
    return float(sum(turn.sampled_tokens for turn in trajectory.turns if turn.summarized))


def coder(
    *,
    version: int,
    todo_weight: float = TODO_WEIGHT,
    tool_error_weight: float = TOOL_ERROR_WEIGHT,
    length_weight: float | None = None,
    lengths: Lengths = LENGTHS,
    name: str = "coder",
) -> RewardSpec:
    """Returns the reward; weights are of penalties and not negative. ``length_weight``: ``None`` for no length cost;
    ``lengths``: what each of its six inputs weighs."""
    terms = [
        outcome,
        Term("unfinished_todos", unfinished_todos, -todo_weight),
        tool_error_penalty(weight=-tool_error_weight),
        Term("summaries", summaries, 0.0),
        Term("summary_tokens", summary_tokens, 0.0),
    ]
    if length_weight is not None:
        terms.append(length_penalty(weights=lengths, k=LENGTH_K, q=LENGTH_Q, weight=-length_weight))

    def at_least(components: Mapping[str, Component]) -> float:
        """The sum; a cost of any length stays within the bounds, so that no attempt is out of range."""
        return max(minimum, weighted_sum(components))

    minimum = -1.0 - todo_weight - tool_error_weight - (0.0 if length_weight is None else MOST_LENGTH_COST)
    return RewardSpec(name, version, tuple(terms), maximum=1.0, minimum=minimum, combine=at_least)


CODER = coder(version=1)
"""``coder@1``: tests passed, penalties for to-dos left open and for failed calls."""

CODER_SHORT = coder(version=2, length_weight=LENGTH_WEIGHT)
"""``coder@2``: in addition the nonlinear length cost."""
