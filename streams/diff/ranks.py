"""Rank correlations: whether two rewards order trajectories equally, regardless of scale."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Returns Spearman's ρ in [−1, 1]: the correlation of ranks, averaged for ties; ``None`` without variance."""
    return _correlation(_ranks(xs), _ranks(ys))


def kendall(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Returns Kendall's τ_b in [−1, 1], in O(n log n) after Knight (1966); ``None`` without variance.

    τ_b = (concordant − discordant) / √((pairs − tied in x)·(pairs − tied in y))
    """
    pairs = sorted(zip(xs, ys, strict=True))
    total = _pairs(len(pairs))
    tied_x, tied_y = _tied(x for x, _ in pairs), _tied(y for _, y in pairs)
    discordant = _inversions([y for _, y in pairs])
    difference = total - tied_x - tied_y + _tied(pairs) - 2 * discordant
    spread = math.sqrt((total - tied_x) * (total - tied_y))
    return difference / spread if spread else None


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    if not xs:
        return None
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.sqrt(math.fsum((x - mean_x) ** 2 for x in xs) * math.fsum((y - mean_y) ** 2 for y in ys))
    product = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return max(-1.0, min(1.0, product / spread)) if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for place in order[start:stop]:
            ranks[place] = (start + stop - 1) / 2
        start = stop
    return ranks


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _tied(values: Iterable[object]) -> int:
    return sum(map(_pairs, Counter(values).values()))


def _inversions(values: list[float]) -> int:
    """Counts pairs in the wrong order, by merge sort."""
    inversions, width = 0, 1
    while width < len(values):
        merged: list[float] = []
        for start in range(0, len(values), 2 * width):
            left, right = values[start : start + width], values[start + width : start + 2 * width]
            taken = 0
            for value in right:
                while taken < len(left) and left[taken] <= value:
                    merged.append(left[taken])
                    taken += 1
                inversions += len(left) - taken
                merged.append(value)
            merged += left[taken:]
        values, width = merged, 2 * width
    return inversions
