"""How much more a value is at one difficulty of tasks than at others, so that another mix of difficulties is no change.

    log turns   1 hop 1.1, 2 hops 1.6        offsets −0.2, +0.3 if three in five tasks have 1 hop: both are 1.3 without
    later       2 hops 1.6, 3 hops 2.0       3 hops are new: 1.3 by those of 2 hops, so the offset of 3 hops is +0.7

The value of a window is the mean over its tasks without their offsets. Offsets are learnt against that value: what all
difficulties have in common, as a policy that takes longer everywhere, is in the value and not in the offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.streams.watch.distances import mean

LEARNT_FROM = 400
"""Tasks of a difficulty of which its offset is learnt; then it stays."""
MAX_DIFFICULTIES = 128
"""Most difficulties with an offset."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of one difficulty."""

    tasks: int
    """Tasks that it was learnt from."""
    mean: float
    """By how much their values were above those of their windows."""


def without_offsets(values: Mapping[str, Sequence[float]], offsets: Mapping[str, Offset]) -> list[float]:
    """Returns the ``values`` by difficulty without their offsets, in the order of the difficulties. Those of a
    difficulty without an offset are left out, unless there are no offsets at all, as in the first window, or as many as
    there may be: then it will never have one, as where each task has its own."""
    unknown = Offset(0, 0.0) if not offsets or len(offsets) >= MAX_DIFFICULTIES else None
    known = [
        (offset.mean, every)
        for each, every in sorted(values.items())
        if (offset := offsets.get(each, unknown)) is not None
    ]
    return [value - offset for offset, every in known for value in every]


def with_window(offsets: Mapping[str, Offset], values: Mapping[str, Sequence[float]], at: float) -> dict[str, Offset]:
    """Returns the offsets after a window with ``values`` by difficulty, at least one of each, whose value is ``at``."""
    after = dict(offsets)
    for difficulty, every in sorted(values.items()):
        before = after.get(difficulty, Offset(0, 0.0))
        if before.tasks >= LEARNT_FROM or (not before.tasks and len(after) >= MAX_DIFFICULTIES):
            continue
        tasks = before.tasks + len(every)
        moved = before.mean + len(every) / tasks * (mean(every) - at - before.mean)
        after[difficulty] = Offset(tasks, moved)
    return after
