"""Trajectories that no spec can score, because facts may be missing from them."""

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
"""Defects that may hide data of a reward (the task, a tool result, the answer): with these there is no total. Other
defects concern only tokens; such trajectories are scored and compared with their group, but not trained."""


def hiding_defect(trajectory: Trajectory) -> Defect | None:
    """Returns the first label that leaves the trajectory without a total under any spec; no judge is called then."""
    return next((defect for defect in trajectory.defects if defect in INCOMPLETE_FACTS), None)
