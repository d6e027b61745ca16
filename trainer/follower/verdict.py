"""Whether a swap succeeded, decided from the engine's log-probabilities before and after it. Pure, over arrays.

n canary tokens; o are the trainer's log-probabilities of them under the version that was served before, t under the new
one, d = t − o; b and a are the engine's before and after the swap, each scored twice if o is known. Engine and trainer
compute differently: a = t + e after a good swap, where e has the standard deviation σ, 1e-6 to 1e-5 nats in float32 and
2e-2 to 5e-2 in bfloat16. An optimiser step at a learning rate of 1e-6 moves d by 1e-5 to 1e-3: less than σ, by orders
of magnitude. No single bound on |a − t| separates good swaps from empty ones. Three tests do:

1. **Is the engine near the new version?** rms(a − t) must be within the rounding of the engine's arithmetic, which is
   known from the swaps before.
2. **Where is it between old and new?** The least-squares position p = Σ d (a − o) / Σ d² is 1 after a good swap and 0
   after an empty one, with the standard error s = σ̂ / √(Σ d²), where σ̂ is that of the residuals about the fit. For
   Gaussian e, p is an affine function of the log-likelihood ratio of the two hypotheses. The same is computed with a −
   b instead of a − o, in which the constant errors of the engine's arithmetic cancel; the result with the smaller s
   counts. If s ≤ 0.1 the test is conclusive: p must be within 1 ± (0.1 + 4 s). That refuses empty swaps at five
   standard errors, and swaps that omitted more than a tenth of the change.
3. **Did it change at all?** For a d too small for test 2: other weights round differently everywhere, so a good swap
   moves an engine's answers by at least some 0.4 σ, however small d is; an empty one moves them no more than a repeated
   request does. Per token the move |a₁ − b₂| is compared with the engine's own |b₁ − b₂|. After an empty swap either is
   equally likely to be the larger, so the differences of counts D_j of the sequences have symmetric signs, and
   z = Σ D_j / √(Σ D_j²) exceeds x with a probability below exp(−x²/2), whatever the distribution of e. z ≥ 4 is
   conclusive.

If an engine's repeated answers differ by half of σ or more, an empty swap at a tiny step cannot be detected; then the
first test decides alone, and ``evidence`` records that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

LogprobRows = NDArray[np.float64]
"""(S, T) log-probabilities of S sequences; NaN where a shorter sequence has ended."""

_CONCLUSIVE_S = 0.1
_SLACK = 0.1
_STANDARD_ERRORS = 4.0
_Z = 4.0
_EXACT = 5e-6
"""Nats: a smaller d (rms) is rounding of the trainer's own float32 arithmetic, not a direction."""
_GROWTH = 1.5
"""Factor by which the distance from the trainer's log-probabilities may exceed the usual one."""
_FLOOR = 1e-3
"""Distance in nats (rms) that is always allowed."""
_NOISY = 0.5
"""Share of σ above which the variation of an engine's repeated answers hides the change of a swap."""


class SwapEvidence(StrEnum):
    """The test that decided a verdict."""

    POSITION = "position"
    """The engine's position between the old version and the new one."""
    CHANGE = "change"
    """A change of its answers; the versions are too close to measure a position."""
    DISTANCE = "distance"
    """Its distance from the new version alone: the old one is unknown, or the two cannot be distinguished."""


@dataclass(frozen=True, slots=True)
class SwapVerdict:
    """Whether a swap is accepted, with the measurements."""

    problem: str | None
    """Why it is not accepted; ``None``: it is."""
    rms_error: float
    """Root mean square of a − t, in nats."""
    max_error: float
    """Largest |a − t|, in nats."""
    evidence: SwapEvidence
    """The test that decided."""
    position: float | None = None
    """p: 0 at the old version, 1 at the new one; ``None`` if it could not be measured."""
    position_error: float | None = None
    """Its standard error s."""


def rows_of(sequences: Sequence[Sequence[float]]) -> LogprobRows:
    """Returns ``sequences`` as rows of one array. Values that are not finite become infinity; NaN marks the padding
    after a shorter sequence, which is not compared."""
    rows = np.full((len(sequences), max(map(len, sequences), default=0)), np.nan)
    for row, sequence in zip(rows, sequences, strict=True):
        values = np.asarray(sequence, np.float64)
        row[: len(sequence)] = np.where(np.isfinite(values), values, np.inf)
    return rows


def rms(difference: LogprobRows) -> float:
    """Returns the root mean square; infinity if a value other than NaN is not finite."""
    found = difference[~np.isnan(difference)]
    return float(np.sqrt(np.mean(found**2))) if len(found) and np.isfinite(found).all() else math.inf


def allowed_error(before: float, *, tolerance: float, noise: float) -> float:
    """Returns the largest accepted distance (rms) after a swap from an unknown version at the distance ``before``: the
    swap must at least halve the distance, down to ``noise``."""
    return min(tolerance, max(noise, before / 2))


def judge_swap(
    new: LogprobRows,
    before: Sequence[LogprobRows],
    after: Sequence[LogprobRows],
    *,
    old: LogprobRows | None,
    exact: bool,
    usual: float | None,
    tolerance: float,
    noise: float,
) -> SwapVerdict:
    """Returns the verdict on a swap to the version whose log-probabilities are ``new``.

    ``before`` and ``after`` are the engine's answers, scored once or twice. ``old`` is the version that it verifiably
    served before, with other weights than the new one; ``None`` if it is unknown. ``exact``: old and new are exact to
    float32. ``usual`` is the engine's distance (rms) from earlier versions, if known; ``tolerance`` bounds it in any
    case.
    """
    last = np.mean(after, axis=0)
    distance, largest = rms(last - new), float(np.nanmax(np.abs(last - new), initial=0.0))
    if not math.isfinite(distance):
        return SwapVerdict("the engine's log-probabilities are not finite", distance, math.inf, SwapEvidence.DISTANCE)
    if old is None:
        allowed = allowed_error(rms(before[0] - new), tolerance=tolerance, noise=noise)
    else:
        allowed = tolerance if usual is None else min(tolerance, max(_FLOOR, _GROWTH * usual))
    if distance > allowed:
        problem = (
            f"after the swap the engine's log-probabilities differ by {distance:.3g} nats (root mean square) from the "
            f"trainer's, before it by {rms(before[0] - new):.3g}; the limit is {allowed:.3g} (see canary_tolerance)"
        )
        return SwapVerdict(problem, distance, largest, SwapEvidence.DISTANCE)
    if old is None:
        return SwapVerdict(None, distance, largest, SwapEvidence.DISTANCE)
    position, error = _position(new, old, np.mean(before, axis=0), last) if exact else (None, None)
    figures = (distance, largest)
    if position is not None and error is not None and error <= _CONCLUSIVE_S:
        misplaced = None
        if abs(position - 1) > _SLACK + _STANDARD_ERRORS * error:
            misplaced = (
                f"after the swap the engine's log-probabilities are {position:.3g} of the way from the version before "
                f"to this one; expected is 1, with a standard error of {error:.2g}"
            )
        return SwapVerdict(misplaced, *figures, SwapEvidence.POSITION, position, error)
    same = exact and rms(new - old) < _EXACT / 2
    if same or len(before) < 2 or len(after) < 2:
        return SwapVerdict(None, *figures, SwapEvidence.DISTANCE, position, error)
    if _changed(before, after):
        return SwapVerdict(None, *figures, SwapEvidence.CHANGE, position, error)
    if max(rms(before[0] - before[1]), rms(after[0] - after[1])) > _NOISY * distance:
        return SwapVerdict(None, *figures, SwapEvidence.DISTANCE, position, error)
    problem = "after the swap the engine answers as before it, although the weights differ"
    return SwapVerdict(problem, *figures, SwapEvidence.CHANGE, position, error)


def _position(
    new: LogprobRows, old: LogprobRows, before: LogprobRows, after: LogprobRows
) -> tuple[float | None, float | None]:
    """Returns p and s by the more precise of the two ways; ``None`` if old and new are the same."""
    there = ~np.isnan(new)
    d = (new - old)[there]
    length = float(d @ d)
    if math.sqrt(length / max(len(d), 1)) < _EXACT:
        return None, None
    found = []
    for moved in ((after - old)[there], (after - before)[there]):
        p = float(d @ moved) / length
        residual = moved - p * d
        found.append((float(np.sqrt(residual @ residual / max(len(d) - 1, 1) / length)), p))
    s, p = min(found)
    return p, s


def _changed(before: Sequence[LogprobRows], after: Sequence[LogprobRows]) -> bool:
    """Whether the answers after the swap differ from those before it by more than repeated answers do."""
    itself = np.abs(before[0] - before[1])
    if not np.nanmax(itself, initial=0.0) and not np.nanmax(np.abs(after[0] - after[1]), initial=0.0):
        return bool(np.nanmax(np.abs(after[0] - before[1]), initial=0.0) > 0)
    larger = np.nansum(np.sign(np.abs(after[0] - before[1]) - itself), axis=1)
    scale = math.sqrt(float(larger @ larger))
    return scale > 0 and float(larger.sum()) / scale >= _Z
