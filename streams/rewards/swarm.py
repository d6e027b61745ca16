"""The reward of an orchestrator of sub-agents, after Kimi K2.5's PARL.

    r = λ1·r_parallel + λ2·r_finish + r_perf        λ1 and λ2 are annealed to 0

r_parallel rewards assigned sub-agents (against serial collapse), r_finish sub-agents that completed their work (against
spurious parallelism). Their closed forms, λ and its schedule are not published. The forms are those of a public
replication that omitted the anneal: the number of sub-agents grew, and the task's own score fell while the reward rose.
So every reward records λ as the component's weight. The other specs here are the arms of ``headrace demo swarm``, meant
to show what the anneal prevents; ``agents/swarm/README.md`` says what they have shown so far.
"""

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.schedule import linear
from headrace.streams.rewards.spec import RewardSpec, Term

PARALLEL_WEIGHT = 0.3
"""λ1 at version 0."""
FINISH_WEIGHT = 0.2
"""λ2 at version 0."""
ANNEALED_AT = 200
"""Policy version from which both are 0; headrace's choice."""
ENOUGH = 10
"""Number of sub-agents from which on more earn nothing."""


def parallel_share(assigned: int) -> float:
    """Returns ``min(assigned, 10) / 10``, in [0, 1]."""
    return min(assigned, ENOUGH) / ENOUGH


def finished_share(assigned: int, finished: int) -> float:
    """Returns ``finished / assigned``, in [0, 1]; 0 if nothing was assigned."""
    return min(1.0, finished / assigned) if assigned else 0.0


def parallel(trajectory: Trajectory) -> float:
    """Assigned sub-agents as a share of 10, at most 1; in [0, 1]."""
    return parallel_share(trajectory.subagents_assigned)


def finish(trajectory: Trajectory) -> float:
    """Share of the assigned sub-agents that completed their work; in [0, 1], 0 without any."""
    return finished_share(trajectory.subagents_assigned, trajectory.subagents_finished)


def shaping(
    *, until: int | None, parallel_weight: float = PARALLEL_WEIGHT, finish_weight: float = FINISH_WEIGHT
) -> list[Term]:
    """Returns the two shaping components for any r_perf; their weight is 0 from policy version ``until`` on.

    ``None``: their weight never changes, which is the mistake of the public replication. A component of weight 0 is
    recorded all the same.
    """
    return [
        Term(name, function, weight if until is None else linear(weight, 0.0, until=until))
        for name, function, weight in (("parallel", parallel, parallel_weight), ("finish", finish, finish_weight))
    ]


SWARM = RewardSpec(
    "swarm",
    1,
    (*shaping(until=ANNEALED_AT), outcome),
    maximum=PARALLEL_WEIGHT + FINISH_WEIGHT + 1.0,
    minimum=-1.0,
)
"""``swarm@1``: PARL, with the verifiable outcome as r_perf."""

SHORT_ANNEALED_AT = 30
"""Policy version from which λ is 0 in ``swarm@2``, for runs of less than a hundred steps."""


def _arm(name: str, version: int, terms: list[Term], shaped: float) -> RewardSpec:
    return RewardSpec(name, version, (*terms, outcome), maximum=shaped + 1.0, minimum=-1.0)


SWARM_SHORT = _arm("swarm", 2, shaping(until=SHORT_ANNEALED_AT), PARALLEL_WEIGHT + FINISH_WEIGHT)
"""``swarm@2``: ``swarm@1`` with a shorter anneal."""
SWARM_UNSHAPED = _arm("swarm-unshaped", 1, shaping(until=None, parallel_weight=0.0, finish_weight=0.0), 0.0)
"""``swarm-unshaped@1``: the outcome alone; r_parallel and r_finish are recorded with weight 0."""
SWARM_NEVER_ANNEALED = _arm("swarm-never-annealed", 1, shaping(until=None), PARALLEL_WEIGHT + FINISH_WEIGHT)
"""``swarm-never-annealed@1``: the mistake of the public replication, to be seen on purpose."""
SWARM_PARALLEL_ONLY = _arm("swarm-parallel-only", 1, shaping(until=None, finish_weight=0.0), PARALLEL_WEIGHT)
"""``swarm-parallel-only@1``: without r_finish and without an anneal, so useless sub-tasks pay as much as real ones."""

ARMS = {
    "none": SWARM_UNSHAPED,
    "annealed": SWARM_SHORT,
    "never-annealed": SWARM_NEVER_ANNEALED,
    "parallel-only": SWARM_PARALLEL_ONLY,
}
"""Name of an arm → its reward."""
