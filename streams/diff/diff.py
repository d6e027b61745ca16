"""Computes what another reward, policy or code would have changed: a pure comparison of two :class:`DiffSide`.

Rewards are compared by value, by rank, and inside groups, where only the order of attempts at one task matters. Then
the consequences are compared: signs of advantages, groups that enter and leave the variance filter, and fates.
"""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

from headrace.streams.diff.ranks import kendall, spearman
from headrace.streams.diff.side import TRAINED, Attempt, DiffSide, group_states
from headrace.streams.grouping.group_policy import TOLERANCE

MAX_MOVERS = 10
"""Most trajectories that are listed."""

Moves: TypeAlias = Mapping[tuple[str, str], int]
"""(before, after) → count."""

ABSENT = "—"
"""Sign of a trajectory without an advantage: it is not trained."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of a distribution."""

    count: int
    mean: float
    sd: float
    """Population standard deviation."""
    quantiles: tuple[float, float, float, float, float]
    """Minimum, 10 %, median, 90 %, maximum."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A trajectory whose reward changed much."""

    trajectory_id: str
    before: float
    after: float
    fates: tuple[str, str]

    @property
    def change(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class DiffRow:
    """The comparison of one task, agent or version."""

    key: str
    compared: int
    mean_before: float | None
    mean_after: float | None
    flips: int
    """Number of advantages whose sign is reversed."""
    trained_before: int
    trained_after: int


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two sides."""

    before: str
    """Name of the first side."""
    after: str
    """Name of the second side."""
    specs: tuple[tuple[str, ...], tuple[str, ...]]
    """Reward specs of each side."""
    compared: int
    """Trajectories on both sides."""
    only_before: int
    """Trajectories only on the first side."""
    only_after: int
    """Trajectories only on the second side."""
    rewards: tuple[Spread | None, Spread | None]
    """Rewards of the trajectories that have one on both sides."""
    change: Spread | None
    """After minus before, per trajectory."""
    changed: int
    """Rewards that differ by more than the tolerance."""
    spearman: float | None
    """Rank correlation ρ of the two rewards."""
    kendall: float | None
    """Rank correlation τ_b."""
    labels: Moves
    """``scored``, or the reason for no reward."""
    pairs: Moves
    """Order of each pair of one group, the lesser before first: ``<`` or ``=`` before, and ``<``, ``=`` or ``>`` after.
    """
    signs: Moves
    """Signs of advantages: ``+``, ``0``, ``−``, and ``—`` for trajectories that are not trained."""
    fates: Moves
    """Fates of trajectories."""
    groups: Moves
    """States of groups: ``trained``, ``open``, or the reason of the rejection."""
    movers: tuple[Mover, ...]
    """The largest changes."""
    points: tuple[tuple[float, float, str, str], ...]
    """(reward before, reward after, fate before, fate after), for the picture."""

    @property
    def flips(self) -> int:
        """Number of advantages whose sign is reversed."""
        return _flips(self.signs)

    @property
    def reversed_pairs(self) -> int:
        """Number of pairs of one group whose order is reversed."""
        return self.pairs.get(("<", ">"), 0)

    @property
    def entering(self) -> dict[str, int]:
        """Groups that carry a gradient only after, by the earlier reason."""
        return {was: count for (was, now), count in self.groups.items() if now == TRAINED and was != TRAINED}

    @property
    def leaving(self) -> dict[str, int]:
        """Groups that carry a gradient only before, by the later reason."""
        return {now: count for (was, now), count in self.groups.items() if was == TRAINED and now != TRAINED}

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        moved = (self.labels, self.pairs, self.signs, self.fates, self.groups)
        stays = all(was == now for moves in moved for was, now in moves)
        return stays and not (self.changed or self.only_before or self.only_after)


def diff(before: DiffSide, after: DiffSide) -> Diff:
    """Compare ``before`` with ``after``. Takes about 200 bytes per trajectory in addition to the sides themselves."""
    both = sorted(before.attempts.keys() & after.attempts.keys())
    sides = [(name, before.attempts[name], after.attempts[name]) for name in both]
    points = [
        (name, old.total, new.total, (old.fate, new.fate))
        for name, old, new in sides
        if old.total is not None and new.total is not None
    ]
    olds, news = [old for _, old, _, _ in points], [new for _, _, new, _ in points]
    changes = [new - old for old, new in zip(olds, news, strict=True)]
    movers = sorted((Mover(*point) for point in points), key=lambda mover: (-abs(mover.change), mover.trajectory_id))
    groups_before, groups_after = group_states(before), group_states(after)
    shared = groups_before.keys() & groups_after.keys()
    return Diff(
        before=before.name,
        after=after.name,
        specs=(_specs(before), _specs(after)),
        compared=len(both),
        only_before=len(before.attempts) - len(both),
        only_after=len(after.attempts) - len(both),
        rewards=(_spread(olds), _spread(news)),
        change=_spread(changes),
        changed=sum(abs(change) > TOLERANCE for change in changes),
        spearman=spearman(olds, news),
        kendall=kendall(olds, news),
        labels=_moves((_label(old), _label(new)) for _, old, new in sides),
        pairs=_pairs([(old, new) for _, old, new in sides]),
        signs=_moves((_sign(old), _sign(new)) for _, old, new in sides),
        fates=_moves((old.fate, new.fate) for _, old, new in sides),
        groups=_moves((groups_before[name], groups_after[name]) for name in shared),
        movers=tuple(mover for mover in movers[:MAX_MOVERS] if abs(mover.change) > TOLERANCE),
        points=tuple((old, new, *fates) for _, old, new, fates in points),
    )


KEYS: Mapping[str, Callable[[Attempt], str]] = {
    "task": lambda attempt: attempt.task,
    "agent": lambda attempt: attempt.agent,
    "version": lambda attempt: "unknown" if attempt.version is None else str(attempt.version),
}
"""Keys by which a comparison can be broken down."""


def rows(before: DiffSide, after: DiffSide, by: str) -> list[DiffRow]:
    """Returns the comparison by one of ``KEYS``: most flips first, then the largest change of the mean."""
    parts: dict[str, list[tuple[Attempt, Attempt]]] = defaultdict(list)
    for name in before.attempts.keys() & after.attempts.keys():
        parts[KEYS[by](after.attempts[name])].append((before.attempts[name], after.attempts[name]))
    made = [_row(key, sides) for key, sides in parts.items()]
    return sorted(
        made, key=lambda row: (-row.flips, -abs((row.mean_after or 0) - (row.mean_before or 0)), *_by_number(row.key))
    )


def _by_number(key: str) -> tuple[int, str]:
    """Sorts 2 before 10, and numbers before names."""
    return (len(key), key) if key.isdecimal() else (sys.maxsize, key)


def only_run(side: DiffSide, run: str) -> DiffSide:
    """Returns the part of ``side`` that belongs to one training run."""
    kept = {name: attempt for name, attempt in side.attempts.items() if attempt.run == run}
    return DiffSide(side.name, side.wanted, kept)


def as_json(found: Diff) -> dict[str, Any]:
    """Returns ``found`` as JSON values, without single trajectories; a move is ``"before > after": count``."""
    shown = asdict(replace(found, points=()))
    del shown["points"]
    for name in ("labels", "pairs", "signs", "fates", "groups"):
        shown[name] = {f"{was} > {now}": count for (was, now), count in shown[name].items()}
    counted = {"flips": found.flips, "reversed_pairs": found.reversed_pairs}
    return shown | counted | {"entering": found.entering, "leaving": found.leaving, "is_empty": found.is_empty}


def _row(key: str, sides: Sequence[tuple[Attempt, Attempt]]) -> DiffRow:
    scored = [(old.total, new.total) for old, new in sides if old.total is not None and new.total is not None]
    return DiffRow(
        key=key,
        compared=len(sides),
        mean_before=_mean([old for old, _ in scored]),
        mean_after=_mean([new for _, new in scored]),
        flips=_flips(_moves((_sign(old), _sign(new)) for old, new in sides)),
        trained_before=sum(old.fate == TRAINED for old, _ in sides),
        trained_after=sum(new.fate == TRAINED for _, new in sides),
    )


def _specs(side: DiffSide) -> tuple[str, ...]:
    return tuple(sorted({attempt.spec for attempt in side.attempts.values() if attempt.spec}))


def _moves(pairs: Iterable[tuple[str, str]]) -> Moves:
    return dict(sorted(Counter(pairs).items(), key=lambda entry: (-entry[1], entry[0])))


def _label(attempt: Attempt) -> str:
    return "scored" if attempt.total is not None else attempt.unscored or "no reward"


def _sign(attempt: Attempt) -> str:
    if attempt.advantage is None:
        return ABSENT
    return "0" if abs(attempt.advantage) <= TOLERANCE else "+" if attempt.advantage > 0 else "−"


def _flips(signs: Moves) -> int:
    return signs.get(("+", "−"), 0) + signs.get(("−", "+"), 0)


def _pairs(sides: Iterable[tuple[Attempt, Attempt]]) -> Moves:
    """Returns the order, before and after, of each pair of one group scored on both sides; quadratic in group size."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for old, new in sides:
        if new.group is not None and old.group == new.group and old.total is not None and new.total is not None:
            groups[new.group].append((old.total, new.total))
    return _moves(
        (_order(one[0], other[0]), _order(one[1], other[1]))
        for members in groups.values()
        for one, other in combinations(sorted(members), 2)
    )


def _order(one: float, other: float) -> str:
    return "=" if abs(one - other) <= TOLERANCE else "<" if one < other else ">"


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    ordered = sorted(values)
    least, low, middle, high, greatest = (_quantile(ordered, share) for share in (0.0, 0.1, 0.5, 0.9, 1.0))
    return Spread(len(values), mean, sd, (least, low, middle, high, greatest))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Returns a quantile, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = ordered[math.floor(place)]
    return below + (ordered[math.ceil(place)] - below) * (place - math.floor(place))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
