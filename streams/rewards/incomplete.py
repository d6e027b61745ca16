"""Trajectories that no reward can be made of, whatever its spec: facts may be missing from them."""

from headrace.schemas.records.trajectory import Defect, Trajectory

INCOMPLETE_FACTS = frozenset(
    {
        Defect.CONFLICT,
        Defect.MISSING_EVENTS,
        Defect.NO_START,
        Defect.NO_END,
        Defect.BAD_EVENT,
        Defect.OVERSIZE,
    }
)
"""Defects that may hide what a reward rests on (the task, a tool result, the answer): no total under these. The others
concern tokens only; such trajectories are scored, compared with their group and then not trained."""


def hiding_defect(trajectory: Trajectory) -> Defect | None:
    """The first label that leaves the trajectory without a total, whatever its spec: no judge need be asked."""
    return next((defect for defect in trajectory.defects if defect in INCOMPLETE_FACTS), None)
