"""How far two samples are apart, as effect sizes: they do not grow with the number of values, as p-values would.

    wasserstein([0, 1], [1, 2]) = 1.0        kolmogorov_smirnov([0, 1], [1, 2]) = 0.5

Sums are exact (``math.fsum``), so that a replay on another machine gives the same bytes.
"""

from collections.abc import Sequence
from math import fsum, sqrt


def mean(values: Sequence[float]) -> float:
    """Returns the mean of at least one value."""
    return fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Returns the sample standard deviation (n − 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return sqrt(fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """Returns Pearson's correlation of ``x`` and ``y``, in [−1, 1], and the slope of ``y`` over ``x``.

    ``None`` for fewer than three pairs, or if one of them does not vary.
    """
    if len(x) < 3:
        return None
    at_x, at_y = mean(x), mean(y)
    xx = fsum((each - at_x) ** 2 for each in x)
    yy = fsum((each - at_y) ** 2 for each in y)
    if xx <= 1e-12 * (1 + at_x * at_x) or yy <= 1e-12 * (1 + at_y * at_y):
        return None
    xy = fsum((one - at_x) * (other - at_y) for one, other in zip(x, y, strict=True))
    return max(-1.0, min(1.0, xy / sqrt(xx * yy))), xy / xx


def wasserstein(x: Sequence[float], y: Sequence[float]) -> float:
    """Returns the Wasserstein-1 distance of two samples, in their unit: the area between their distributions."""
    return fsum(
        abs(at_x - at_y) * (end - start) for start, end, at_x, at_y in _between(sorted(x), sorted(y)) if end > start
    )


def kolmogorov_smirnov(x: Sequence[float], y: Sequence[float]) -> float:
    """Returns D, the largest difference of the distribution functions of two samples; in [0, 1]."""
    return max((abs(at_x - at_y) for _, _, at_x, at_y in _between(sorted(x), sorted(y))), default=0.0)


def total_variation(p: dict[str, float], q: dict[str, float]) -> float:
    """Returns half the sum of the differences of two distributions over names; in [0, 1]."""
    return 0.5 * fsum(abs(p.get(name, 0.0) - q.get(name, 0.0)) for name in sorted({*p, *q}))


def _between(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Returns, between each two neighbouring values of both, their ends and the two distribution functions."""
    points = sorted({*x, *y})
    ends = [*points[1:], points[-1]] if points else []
    found: list[tuple[float, float, float, float]] = []
    at_x = at_y = 0
    for start, end in zip(points, ends, strict=True):
        while at_x < len(x) and x[at_x] <= start:
            at_x += 1
        while at_y < len(y) and y[at_y] <= start:
            at_y += 1
        found.append((start, end, at_x / len(x), at_y / len(y)))
    return found
