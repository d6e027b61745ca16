"""ADWIN: a window of values that grows while they are alike, and drops its old part when its mean has moved.

    0.1 0.1 0.2 0.1 0.1 │ 0.8 0.9 0.8 0.9 0.8        the mean right of the bar differs: the left part is dropped

After Bifet and Gavaldà, "Learning from time-changing data with adaptive windowing" (2007): of every split into n₀ and
n₁ values the difference of the means is compared with

    √(2/m · σ² · ln(2/δ'))        m = 1 / (1/n₀ + 1/n₁), δ' = δ / n

Two things differ from their first algorithm. σ² is the variance within the two parts, not of the whole window, and
there is no term for the range of the values: with both, a shift by ten deviations is found after sixty values only. In
return δ is smaller, and who asks must check that the difference matters. The window is bounded to 256 values, for which
their compression is not needed. It is for inputs and feedback, which may change for good: the baseline moves along,
whereas a chart's stays until the change is undone.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import fsum, log, sqrt
from typing import NamedTuple

from headrace.streams.watch.distances import mean

DELTA = 1e-7
"""δ: about the probability that a value of an unchanged stream is taken for a change."""
LARGEST = 256
"""Most values of a window."""
LEAST = 5
"""Fewest values on either side of a split."""


class Cut(NamedTuple):
    """What was found about a new value."""

    strength: float
    """Largest ratio of a split's difference to the bound above; above 1 the mean has moved."""
    effect: float
    """Difference of the means at that split, new − old, in the values' unit."""
    kept: int
    """Number of newest values that belong together: all of them unless the mean has moved."""


def with_value(window: Sequence[float], value: float) -> list[float]:
    """Returns ``window`` with ``value``, without the oldest if it would be too long."""
    return [*window, value][-LARGEST:]


def cut(window: Sequence[float], *, delta: float = DELTA) -> Cut:
    """Returns where the mean of ``window`` has moved most. Takes O(n) for n values."""
    n = len(window)
    if n < 2 * LEAST:
        return Cut(0.0, 0.0, n)
    centre = mean(window)
    sums = list(accumulate(value - centre for value in window))
    squares = list(accumulate((value - centre) ** 2 for value in window))
    least = 1e-9 * (squares[-1] / n + centre * centre)
    bound = log(2 * n / delta)
    best = Cut(0.0, 0.0, n)
    for left in range(LEAST, n - LEAST + 1):
        right = n - left
        old, new = sums[left - 1], sums[-1] - sums[left - 1]
        within = (squares[-1] - old * old / left - new * new / right) / (n - 2)
        effect = new / right - old / left
        strength = abs(effect) / sqrt(2 * (1 / left + 1 / right) * max(within, least) * bound) if effect else 0.0
        if strength > best.strength:
            best = Cut(strength, effect, right)
    return best if best.strength > 1 else best._replace(kept=n)


def level(window: Sequence[float]) -> float:
    """Returns the mean of a window; 0 for an empty one."""
    return fsum(window) / len(window) if window else 0.0
