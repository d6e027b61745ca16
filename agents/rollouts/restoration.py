"""What a restarted sampler does with a group that its predecessor began. Pure.

restoration(group, now_ms=…, within_ms=300_000, restarts=True)
→  Restoration(resume=(attempt 3,), abandon=(), add=(6, 7))        the other five ended: they are not made again
"""

from dataclasses import dataclass

from headrace.agents.rollouts.journal import BegunGroup, Recorded


@dataclass(frozen=True, slots=True)
class Restoration:
    """What completes a group."""

    resume: tuple[Recorded, ...] = ()
    """Half-done attempts to be continued, or else ended and replaced: at most one of each member."""
    abandon: tuple[Recorded, ...] = ()
    """Half-done attempts to be ended and not replaced."""
    add: tuple[int, ...] = ()
    """Members that never began."""


def restoration(group: BegunGroup, *, now_ms: int, within_ms: int, restarts: bool) -> Restoration:
    """Return what completes ``group``.

    A group that began more than ``within_ms`` ago is not completed: grouping may have closed it, and its tokens are
    stale. Nor is one that begins so far in the future, by a clock that was wrong, or whose starts contradict one
    another. ``restarts``: whether half-done attempts can be continued or ended; otherwise the gateway that records them
    ends them, and they are members as they are.
    """
    left = sorted(group.running.values(), key=lambda each: each.trajectory_id) if restarts else []
    if group.is_doubtful or abs(now_ms - group.began_ms) > within_ms:
        return Restoration(abandon=tuple(left))
    newest = {each.place.member: each for each in left if each.place.member not in group.ended}
    superseded = tuple(each for each in left if newest.get(each.place.member) is not each)
    resume = tuple(newest[member] for member in sorted(newest))
    return Restoration(resume=resume, abandon=superseded, add=tuple(group.missing))
