"""The reward of a search agent, after Chroma's Context-1.

    r_pre = 0.7·F_β + 0.3·trajectory_recall + answer_found
    r     = min(r_pre, max(ε, r_pre − prune_penalty − turn_penalty))        a zero stays zero

It reads only the trajectory record. The task has ``targets`` and ``answer_chunks`` (chunk ids); a tool result with
chunks is ``{"chunk_ids": [...], "text": ...}``; the answer is ``{"chunk_ids": [...]}``. Mistakes of the policy (an
answer of another shape) score 0; mistakes of the environment (a task without targets) are unscorable.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.schemas.events import Purpose, ToolStatus
from headrace.schemas.records.reward import Component
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.schedule import Schedule, linear
from headrace.streams.rewards.spec import RewardSpec, Term, Unscorable, Weight, newest_version, reward, weight_at

BETA = 2.0
"""Recall counts β² times as much as precision. Published: 4 at first, 2 at the end; ``search@1`` always uses 2."""
FIRST_BETA = 4.0
"""β at the start of the anneal."""
ANNEALED_AT = 100
"""Policy version at which β reaches 2. Published: "between epochs"; the number is headrace's choice."""
SHORT_ANNEALED_AT = 40
"""The same for runs of about a hundred steps."""
EPSILON = 0.01
"""Least reward of an attempt that earned anything, regardless of penalties. Not published; headrace's choice."""

F_BETA_WEIGHT = 0.7
RECALL_WEIGHT = 0.3
PRUNE_TOOL = "prune_chunks"
FREE_PRUNES = 3
"""Consecutive prune calls without cost."""
FREE_TURNS = 64
"""Turns without cost; the penalty reaches its maximum at twice as many."""


def f_score(precision: float, recall: float, beta: float) -> float:
    """Returns F_β = (1 + β²)·P·R / (β²·P + R), in [0, 1]; 0 if both are 0."""
    denominator = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / denominator if denominator else 0.0


def prune_cost(streaks: Iterable[int]) -> float:
    """Returns min(0.5, 0.1 · calls beyond the third of each consecutive prune streak), in [0, 0.5]."""
    return min(0.5, 0.1 * sum(max(0, streak - FREE_PRUNES) for streak in streaks))


def turn_cost(turns: int) -> float:
    """Returns 0.5 · clip((turns − 64) / 64, 0, 1), in [0, 0.5]."""
    return 0.5 * min(1.0, max(0.0, (turns - FREE_TURNS) / FREE_TURNS))


def clamped(earned: float, cost: float, epsilon: float = EPSILON) -> float:
    """Returns ``earned − cost``, at least ε and at most ``earned``: the published clamp, in which zero stays zero."""
    return min(earned, max(epsilon, earned - cost))


def context1_reward(
    precision: float,
    recall: float,
    trajectory_recall: float,
    answer_found: float,
    prune_streaks: Iterable[int],
    turns: int,
    *,
    beta: float,
    epsilon: float = EPSILON,
) -> float:
    """Returns the whole formula, in [0, 2]; each share is in [0, 1]."""
    earned = F_BETA_WEIGHT * f_score(precision, recall, beta) + RECALL_WEIGHT * trajectory_recall + answer_found
    return clamped(earned, prune_cost(prune_streaks) + turn_cost(turns), epsilon)


def shown_chunks(trajectory: Trajectory) -> set[str]:
    """Returns all chunk ids that tools returned, including pruned ones; prune calls themselves show no chunks."""
    return {
        chunk
        for turn in trajectory.turns
        for use in turn.tools
        if use.status is ToolStatus.OK and use.tool != PRUNE_TOOL
        for chunk in chunk_ids(use.result)
    }


def tools_called(trajectory: Trajectory) -> list[str]:
    """Returns the names of the tools that were called, in order."""
    return [use.tool for turn in trajectory.turns for use in turn.tools]


@dataclass(frozen=True, slots=True)
class Reads:
    """How the facts of an attempt are read from its trajectory."""

    shown: Callable[[Trajectory], set[str]]
    """Ids of all chunks that were ever shown."""
    tools: Callable[[Trajectory], Sequence[str]]
    """Names of the tools that were called, in order."""


RECORDED_TOOLS = Reads(shown_chunks, tools_called)
"""From events of tools."""


def prune_streaks(tools: Iterable[str]) -> list[int]:
    """Returns the lengths of sequences of consecutive prune calls, in order."""
    return [len(list(run)) for tool, run in groupby(tools) if tool == PRUNE_TOOL]


def context1(
    *,
    version: int,
    beta: Weight,
    epsilon: float = EPSILON,
    name: str = "search",
    records_beta: bool = True,
    records_recall: bool = False,
    records_pruning: bool = False,
    evaluates_at_last: bool = False,
    reads: Reads = RECORDED_TOOLS,
) -> RewardSpec:
    """Returns Context-1's reward with ``beta``, a constant or a schedule over the policy version.

    With ``records_beta`` the current β is recorded as a component of weight 0, which shows an anneal that never ends.
    With ``records_recall`` the answer's recall is recorded likewise; the filter of the warm-up needs it. With
    ``records_pruning``, what was pruned. ``evaluates_at_last``: evaluations are scored at the last β, so that those of
    different versions compare. ``reads``: how the facts are read.
    """
    if epsilon <= 0 or min((beta.first, beta.last) if isinstance(beta, Schedule) else (beta,)) <= 0:
        raise ValueError(f"epsilon is {epsilon} and beta {beta}: both must be above 0")

    def beta_of(trajectory: Trajectory) -> float:
        started = trajectory.started
        if evaluates_at_last and isinstance(beta, Schedule) and started and started.purpose is Purpose.EVALUATE:
            return beta.last
        return weight_at(beta, newest_version(trajectory))

    def f_beta(trajectory: Trajectory) -> float:
        """F_β of the answer against the targets, in [0, 1]. Only shown chunks can be found; guesses are wrong."""
        targets = _task_chunks(trajectory, "targets")
        answered = chunk_ids(trajectory.answer)
        if not answered:
            return 0.0
        found = len(answered & targets & reads.shown(trajectory))
        return f_score(found / len(answered), found / len(targets), beta_of(trajectory))

    @reward(weight=RECALL_WEIGHT)
    def trajectory_recall(trajectory: Trajectory) -> float:
        """Share of the targets ever shown, pruned or not; in [0, 1]."""
        targets = _task_chunks(trajectory, "targets")
        return len(targets & reads.shown(trajectory)) / len(targets)

    @reward(weight=1.0)
    def answer_found(trajectory: Trajectory) -> float:
        """1 if a chunk that holds the answer was retrieved, else 0."""
        return float(not _task_chunks(trajectory, "answer_chunks").isdisjoint(reads.shown(trajectory)))

    @reward(weight=-1.0)
    def prune_penalty(trajectory: Trajectory) -> float:
        """Cost of pruning one by one, in [0, 0.5]."""
        return prune_cost(prune_streaks(reads.tools(trajectory)))

    @reward(weight=-1.0)
    def turn_penalty(trajectory: Trajectory) -> float:
        """Cost of searching without end, in [0, 0.5]."""
        return turn_cost(len(trajectory.turns))

    @reward(weight=0.0)
    def output_recall(trajectory: Trajectory) -> float:
        """Share of the targets that were shown and are in the answer, in [0, 1]; without effect on the total."""
        targets = _task_chunks(trajectory, "targets")
        return len(chunk_ids(trajectory.answer) & targets & reads.shown(trajectory)) / len(targets)

    def beta_in_force(trajectory: Trajectory) -> float:
        """β at the trajectory's policy version; recorded, without effect on the total."""
        return beta_of(trajectory)

    @reward(weight=0.0)
    def chunks_pruned(trajectory: Trajectory) -> float:
        """Number of chunks that were pruned; without effect on the total."""
        return float(len(_pruned(trajectory)))

    @reward(weight=0.0)
    def evidence_pruned(trajectory: Trajectory) -> float:
        """Number of targets among them; without effect on the total. 1 − this / ``chunks_pruned`` is the accuracy."""
        return float(sum(chunk in _task_chunks(trajectory, "targets") for chunk in _pruned(trajectory)))

    @reward(weight=0.0)
    def longest_streak(trajectory: Trajectory) -> float:
        """Largest number of consecutive prune calls, refused ones included; without effect on the total."""
        return float(max(prune_streaks(reads.tools(trajectory)), default=0))

    def clamp(components: Mapping[str, Component]) -> float:
        terms = [component.weight * component.value for component in components.values()]
        earned, cost = sum(term for term in terms if term > 0), -sum(term for term in terms if term < 0)
        return clamped(earned, cost, epsilon)

    return RewardSpec(
        name,
        version,
        (
            Term("f_beta", f_beta, F_BETA_WEIGHT),
            trajectory_recall,
            answer_found,
            prune_penalty,
            turn_penalty,
            *((Term("beta", beta_in_force, 0.0),) if records_beta else ()),
            *((output_recall,) if records_recall else ()),
            *((chunks_pruned, evidence_pruned, longest_streak) if records_pruning else ()),
        ),
        maximum=F_BETA_WEIGHT + RECALL_WEIGHT + 1.0,
        minimum=0.0,
        combine=clamp,
    )


SEARCH = context1(version=1, beta=BETA, records_beta=False)
"""``search@1``: Context-1's reward at β = 2."""

SEARCH_ANNEALED = context1(version=2, beta=linear(FIRST_BETA, BETA, until=ANNEALED_AT))
"""``search@2``: recall counts more at first, as published; β goes from 4 to 2."""

SEARCH_RECALLS = context1(version=3, beta=BETA, records_beta=False, records_recall=True)
"""``search@3``: the totals of ``search@1``, with the answer's recall recorded in addition to the trajectory's; the
filter of the supervised warm-up needs both."""

SEARCH_PRUNING = context1(
    version=5,
    beta=linear(FIRST_BETA, BETA, until=SHORT_ANNEALED_AT),
    records_recall=True,
    records_pruning=True,
    evaluates_at_last=True,
)
"""``search@5``: ``search@2`` with an anneal for short runs, and with what was recalled and pruned; evaluations are
scored at the last β."""


def _pruned(trajectory: Trajectory) -> list[str]:
    return [chunk for turn in trajectory.turns for chunk in turn.pruned_ids]


def _task_chunks(trajectory: Trajectory, field: str) -> set[str]:
    task = trajectory.started.task if trajectory.started else {}
    chunks = task.get(field)
    if not isinstance(chunks, list) or not chunks or not all(isinstance(chunk, str) for chunk in chunks):
        raise Unscorable(f"no_{field}")
    return set(chunks)


def chunk_ids(value: object) -> set[str]:
    """Returns the ids in ``{"chunk_ids": [...]}``; empty for any other shape. A non-text item counts as a wrong id."""
    items = value.get("chunk_ids") if isinstance(value, dict) else None
    if not isinstance(items, list):
        return set()
    return {item if isinstance(item, str) else f"not a chunk id: {item!r}" for item in items}
