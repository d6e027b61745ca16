"""The reward of an orchestrator of sub-agents, after Kimi K2.5's PARL.

    r = λ1·r_parallel + λ2·r_finish + r_perf        λ1 and λ2 are annealed to 0

r_parallel rewards assigned sub-agents (against serial collapse), r_finish sub-agents that completed their work (against
spurious parallelism). Their closed forms, λ and its schedule are not published. The forms are those of a public
replication that omitted the anneal: the number of sub-agents grew, and the task's own score fell while the reward rose.
So every reward records λ as the component's weight.
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
    *, until: int, parallel_weight: float = PARALLEL_WEIGHT, finish_weight: float = FINISH_WEIGHT
) -> list[Term]:
    """Returns the two shaping components for any r_perf; their weight is 0 from policy version ``until`` on."""
    return [
        Term("parallel", parallel, linear(parallel_weight, 0.0, until=until)),
        Term("finish", finish, linear(finish_weight, 0.0, until=until)),
    ]


SWARM = RewardSpec(
    "swarm",
    1,
    (*shaping(until=ANNEALED_AT), outcome),
    maximum=PARALLEL_WEIGHT + FINISH_WEIGHT + 1.0,
    minimum=-1.0,
)
"""``swarm@1``: PARL, with the verifiable outcome as r_perf."""
