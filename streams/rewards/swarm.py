"""The reward of an orchestrator of sub-agents, after Kimi K2.5's PARL.

    r = λ1·r_parallel + λ2·r_finish + r_perf        λ1 and λ2 come down to 0 as the policy learns

r_parallel pays for sub-agents that were given work (against serial collapse), r_finish for those that came back with
it done (against spurious parallelism). Their closed forms, λ and its curve are not published; the forms are those of
a public replication, which forgot the anneal: sub-agents multiplied, and the task's own score fell while the reward
rose. So λ stands on record with every reward, as the component's weight.
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
"""Policy version from which both are 0. Ours."""
ENOUGH = 10
"""Sub-agents beyond which another one earns nothing."""


def parallel_share(assigned: int) -> float:
    """``min(assigned, 10) / 10``, in [0, 1]."""
    return min(assigned, ENOUGH) / ENOUGH


def finished_share(assigned: int, finished: int) -> float:
    """``finished / assigned``, in [0, 1]; 0 where nothing was assigned."""
    return min(1.0, finished / assigned) if assigned else 0.0


def parallel(trajectory: Trajectory) -> float:
    """Sub-agents that were given work, as a share of enough of them; in [0, 1]."""
    return parallel_share(trajectory.subagents_assigned)


def finish(trajectory: Trajectory) -> float:
    """Share of the sub-agents that were given work and completed it; in [0, 1], 0 without any."""
    return finished_share(trajectory.subagents_assigned, trajectory.subagents_finished)


def shaping(
    *, until: int, parallel_weight: float = PARALLEL_WEIGHT, finish_weight: float = FINISH_WEIGHT
) -> list[Term]:
    """The two shaping components, to stand beside any r_perf; from policy version ``until`` on they weigh 0."""
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
