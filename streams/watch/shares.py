"""How common each label is, and which has become more common: action trigrams, reasons, tenants, tools.

before  search>search>answer 0.60, ^>say>$ 0.02      now  ^>say>$ 0.16      the risen label is ^>say>$, by 0.14

Shares are usual if they hold still: while they differ from one half of the first windows to the other, as those of a
young policy that learns within a few dozen steps, they are learnt again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

MAX_LABELS = 128
"""Most labels whose shares are kept: the most common ones. A label that is not kept counts as new."""
FOLLOWS = 0.01
"""Share by which the kept shares approach those of a new window, as a chart's mean does."""
LEARNT_FROM = 25
"""Number of windows of which the shares are the mean; from then on they follow."""
_HALF = LEARNT_FROM // 2


@dataclass(frozen=True, slots=True)
class Shares:
    """The usual share of each label."""

    windows: int = 0
    """Windows so far."""
    share: dict[str, float] = field(default_factory=dict)
    """Share of trajectories with the label, in [0, 1]."""
    earlier: dict[str, float] = field(default_factory=dict)
    """The shares of the first half of the windows, until the second half is compared with them."""


def shares_of(labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns the share of trajectories that have each label; ``labels`` are those of each trajectory."""
    counts = Counter(label for each in labels for label in dict.fromkeys(each))
    return {label: count / len(labels) for label, count in sorted(counts.items())}


def risen(usual: Shares, now: Mapping[str, float]) -> tuple[str, float]:
    """Returns the label whose share in ``now`` is most above its usual one, and by how much; an empty label and 0 if
    none is above it."""
    best, by = "", 0.0
    for label, share in now.items():
        rise = share - usual.share.get(label, 0.0)
        if rise > by:
            best, by = label, rise
    return best, by


def followed(usual: Shares, now: Mapping[str, float], *, frozen: bool = False, level: float = inf) -> Shares:
    """Returns the usual shares after a window with the shares ``now``. ``frozen``: they stay, because a change is
    suspected. ``level``: by how much a share may differ between the two halves of the windows that they are learnt
    from; if one differs by more, only the second half stays, as the first half of another attempt."""
    if frozen:
        return usual
    rate = max(FOLLOWS, 1 / (usual.windows + 1)) if usual.windows < LEARNT_FROM else FOLLOWS
    moved = {
        label: share + rate * (now.get(label, 0.0) - share)
        for label, share in ((label, usual.share.get(label, 0.0)) for label in sorted({*usual.share, *now}))
    }
    kept = sorted(moved.items(), key=lambda each: (-each[1], each[0]))[:MAX_LABELS]
    after = Shares(usual.windows + 1, dict(sorted(kept)), usual.earlier)
    if after.windows == _HALF:
        return replace(after, earlier=after.share)
    return _compared(after, level) if after.windows == LEARNT_FROM and after.earlier else after


def _compared(learnt: Shares, level: float) -> Shares:
    """Returns the shares of all first windows, or of their second half alone if they are not level."""
    weight = LEARNT_FROM / (LEARNT_FROM - _HALF)
    change = {label: weight * (share - learnt.earlier.get(label, 0.0)) for label, share in learnt.share.items()}
    if max(map(abs, change.values()), default=0.0) <= level:
        return replace(learnt, earlier={})
    later = {label: max(0.0, learnt.earlier.get(label, 0.0) + by) for label, by in change.items()}
    return Shares(_HALF, later, later)
